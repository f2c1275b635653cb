//! Pictures.

use packhorse_cluster::{Datatype, ImagePreprocess};
use packhorse_preprocess::{Head, write_row};

/// The largest picture that is decoded: larger ones take the time of many small ones.
const PIXELS: u64 = 1 << 18;

/// A picture, from its head to the row of a tensor.
pub(crate) fn picture(input: &[u8]) {
    let Ok(head) = Head::read(input) else {
        return;
    };
    assert!(head.pixels() <= Head::MAX_PIXELS);
    if head.pixels() > PIXELS {
        return;
    }
    for declared in [
        r#"{"resize":{"shortest":32},"crop":[30,31],"exif":true}"#,
        r#"{"resize":{"exact":[7,90]},"filter":"bicubic","layout":"NHWC"}"#,
    ] {
        let declared: ImagePreprocess =
            serde_json::from_str(declared).expect("it is written above");
        let mut row = Vec::new();
        if write_row(input, &head, &declared, Datatype::Uint8, &mut row).is_ok() {
            assert_eq!(
                row.len() as u64,
                declared.row_dims().iter().product::<u64>()
            );
        }
    }
}

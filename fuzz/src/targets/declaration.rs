//! Declarations of how pictures and texts become inputs, and what clients want of outputs.

use packhorse_api::ModelRegistration;
use packhorse_cluster::{ArtifactDigest, Datatype, Preprocess, Processing, Program, TensorSpec};
use packhorse_preprocess::{Head, write_row};
use serde::{Deserialize, Serialize};

/// A picture of a few pixels.
const PICTURE: &[u8] = include_bytes!("../../../crates/preprocess/tests/pictures/rgb.png");
/// The most elements of a row that is made: larger ones take the time of many small ones.
const ELEMENTS: u64 = 1 << 14;

/// The part of a registration that declarations are checked against, with them.
#[derive(Serialize, Deserialize)]
struct Declared {
    max_batch_size: u32,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    #[serde(flatten)]
    processing: Processing,
}

/// A registration with declarations as JSON. What is accepted stays what it is through JSON, and makes rows of the declared size.
pub(crate) fn declaration(input: &[u8]) {
    // Whatever it is, the API says what is wrong with it.
    let _: Result<ModelRegistration, _> = serde_json::from_slice(input);
    let Ok(declared) = serde_json::from_slice::<Declared>(input) else {
        return;
    };
    let Declared {
        max_batch_size,
        inputs,
        outputs,
        processing,
    } = declared;
    let program = Program {
        model: "m:1".parse().expect("it is written above"),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size,
        inputs,
        outputs,
    };
    if program.validate().is_err() || processing.validate(&program).is_err() {
        return;
    }
    let json = serde_json::to_string(&processing).expect("it was JSON");
    let read: Processing = serde_json::from_str(&json).expect("it is what was written");
    assert_eq!(read, processing);
    for (name, declared) in &processing.preprocess {
        let Preprocess::Image(image) = declared else {
            continue;
        };
        let spec = program.inputs.iter().find(|spec| spec.name == *name);
        let spec = spec.expect("a picture fills an input");
        let elements: u64 = image.row_dims().iter().product();
        if elements > ELEMENTS {
            continue;
        }
        let head = Head::read(PICTURE).expect("it is a picture");
        assert!(head.memory(image) < 1 << 30, "{image:?}");
        let mut row = Vec::new();
        write_row(PICTURE, &head, image, spec.datatype, &mut row).expect("it is whole");
        let width = Datatype::width(spec.datatype).expect("it has numbers") as u64;
        assert_eq!(row.len() as u64, elements * width);
    }
}

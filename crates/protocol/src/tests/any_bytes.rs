//! Arbitrary bytes as input: nothing panics, and the memory that reading needs is bounded by their number.

use crate::{ByteRope, Form, InferRequest, InferResponse, Limits, RequestMessage, Tensor};
use packhorse_cluster::{Datatype, Program};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{shape, spec};

fn program() -> Program {
    super::program(
        4,
        vec![
            spec("x", Datatype::Fp64, &[-1, -1]),
            spec("s", Datatype::Bytes, &[-1]),
        ],
    )
}

/// Reads the bytes as every kind of message, and checks the largest amount of memory held at once.
fn read(bytes: &[u8], header_length: Option<u64>) {
    let body = ByteRope::from(bytes.to_vec());
    let program = program();
    let limits = Limits::default();
    let allocations = allocation_counter::measure(|| {
        let _ = InferRequest::parse(body.clone(), header_length, &program, &limits);
        let _ = RequestMessage::parse(body.clone(), header_length, &limits);
        let _ = InferResponse::parse(body.clone(), header_length, &limits);
    });
    // Numbers can grow fourfold, from two bytes of text to eight; the rest is for names, messages and lists.
    let bound = 8 * bytes.len() as u64 + 16 * 1024;
    assert!(
        allocations.bytes_max <= bound,
        "reading {} bytes needed {} bytes of memory",
        bytes.len(),
        allocations.bytes_max
    );
}

fn valid() -> (Vec<u8>, Option<u64>) {
    let x = Tensor::from_values("x", shape(&[2, 3]), &[0.5, 1.0, -2.0, 3e9, 4.0, 5.0]);
    let s = Tensor::from_byte_strings("s", shape(&[2]), &["a", "long \u{e9}"]);
    let request = RequestMessage {
        id: "id".to_owned(),
        inputs: vec![x.unwrap().in_form(Form::Json), s.unwrap()],
        outputs: vec![crate::OutputRequest {
            classes: None,
            name: "y".to_owned(),
            form: Some(Form::Binary),
            range: Some(crate::RegionRange {
                region: "r".to_owned(),
                offset: 8,
                bytes: 16,
            }),
        }],
        priority: 3,
        ..RequestMessage::default()
    };
    let message = request.encode().unwrap();
    let header_length = message.header_length();
    (message.into_body().to_bytes().to_vec(), header_length)
}

#[test]
fn the_request_that_is_corrupted_below_is_valid() {
    let (bytes, header_length) = valid();
    let request =
        InferRequest::parse(bytes.into(), header_length, &program(), &Limits::default()).unwrap();
    assert_eq!(request.rows, 2);
}

#[test]
fn announced_sizes_allocate_nothing() {
    let huge = 1_u64 << 40;
    for head in [
        format!(r#"{{"inputs":[{{"name":"x","shape":[{huge}],"datatype":"FP64","data":[1]}}]}}"#),
        format!(r#"{{"inputs":[{{"name":"s","shape":[{huge}],"datatype":"BYTES","data":[]}}]}}"#),
        format!(
            r#"{{"inputs":[{{"name":"x","shape":[{huge}],"datatype":"INT8","parameters":{{"binary_data_size":{huge}}}}}]}}"#
        ),
    ] {
        read(head.as_bytes(), None);
        read(head.as_bytes(), Some(head.len() as u64));
    }
    // The densest text: elements of eight bytes written in two.
    let dense = format!(
        r#"{{"inputs":[{{"name":"x","shape":[100000],"datatype":"FP64","data":[{}0]}}]}}"#,
        "0,".repeat(99_999)
    );
    read(dense.as_bytes(), None);
    for filler in ["[", "{\"a\":", "1,", "\"", "\\\"", "{}", "[],"] {
        let body = format!(
            r#"{{"inputs":[{{"name":"x","shape":[{}"#,
            filler.repeat(30_000)
        );
        read(body.as_bytes(), None);
        let body = format!(
            r#"{{"parameters":{{"sequence_id":[{}"#,
            filler.repeat(30_000)
        );
        read(body.as_bytes(), None);
    }
    read("\u{1}".repeat(50_000).as_bytes(), None);
}

proptest! {
    #[test]
    fn random_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..300), header_length in proptest::option::of(0_u64..400)) {
        read(&bytes, header_length);
    }

    #[test]
    fn corrupted_requests_are_refused_or_read(
        changes in vec((any::<Index>(), any::<u8>()), 0..6),
        cut in any::<Index>(),
        keep in any::<bool>(),
        off in -3_i64..4,
    ) {
        let (mut bytes, header_length) = valid();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if !keep {
            bytes.truncate(cut.index(bytes.len()));
        }
        read(&bytes, header_length.map(|length| length.saturating_add_signed(off)));
    }

    #[test]
    fn text_of_json_tokens_is_refused_or_read(
        tokens in vec(proptest::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"inputs\"", "\"name\"", "\"x\"", "\"shape\"", "\"datatype\"", "\"FP32\"", "\"BYTES\"",
            "\"data\"", "\"parameters\"", "\"binary_data_size\"", "\"outputs\"", "1", "-1", "2.5", "1e400", "true", "null", " ",
        ]), 0..60),
    ) {
        read(tokens.concat().as_bytes(), None);
    }
}

//! Bodies of inference requests and answers.

use packhorse_cluster::{ArtifactDigest, Datatype, Dim, Processing, Program, TensorSpec};
use packhorse_protocol::{
    ByteRope, InferRequest, InferResponse, Limits, NonFinite, RequestMessage, RowWriter, Rows,
    is_oip,
};

/// A body of pure JSON.
pub(crate) fn json(body: &[u8]) {
    read(&ByteRope::from(body.to_vec()), None);
}

/// A body with binary tensors: two bytes of the header length, one of the length of the pieces less one, and the body.
pub(crate) fn binary(input: &[u8]) {
    let [low, high, piece, body @ ..] = input else {
        return;
    };
    let pieces = body.chunks(usize::from(*piece) + 1);
    let rope: ByteRope = pieces.map(|piece| piece.to_vec().into()).collect();
    read(&rope, Some(u16::from_le_bytes([*low, *high]).into()));
}

/// Rows of version 1.
pub(crate) fn rows(body: &[u8]) {
    let none = Processing::default();
    let _ = is_oip(body);
    for datatype in Datatype::ALL {
        for max_batch_size in [0, 8] {
            let program = program(datatype, max_batch_size);
            let Ok(rows) = Rows::parse(body, &program, &none, 100) else {
                continue;
            };
            assert!((1..=100).contains(&rows.count()));
            for row in 0..rows.count() {
                let message = rows.message(row..row + 1);
                let message = message.expect("rows that were read are tensors");
                let [input] = &message.inputs[..] else {
                    panic!("{} inputs of one", message.inputs.len());
                };
                // What is written of a row is read as the same.
                let data = input.data().to_bytes();
                let dims = &input.shape().dims()[usize::from(program.batches())..];
                let mut text = br#"{"instances":["#.to_vec();
                let mut writer = RowWriter::new("x", datatype, dims, &data, NonFinite::Error);
                writer.write(&mut text).expect("JSON has no infinity");
                text.extend_from_slice(b"]}");
                let again = Rows::parse(&text, &program, &none, 1).expect("what was written");
                let again = again.message(0..1).expect("what was written");
                assert_eq!(&again.inputs[0], input);
            }
        }
    }
}

pub(super) fn program(datatype: Datatype, max_batch_size: u32) -> Program {
    let spec = |name: &str, datatype, max_shape| TensorSpec {
        max_shape,
        ..TensorSpec::new(name, datatype, vec![Dim::Any, Dim::Any])
    };
    let limits = vec![Dim::Any, Dim::Fixed(1000)];
    Program {
        model: "m:1".parse().expect("a name and a version"),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size,
        inputs: vec![spec("x", datatype, Some(limits))],
        outputs: vec![
            spec("y", Datatype::Fp32, None),
            spec("h", Datatype::Fp16, None),
        ],
    }
}

/// Reads the body as a request for several models and as an answer, and checks what is accepted.
fn read(body: &ByteRope, header_length: Option<u64>) {
    let limits = Limits::default();
    for datatype in Datatype::ALL {
        for max_batch_size in [0, 8] {
            let program = program(datatype, max_batch_size);
            let request = InferRequest::parse(body.clone(), header_length, &program, &limits);
            if let Ok(request) = request {
                assert!((1..=program.rows_limit()).contains(&request.rows));
                let [input] = &request.inputs[..] else {
                    panic!("{} inputs of one", request.inputs.len());
                };
                let (shape, spec) = (input.shape(), &program.inputs[0]);
                assert!(spec.accepts(shape) && shape.dims()[1] <= 1000, "{shape}");
                if let Some(width) = datatype.width() {
                    assert_eq!(input.data().len() as u64, shape.elements() * width as u64);
                }
            }
        }
    }
    if let Ok(message) = RequestMessage::parse(body.clone(), header_length, &limits) {
        let written = message.encode().expect("a decoded message can be encoded");
        let header_length = written.header_length();
        let again = RequestMessage::parse(written.into_body(), header_length, &limits);
        assert_eq!(again.as_ref(), Ok(&message));
    }
    if let Ok(response) = InferResponse::parse(body.clone(), header_length, &limits) {
        let written = response.encode().expect("a decoded message can be encoded");
        let header_length = written.header_length();
        let again = InferResponse::parse(written.into_body(), header_length, &limits);
        assert_eq!(again.as_ref(), Ok(&response));
    }
}

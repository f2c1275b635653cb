//! The common part of the fuzz targets: models of every datatype, and the invariants of accepted requests.

use packhorse_cluster::{ArtifactDigest, Datatype, Dim, Program, TensorSpec};
use packhorse_protocol::{ByteRope, InferRequest, InferResponse, Limits, RequestMessage};

fn program(inputs: &[(&str, Datatype)], max_batch_size: u32) -> Program {
    let spec = |name: &str, datatype| TensorSpec {
        name: name.to_owned(),
        datatype,
        shape: vec![Dim::Any, Dim::Any],
        pad: None,
        max_shape: None,
    };
    Program {
        model: "m:1".parse().expect("a name and a version"),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size,
        inputs: inputs
            .iter()
            .map(|(name, datatype)| spec(name, *datatype))
            .collect(),
        outputs: vec![spec("y", Datatype::Fp32), spec("h", Datatype::Fp16)],
    }
}

/// Reads the body as a request for several models and as a response, and checks every accepted one.
pub fn read(body: &ByteRope, header_length: Option<u64>) {
    let limits = Limits::default();
    for datatype in Datatype::ALL {
        for max_batch_size in [0, 8] {
            let program = program(&[("x", datatype)], max_batch_size);
            if let Ok(request) = InferRequest::parse(body.clone(), header_length, &program, &limits)
            {
                assert!(request.rows >= 1 && request.rows <= program.rows_limit());
                assert_eq!(request.inputs.len(), 1);
                assert!(program.inputs[0].accepts(request.inputs[0].shape()));
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

//! Tests of the whole protocol, as clients see it.

mod any_bytes;
mod bad_data;
mod bad_requests;
mod number_lists;
mod requests;
mod responses;
mod round_trip;
mod rows;
mod shared_memory;

use packhorse_cluster::{ArtifactDigest, Datatype, Dim, Program, Shape, TensorSpec};

use crate::{InferRequest, Limits};

fn shape(dims: &[i64]) -> Shape {
    Shape::new(dims).unwrap()
}

fn spec(name: &str, datatype: Datatype, dims: &[i64]) -> TensorSpec {
    let shape = dims
        .iter()
        .map(|dim| Dim::try_from(*dim).unwrap())
        .collect();
    TensorSpec::new(name, datatype, shape)
}

/// A model with these inputs and two outputs, one of which JSON cannot represent.
fn program(max_batch_size: u32, inputs: Vec<TensorSpec>) -> Program {
    Program {
        model: "m:1".parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size,
        inputs,
        outputs: vec![
            spec("y", Datatype::Fp32, &[-1, 2]),
            spec("h", Datatype::Fp16, &[-1, 4]),
        ],
    }
}

/// A model with one input of this type, without a batch dimension.
fn single(datatype: Datatype, dims: &[i64]) -> Program {
    program(0, vec![spec("x", datatype, dims)])
}

fn parse(
    body: &[u8],
    header_length: Option<u64>,
    program: &Program,
) -> Result<InferRequest, String> {
    InferRequest::parse(
        body.to_vec().into(),
        header_length,
        program,
        &Limits::default(),
    )
    .map_err(|e| e.to_string())
}

fn refused(body: &str, program: &Program, message: &str) {
    assert_eq!(
        parse(body.as_bytes(), None, program).unwrap_err(),
        message,
        "{body}"
    );
}

fn with_inputs(inputs: &str) -> String {
    format!(r#"{{"inputs":[{inputs}]}}"#)
}

/// A request with one input.
fn data_of(datatype: Datatype, dims: &str, data: &str) -> String {
    with_inputs(&format!(
        r#"{{"name":"x","shape":{dims},"datatype":"{datatype}","data":{data}}}"#
    ))
}

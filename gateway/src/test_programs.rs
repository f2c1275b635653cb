//! Programs for the tests of this crate.

use packhorse_cluster::{ArtifactDigest, Datatype, Dim, Program, TensorSpec};

/// Returns a tensor of bytes.
pub(crate) fn spec(name: &str, shape: &[i64]) -> TensorSpec {
    TensorSpec::new(
        name,
        Datatype::Uint8,
        shape
            .iter()
            .map(|dim| Dim::try_from(*dim).unwrap())
            .collect(),
    )
}

/// Returns a program with these tensors.
pub(crate) fn program(
    max_batch_size: u32,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
) -> Program {
    let program = Program {
        model: "m:1".parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size,
        inputs,
        outputs,
    };
    program.validate().unwrap();
    program
}

/// Returns a program with one input and one output, which has this shape.
pub(crate) fn program_to(max_batch_size: u32, output: &[i64]) -> Program {
    program(
        max_batch_size,
        vec![spec("x", &[-1])],
        vec![spec("y", output)],
    )
}

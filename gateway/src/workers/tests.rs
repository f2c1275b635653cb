//! Helpers of the tests of links.

use packhorse_cluster::{ArtifactDigest, Datatype, Dim, Program, TensorSpec};

/// Returns a program whose only output has this shape, of bytes.
pub(super) fn program(max_batch_size: u32, output: &[i64]) -> Program {
    let spec = |name: &str, shape: &[i64]| TensorSpec {
        name: name.to_owned(),
        datatype: Datatype::Uint8,
        shape: shape
            .iter()
            .map(|dim| Dim::try_from(*dim).unwrap())
            .collect(),
        pad: None,
        max_shape: None,
    };
    Program {
        model: "m".parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size,
        inputs: vec![spec("x", &[-1])],
        outputs: vec![spec("y", output)],
    }
}

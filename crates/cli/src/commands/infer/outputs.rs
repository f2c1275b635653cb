//! Outputs by name.

use anyhow::Context as _;
use packhorse_protocol::{InferResponse, Tensor};

/// Returns the output with this name.
pub(super) fn find_output<'a>(
    response: &'a InferResponse,
    name: &str,
) -> anyhow::Result<&'a Tensor> {
    let found = response.outputs.iter().find(|output| output.name() == name);
    let names = || {
        response
            .outputs
            .iter()
            .map(Tensor::name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    found.with_context(|| {
        format!(
            "the model has no output {name:?}; its outputs are {}",
            names()
        )
    })
}

//! The wishes of a call.

use std::time::Duration;

use packhorse_cluster::{Classes, Dim, Embedding, ModelSpec, Postprocess};

use crate::api::inference::error::InferenceError;

/// The texts of a call, and the output that is wanted.
#[derive(Clone, Debug)]
pub(in crate::api::inference) struct Ask {
    /// The text that each of the others is compared with, if any.
    pub(in crate::api::inference) query: Option<String>,
    /// The texts.
    pub(in crate::api::inference) texts: Vec<String>,
    /// True if texts that are too long are cut, false if they are refused; none for what the registration says.
    pub(in crate::api::inference) truncate: Option<bool>,
    /// The name of the output.
    pub(in crate::api::inference) output: String,
    /// The longest time that the client waits; none for the model's objective, which each request of the call has for itself.
    pub(in crate::api::inference) timeout: Option<Duration>,
    /// The priority: 0 is the default, otherwise 1 is the most urgent.
    pub(in crate::api::inference) priority: u64,
    /// The use of each row of the output.
    pub(in crate::api::inference) wanted: Wanted,
}

/// The use of a row of an output.
#[derive(Clone, Copy, Debug)]
pub(in crate::api::inference) enum Wanted {
    /// All its numbers.
    Scores,
    /// Its embedding, cut to a number of dimensions if one is given.
    Embedding(Embedding, Option<usize>),
}

/// Returns the size of the last dimension of an output, where the model declares it.
pub(in crate::api::inference) fn size_of(spec: &ModelSpec, output: &str) -> Option<u64> {
    let mut outputs = spec.program.outputs.iter();
    let output = outputs.find(|spec| spec.name == output)?;
    match output.shape.last() {
        Some(Dim::Fixed(size)) => Some(*size),
        Some(Dim::Any) | None => None,
    }
}

/// Checks the wanted number of an embedding's dimensions.
pub(in crate::api::inference) fn check_dimensions(
    dimensions: Option<usize>,
    size: Option<u64>,
) -> Result<(), InferenceError> {
    let Some((wanted, size)) = dimensions.zip(size) else {
        return Ok(());
    };
    if (1..=size).contains(&(wanted as u64)) {
        return Ok(());
    }
    Err(InferenceError::bad_request(format!(
        "dimensions: {wanted} is not between 1 and the {size} of the model"
    )))
}

/// Returns the output of a model that is an embedding, with its name.
pub(in crate::api::inference) fn embedding_of(
    spec: &ModelSpec,
) -> Result<(String, Embedding), InferenceError> {
    let mut outputs = spec.processing.postprocess.iter();
    let found = outputs.find_map(|(name, declared)| Some((name.clone(), declared.embedding()?)));
    found.ok_or_else(|| {
        InferenceError::bad_request(
            "the model does not declare which output is an embedding (postprocess: pool, normalize)",
        )
    })
}

/// Returns the output of a model that is scores of classes, with its name.
pub(in crate::api::inference) fn classes_of(
    spec: &ModelSpec,
) -> Result<(String, Classes), InferenceError> {
    let mut outputs = spec.processing.postprocess.iter();
    let classes = |declared: &Postprocess| declared.classes().cloned();
    let found = outputs.find_map(|(name, declared)| Some((name.clone(), classes(declared)?)));
    found.ok_or_else(|| {
        InferenceError::bad_request(
            "the model does not declare which output is scores of classes (postprocess: top_k)",
        )
    })
}

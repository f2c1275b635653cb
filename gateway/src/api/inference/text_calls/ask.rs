//! What a call wants of a model.

use packhorse_cluster::{Classes, Embedding, ModelSpec, Postprocess};

use crate::api::inference::error::InferenceError;

/// The texts of a call, and the output that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// The text that each of the others is compared with, if any.
    pub(super) query: Option<String>,
    /// The texts.
    pub(super) texts: Vec<String>,
    /// True if texts that are too long are cut, false if they are refused; none for what the registration says.
    pub(super) truncate: Option<bool>,
    /// The name of the output.
    pub(super) output: String,
}

/// Returns the output of a model that is an embedding, with its name.
pub(super) fn embedding_of(spec: &ModelSpec) -> Result<(String, Embedding), InferenceError> {
    let mut outputs = spec.processing.postprocess.iter();
    let found = outputs.find_map(|(name, declared)| Some((name.clone(), declared.embedding()?)));
    found.ok_or_else(|| {
        InferenceError::bad_request(
            "the model does not declare which output is an embedding (postprocess: pool, normalize)",
        )
    })
}

/// Returns the output of a model that is scores of classes, with its name.
pub(super) fn classes_of(spec: &ModelSpec) -> Result<(String, Classes), InferenceError> {
    let mut outputs = spec.processing.postprocess.iter();
    let classes = |declared: &Postprocess| declared.classes().cloned();
    let found = outputs.find_map(|(name, declared)| Some((name.clone(), classes(declared)?)));
    found.ok_or_else(|| {
        InferenceError::bad_request(
            "the model does not declare which output is scores of classes (postprocess: top_k)",
        )
    })
}

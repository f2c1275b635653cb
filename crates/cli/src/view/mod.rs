//! Prints the API's responses as text, and plans also as the JSON of `packhorse plan --json`.

pub(crate) mod cluster;
pub(crate) mod explanation;
pub(crate) mod layout;
pub(crate) mod model;
pub(crate) mod plan;
pub(crate) mod profile;

use packhorse_cluster::{ModelName, ModelVersion};

/// Returns a model's name with its version; the first version is written as the name alone, as in plans and profiles.
pub(crate) fn versioned_name(name: &ModelName, version: ModelVersion) -> String {
    if version == ModelVersion::FIRST {
        name.to_string()
    } else {
        format!("{name}:{version}")
    }
}

/// Returns a number with a noun, in the plural where the number is not 1.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

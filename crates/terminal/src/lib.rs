//! What the two commands have in common: `packhorse`, for operators and clients of a gateway, and `packhorse-lab`, which plans,
//! simulates and measures.
//!
//! [`context`] has the options of every command and the clients that follow from them, [`inputs`] and [`npy`] the tensors of a
//! command line, [`files`] and [`output`] what is read and written, and [`program`] what happens to
//! errors. [`plan`], [`layout`], [`explanation`] and [`profile_row`] are
//! the views that both print.

#![deny(
    clippy::print_stderr,
    reason = "it panics where standard error cannot be written: output::note"
)]

pub mod context;
pub mod explanation;
pub mod files;
pub mod inputs;
pub mod layout;
pub mod manual;
pub mod npy;
pub mod output;
pub mod plan;
pub mod policy_options;
pub mod profile_row;
pub mod program;

use packhorse_cluster::{ModelName, ModelVersion};

/// Returns a model's name with its version; the first version is written as the name alone, as in plans and profiles.
pub fn versioned_name(name: &ModelName, version: ModelVersion) -> String {
    if version == ModelVersion::FIRST {
        name.to_string()
    } else {
        format!("{name}:{version}")
    }
}

/// Returns a number with a noun, in the plural where the number is not 1.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

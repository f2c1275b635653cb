//! Prints the API's responses as text.

pub(crate) mod cluster;
pub(crate) mod model;
mod processing;

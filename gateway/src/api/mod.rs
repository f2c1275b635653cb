//! HTTP: the inference protocol and the admin API.

pub mod admin;
pub mod inference;

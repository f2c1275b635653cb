//! The HTTP listeners: the inference protocol and the admin API.

pub mod admin;
pub mod error;
pub mod inference;

pub use error::ApiError;

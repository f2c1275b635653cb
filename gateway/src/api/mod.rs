//! The HTTP listeners: the inference protocol and the admin API.

pub mod admin;
pub mod error;
pub mod inference;

pub(crate) use admin::bearer;
pub use error::ApiError;

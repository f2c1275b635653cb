//! The HTTP listeners: the inference protocol and the admin API.

pub mod admin;
pub(crate) mod body;
pub mod error;
pub mod inference;
pub mod web_policy;

pub(crate) use admin::bearer;
pub use error::ApiError;

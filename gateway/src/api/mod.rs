//! The listeners: the inference protocol over HTTP and over gRPC, and the admin API.

pub mod admin;
pub(crate) mod body;
pub mod error;
pub mod grpc;
pub mod inference;
mod pieces;
pub mod web_policy;

pub(crate) use admin::{bearer, bearer_of};
pub use error::ApiError;

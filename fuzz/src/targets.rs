//! The targets, by what they read.

pub(crate) mod agent;
pub(crate) mod artifact;
pub(crate) mod declaration;
pub(crate) mod files;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod picture;
pub(crate) mod wire;

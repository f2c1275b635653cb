//! The gateway over HTTP: `admin` tests whole gateways with agents, `inference` the data plane with workers.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

mod admin;
mod grpc;
mod inference;
mod support;

//! The `packhorse` binary against a stand-in gateway that answers as the API promises.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod bench;
mod errors;
mod gateway;
mod infer;
mod model;
mod node;
mod plan;
mod policy;
mod profile;
mod status;

//! The `packhorse` binary against a stand-in gateway that responds like the API.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod audit;
mod backup;
mod certs;
mod consent;
mod dashboard;
mod doctor;
mod errors;
mod events;
mod history;
mod infer;
mod keys;
mod laboratory;
mod model;
mod node;
mod plan;
mod policy;
mod profile;
mod requests;
mod status;

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_packhorse");

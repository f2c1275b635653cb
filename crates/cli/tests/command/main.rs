//! The `packhorse` binary against a stand-in gateway that responds like the API.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod audit;
mod backup;
#[cfg(feature = "laboratory")]
mod bench;
#[cfg(feature = "laboratory")]
mod bench_model;
mod certs;
mod consent;
mod dashboard;
mod doctor;
mod errors;
#[cfg(feature = "laboratory")]
mod estimate;
mod events;
mod gateway;
#[cfg(feature = "laboratory")]
mod image;
mod infer;
#[cfg(feature = "laboratory")]
mod kernels;
mod keys;
mod model;
mod node;
mod plan;
mod policy;
mod profile;
mod requests;
mod status;
#[cfg(not(feature = "laboratory"))]
mod without_laboratory;

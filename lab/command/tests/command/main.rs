//! The `packhorse-lab` binary against a stand-in gateway that responds like the API.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod bench;
mod bench_model;
mod estimate;
mod kernels;

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_packhorse-lab");

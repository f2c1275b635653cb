//! The messages of gRPC: `crates/grpc/src/generated`, from the files of `crates/grpc/proto`. The test of that crate writes them, so that what reads
//! proto files is compiled for it alone and not for every chore.

use std::process::Command;

use crate::workspace::{root, succeed};

/// Writes the generated code anew.
pub(crate) fn run() -> anyhow::Result<()> {
    succeed(
        Command::new("cargo")
            .current_dir(root())
            .args(["test", "-p", "packhorse-grpc", "--test", "generated"])
            .env("PACKHORSE_BLESS", "1"),
    )
}

//! The training of policies that learn.

use std::process::Command;

use crate::workspace::{root, succeed};

/// Builds and runs it: it needs the simulator, which xtask does not, and no part of set-up.
pub(crate) fn run(options: &[String]) -> anyhow::Result<()> {
    let package = ["run", "--package", "packhorse-training", "--"];
    let mut command = Command::new("cargo");
    command.current_dir(root()).args(package).args(options);
    succeed(&mut command)
}

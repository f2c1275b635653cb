//! The experiments of the thesis, again.

use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::{setup, workspace::root};

/// Builds and runs them: they need the solver, which set-up makes possible, and xtask itself does not.
pub(crate) fn run(options: &[String]) -> anyhow::Result<()> {
    setup::run()?;
    let package = ["run", "--package", "packhorse-experiments", "--"];
    let status = Command::new("cargo")
        .current_dir(root())
        .args(package)
        .args(options)
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "the experiments: {status}");
    Ok(())
}

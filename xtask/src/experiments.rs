//! The experiments of the thesis, again.

use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::workspace::root;

/// Builds and runs them: they need the solver, and xtask itself does not.
pub(crate) fn run(options: &[String]) -> anyhow::Result<()> {
    let package = [
        "run",
        "--package",
        "packhorse-experiments",
        "--features",
        "highs",
        "--",
    ];
    let status = Command::new("cargo")
        .current_dir(root())
        .args(package)
        .args(options)
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "the experiments: {status}");
    Ok(())
}

//! Goodput and the time of refusals over the offered load: `tests/overload.py`.

use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::{
    setup,
    workspace::{python, root},
};

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Time of each load, in seconds
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
}

/// Builds the programs, measures, and writes `docs/benchmarks/overload.md` with its figure.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    setup::run_and_build()?;
    let status = Command::new(python())
        .args(["tests/overload.py", "--write", "--seconds"])
        .arg(options.seconds.to_string())
        .current_dir(root())
        .status()
        .context("start tests/overload.py")?;
    ensure!(status.success(), "the benchmark: {status}");
    Ok(())
}

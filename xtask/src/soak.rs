//! Mixed hostile load for as long as one likes: `tests/soak.py`.

use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::{
    setup,
    workspace::{python, root},
};

/// The flags of the soak test.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Time of the load
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Seed of the choice of attacks
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Builds the programs, attacks them, and writes `docs/benchmarks/soak.md`.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    setup::run_and_build()?;
    let status = Command::new(python())
        .args(["tests/soak.py", "--write", "--minutes"])
        .arg(options.minutes.to_string())
        .args(["--seed", &options.seed.to_string()])
        .current_dir(root())
        .status()
        .context("start tests/soak.py")?;
    ensure!(
        status.success(),
        "something that must hold did not: see above"
    );
    Ok(())
}

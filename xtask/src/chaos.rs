//! Real programs, killed and stopped at random: `tests/chaos.py`.

use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::{
    setup,
    workspace::{python, root},
};

/// The flags of the chaos.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Time of the chaos
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Seed of its choices; the programs' timing is their own
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Break one process of many models whose weights do not all fit into its memory
    #[arg(long)]
    pool: bool,
}

/// Builds the programs, breaks them, and fails if they do not heal.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    setup::run_and_build()?;
    let status = Command::new(python())
        .args(["tests/chaos.py", "--seconds"])
        .arg(options.seconds.to_string())
        .args(["--seed", &options.seed.to_string()])
        .args(options.pool.then_some("--pool"))
        .current_dir(root())
        .status()
        .context("start tests/chaos.py")?;
    ensure!(
        status.success(),
        "something that must hold did not: see above"
    );
    Ok(())
}

//! Random histories of a whole cluster in virtual time: as many as one likes, or one again, with its trace.

use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::workspace::root;

/// The flags of the histories.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this seed only, and print its steps and what the control plane tells
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first", "minutes"])]
    seed: Option<u64>,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// First seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// Run seeds for this time instead
    #[arg(long, value_name = "M", conflicts_with = "seeds")]
    minutes: Option<f64>,
}

/// Runs the test of `crates/control` that lets histories happen. The first that fails is made simpler, and printed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut test = Command::new("cargo");
    test.current_dir(root())
        .args(["test", "--quiet", "--package", "packhorse-control"])
        .args(["--test", "cluster", "--", "--exact", "--nocapture"])
        .arg("histories::after_any_history_everything_heals");
    match (options.seed, options.minutes) {
        (Some(seed), _) => test.env("PACKHORSE_SEED", seed.to_string()),
        (None, Some(minutes)) => test.env("PACKHORSE_MINUTES", minutes.to_string()),
        (None, None) => test.env("PACKHORSE_SEEDS", options.seeds.to_string()),
    };
    test.env("PACKHORSE_FIRST_SEED", options.first.to_string());
    let status = test.status().context("start cargo")?;
    ensure!(status.success(), "a history does not heal: see above");
    Ok(())
}

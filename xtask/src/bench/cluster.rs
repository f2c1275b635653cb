//! Benchmarks of a whole cluster: Python scripts beside the system tests, which write their pages themselves.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};

use crate::{
    release,
    workspace::{python, root},
};

/// The flags of `overload`.
#[derive(clap::Args)]
pub(crate) struct Overload {
    /// Time of each load, in seconds
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
}

/// The flags of `isolation`.
#[derive(clap::Args)]
pub(crate) struct Isolation {
    /// Attacks on one model beside another, of one key beside another on the same model, or both
    #[arg(long, value_parser = ["models", "keys", "both"], default_value = "both")]
    between: String,
    /// Time of each measurement, in seconds
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// Number of measurements of each attack, of which the median counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// The flags of `versions`.
#[derive(clap::Args)]
pub(crate) struct Versions {
    /// Folder with the programs of the other version
    #[arg(long)]
    other: PathBuf,
    /// Name of the other version
    #[arg(long, default_value = "the other version")]
    name: String,
    /// Time of each load, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of loads of each case, of which the median counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// The flags of `restart`.
#[derive(clap::Args)]
pub(crate) struct Restart {
    /// Number of models
    #[arg(long, default_value_t = 1000)]
    models: u32,
    /// Number of restarts
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

/// The flags of `pool-worker`.
#[derive(clap::Args)]
pub(crate) struct PoolWorker {
    /// Number of models
    #[arg(long, default_value_t = 40)]
    models: u32,
    /// Number of measurements of each case, of which the median counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// The flags of `many-models`.
#[derive(clap::Args)]
pub(crate) struct ManyModels {
    /// Number of models
    #[arg(long, default_value_t = 200)]
    models: u32,
    /// Requests per second
    #[arg(long, default_value_t = 80.0)]
    rate: f64,
    /// Time of the traffic, in seconds
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
}

/// The flags of `observability`.
#[derive(clap::Args)]
pub(crate) struct Observability {
    /// Time of each load whose requests are traced, in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Number of loads of each part of traced requests, of which the median counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// The flags of `tls`.
#[derive(clap::Args)]
pub(crate) struct Tls {
    /// Time of each load, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of loads of each case, of which the median counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// The flags of `confinement`.
#[derive(clap::Args)]
pub(crate) struct Confinement {
    /// Time of each load, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of rounds, in each of which all cases are measured
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

/// Writes `docs/benchmarks/overload.md` with its figure.
pub(crate) fn overload(options: &Overload) -> anyhow::Result<()> {
    measure("overload", &[("seconds", options.seconds.to_string())])
}

/// Writes `docs/benchmarks/isolation.md`.
pub(crate) fn isolation(options: &Isolation) -> anyhow::Result<()> {
    measure(
        "isolation",
        &[
            ("between", options.between.clone()),
            ("seconds", options.seconds.to_string()),
            ("rounds", options.rounds.to_string()),
        ],
    )
}

/// Writes `docs/benchmarks/versions.md`.
pub(crate) fn versions(options: &Versions) -> anyhow::Result<()> {
    measure(
        "versions",
        &[
            ("other", options.other.display().to_string()),
            ("name", options.name.clone()),
            ("seconds", options.seconds.to_string()),
            ("rounds", options.rounds.to_string()),
        ],
    )
}

/// Writes `docs/benchmarks/restart.md`.
pub(crate) fn restart(options: &Restart) -> anyhow::Result<()> {
    measure(
        "restart",
        &[
            ("models", options.models.to_string()),
            ("rounds", options.rounds.to_string()),
        ],
    )
}

/// Writes `docs/benchmarks/pool-worker.md`.
pub(crate) fn pool_worker(options: &PoolWorker) -> anyhow::Result<()> {
    measure(
        "pool_worker",
        &[
            ("models", options.models.to_string()),
            ("rounds", options.rounds.to_string()),
        ],
    )
}

/// Writes `docs/benchmarks/many-models.md`.
pub(crate) fn many_models(options: &ManyModels) -> anyhow::Result<()> {
    measure(
        "many_models",
        &[
            ("models", options.models.to_string()),
            ("rate", options.rate.to_string()),
            ("seconds", options.seconds.to_string()),
        ],
    )
}

/// Writes `docs/benchmarks/observability.md`.
pub(crate) fn observability(options: &Observability) -> anyhow::Result<()> {
    measure(
        "observability",
        &[
            ("seconds", options.seconds.to_string()),
            ("rounds", options.rounds.to_string()),
        ],
    )
}

/// Writes `docs/benchmarks/tls.md`.
pub(crate) fn tls(options: &Tls) -> anyhow::Result<()> {
    measure(
        "tls_cost",
        &[
            ("seconds", options.seconds.to_string()),
            ("rounds", options.rounds.to_string()),
        ],
    )
}

/// Writes `docs/benchmarks/confinement.md`.
pub(crate) fn confinement(options: &Confinement) -> anyhow::Result<()> {
    measure(
        "confinement_cost",
        &[
            ("seconds", options.seconds.to_string()),
            ("rounds", options.rounds.to_string()),
        ],
    )
}

/// Builds the programs as they are released, and runs a script of `tests/` with these flags.
pub(crate) fn measure(script: &str, flags: &[(&str, String)]) -> anyhow::Result<()> {
    release::build_programs()?;
    let script = format!("tests/{script}.py");
    let flags = flags.iter();
    let status = Command::new(python())
        .args([&script, "--write"])
        .args(flags.map(|(name, value)| format!("--{name}={value}")))
        .env("PACKHORSE_TEST_PROGRAMS", release::programs())
        .current_dir(root())
        .status()
        .with_context(|| format!("start {script}"))?;
    ensure!(status.success(), "{script}: {status}");
    Ok(())
}

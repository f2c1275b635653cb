//! Mixed hostile load for as long as one likes: `tests/soak.py`.

use crate::bench::cluster::measure;

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
    let flags = [
        ("minutes", options.minutes.to_string()),
        ("seed", options.seed.to_string()),
    ];
    measure("soak", &flags)
}

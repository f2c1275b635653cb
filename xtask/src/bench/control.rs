//! The cost of the control plane's decisions.

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::{engine::measure, machine};
use crate::workspace::root;

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// File of the report
    #[arg(long, default_value = "docs/benchmarks/control.md")]
    report: PathBuf,
}

/// A line of `crates/control/benches/control.rs`.
#[derive(Deserialize)]
struct Cost {
    what: String,
    models: u32,
    us: f64,
    per_s: f64,
}

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let costs: Vec<Cost> = measure("packhorse-control", "control")?;
    ensure!(!costs.is_empty(), "the benchmark printed nothing");
    let path = root().join(&options.report);
    fs::write(&path, report(&costs)?).with_context(|| format!("write {}", path.display()))?;
    println!("Wrote {}", path.display());
    Ok(())
}

fn report(costs: &[Cost]) -> anyhow::Result<String> {
    let mut text = format!(
        "# What the control plane's decisions cost\n\n\
         Made by `cargo xtask bench control` on one of {}.\n\n\
         The state machine of `crates/control` with 1,000 nodes of one device each, and one replica per model, two on a device. Everything \
         serves. The time is that of handling an event and of all effects that follow from it; HTTP, JSON, the database and the policy are \
         not in it. A steady cluster renews each lease, and reports, three times per lease of 5 s, samples the data plane's counts every \
         5 s, and plans every 30 s.\n\n\
         | | models | µs | per second | part of a core |\n|---|--:|--:|--:|--:|\n",
        machine()?
    );
    let mut total = 0.0;
    for cost in costs {
        let Cost {
            what,
            models,
            us,
            per_s,
        } = cost;
        let part = us * per_s / 1e6;
        total += part;
        write!(text, "| {what} | {models} | {us:.1} ")?;
        if *per_s > 0.0 {
            writeln!(text, "| {per_s:.2} | {:.2} % |", 100.0 * part)?;
        } else {
            writeln!(text, "| | |")?;
        }
    }
    writeln!(
        text,
        "| *all that is steady* | | | | {:.2} % |",
        100.0 * total
    )?;
    Ok(text)
}

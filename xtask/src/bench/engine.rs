//! The decisions per second of the serving engine, and the speed of the simulator around it.

use std::{fmt::Write as _, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::machine;
use crate::workspace::root;

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// File of the report
    #[arg(long, default_value = "docs/benchmarks/engine.md")]
    report: PathBuf,
}

/// A line of `crates/serving/benches/engine.rs`.
#[derive(Deserialize)]
struct Engine {
    discipline: String,
    replicas: u32,
    load: f64,
    requests_per_s: f64,
    decisions_per_s: f64,
    allocations_per_request: f64,
}

/// A line of `crates/simulator/benches/simulator.rs`.
#[derive(Deserialize)]
struct Simulator {
    scenario: String,
    discipline: String,
    devices: u32,
    offered_rps: f64,
    goodput_rps: f64,
    wall_s: f64,
    requests_per_s: f64,
}

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let engine: Vec<Engine> = measure("packhorse-serving", "engine")?;
    let simulator: Vec<Simulator> = measure("packhorse-simulator", "simulator")?;
    let path = root().join(&options.report);
    fs::write(&path, report(&engine, &simulator)?)
        .with_context(|| format!("write {}", path.display()))?;
    println!("Wrote {}", path.display());
    Ok(())
}

fn measure<T: for<'a> Deserialize<'a>>(package: &str, bench: &str) -> anyhow::Result<Vec<T>> {
    let output = Command::new("cargo")
        .current_dir(root())
        .args(["bench", "--package", package, "--bench", bench])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("start cargo")?;
    ensure!(output.status.success(), "the benchmark: {}", output.status);
    let text = String::from_utf8(output.stdout).context("read what the benchmark says")?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).context("read what the benchmark says"))
        .collect()
}

fn report(engine: &[Engine], simulator: &[Simulator]) -> anyhow::Result<String> {
    let mut text = format!(
        "# How fast the serving engine decides\n\n\
         Made by `cargo xtask bench engine` on one of {}.\n\n\
         ## The engine\n\n\
         One model, batches of up to 16 (8 ms and 1 ms per row), requests of one row every so often, due after 200 ms, at 0.8 and 2 \
         times what the replicas can do at best. A thin driver in virtual time around the engine; its time counts, too. A \
         decision is an action of the engine: a batch dispatched, a request refused or dropped. Allocations are all there are.\n\n\
         | discipline | replicas | load | requests/s | decisions/s | allocations per request |\n|---|--:|--:|--:|--:|--:|\n",
        machine()?
    );
    for row in engine {
        writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.0} | {:.2} |",
            row.discipline,
            row.replicas,
            row.load,
            row.requests_per_s,
            row.decisions_per_s,
            row.allocations_per_request
        )?;
    }
    text += "\n## The simulator\n\n\
        The same engine with arrivals, network and devices around it. Six GPUs: the five vision models of the thesis' chapter 6 at 500 \
        requests/s each. A thousand GPUs: five models, a million requests/s in all. \
        There, alexnet's batches of 64 travel 34 ms and compute for 10 ms: with two batches on their way a replica of `deadline` gets 2,830 of its 3,333 requests/s done, while the unlimited batches of `fixed-wait` share a link that the simulator never lets queue.\n\n\
        | scenario | discipline | devices | offered, requests/s | goodput, requests/s | wall time, s | simulated requests per second |\n\
        |---|---|--:|--:|--:|--:|--:|\n";
    for row in simulator {
        writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.0} | {:.2} | {:.0} |",
            row.scenario,
            row.discipline,
            row.devices,
            row.offered_rps,
            row.goodput_rps,
            row.wall_s,
            row.requests_per_s
        )?;
    }
    Ok(text)
}

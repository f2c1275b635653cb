//! gRPC beside the plainest two hops of tonic, and beside our own HTTP.

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::Context as _;

use super::{
    Bench, CONCURRENCIES, Pace,
    measure::{Measurement, Payload},
    report::{compare, find},
    servers::{Ceiling, Ours, OverGrpc, Server},
};
use crate::{
    bench::{machine, today},
    workspace::root,
};

/// The server that others are compared with.
const TWO_HOPS: &str = "two hops of tonic";
/// Ours, over either protocol.
const GRPC: &str = "Packhorse, gRPC";
const HTTP: &str = "Packhorse, HTTP";

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pace: Pace,
    /// File of the report
    #[arg(long, default_value = "docs/benchmarks/grpc.md")]
    report: PathBuf,
}

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let rows = Bench::run(&options.pace, "bench-grpc", |bench, dir, model| {
        let two_hops = Ceiling::grpc_two_hop(TWO_HOPS, &["--sum"])?;
        let registration = "xtask/src/bench/sum.json";
        let ours = Ours::start(HTTP, &[], dir, registration, model, bench.interrupt)?;
        let over_grpc = OverGrpc::of(&ours, GRPC)?;
        let servers: [&dyn Server; 3] = [&two_hops, &over_grpc, &ours];
        let mut rows = Vec::new();
        for payload in [Payload::Small, Payload::Large] {
            for concurrency in CONCURRENCIES {
                rows.extend(bench.in_turns(&servers, payload, concurrency)?);
            }
        }
        Ok(rows)
    })?;
    let path = root().join(&options.report);
    let page = page(&rows, &options.pace)?;
    fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
    println!("Wrote {}", path.display());
    Ok(())
}

fn page(rows: &[Measurement], pace: &Pace) -> anyhow::Result<String> {
    let mut text = format!(
        "# gRPC beside plain tonic, and beside HTTP\n\n\
         Made by `cargo xtask bench grpc --seconds {} --rounds {}` on {}, {}.\n\n\
         * {TWO_HOPS}: a server of tonic with windows of 1 MiB, which passes the raw input of each `ModelInfer` over one TCP connection to a worker process.\n  The worker adds its numbers up and answers 4 bytes.\n\
         * {GRPC}: gateway and one worker on the CPU, with a TorchScript model that sums its input on one thread.\n\
         * {HTTP}: the same gateway and worker, asked with binary tensors over HTTP/1.1.\n\n\
         The clients over gRPC are tonic's, each with a connection of its own (`packhorse-ceilings grpc-load`); those over HTTP are `packhorse-lab bench`.\n\
         Both are closed loops on the cores of the servers, and differ in what they cost themselves: between the protocols, compare the CPU time, which is that of the serving processes.\n\
         The servers are measured in turns within one run; the first turn is thrown away, and of the others the medians are shown.\n\
         Ratios are over the {TWO_HOPS} in the same run.\n",
        pace.seconds,
        pace.rounds,
        machine()?,
        today()?
    );
    for payload in [Payload::Small, Payload::Large] {
        writeln!(text, "\n## {}\n", payload.name())?;
        let of_payload = rows.iter().filter(|row| row.payload == payload);
        compare(&mut text, of_payload, |row| {
            find(rows, payload, row.concurrency, TWO_HOPS)
        })?;
        text += "\n| at once | CPU time over gRPC by that over HTTP |\n|--:|--:|\n";
        for concurrency in CONCURRENCIES {
            let cpu = |server| Some(find(rows, payload, concurrency, server)?.cpu_s);
            let both = cpu(GRPC).zip(cpu(HTTP));
            let (grpc, http) = both.context("both were measured")?;
            writeln!(text, "| {concurrency} | {:.2} |", grpc / http)?;
        }
    }
    Ok(text)
}

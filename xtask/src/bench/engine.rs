//! The decisions per second of the serving engine and of the group servers, and the speed of the simulator around them.

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
#[serde(untagged)]
enum EngineLine {
    Decisions(Engine),
    Move(Move),
    Pool(Pool),
}

/// The decisions about the models of a device's pool.
#[derive(Deserialize)]
struct Pool {
    /// The number of models.
    pooled: u32,
    /// The fraction of the models for whose weights the device has room.
    room: f64,
    load: f64,
    requests_per_s: f64,
    decisions_per_s: f64,
    allocations_per_request: f64,
}

/// The move of models from one engine to another.
#[derive(Deserialize)]
struct Move {
    models: u32,
    replicas: u32,
    load: f64,
    /// The requests that wait or are in flight.
    requests: u64,
    milliseconds: f64,
}

/// The decisions of a discipline.
#[derive(Deserialize)]
struct Engine {
    discipline: String,
    /// The number of models, none of which has a device in common with another one.
    components: u32,
    /// The number of threads, each with an engine for its part of the models.
    threads: u32,
    replicas: u32,
    load: f64,
    requests_per_s: f64,
    decisions_per_s: f64,
    /// Absent where several threads are measured.
    allocations_per_request: Option<f64>,
}

/// A line of `crates/simulator/benches/simulator.rs`.
#[derive(Deserialize)]
#[serde(untagged)]
enum SimulatorLine {
    Run(Simulator),
    Decisions(SimulatedRow),
}

/// The speed of the simulator.
#[derive(Deserialize)]
struct Simulator {
    scenario: String,
    discipline: String,
    devices: u32,
    offered_rps: f64,
    goodput_rps: f64,
    seconds: f64,
    requests_per_s: f64,
}

/// The decisions of a discipline in the simulator.
#[derive(Deserialize)]
struct SimulatedRow {
    discipline: String,
    replicas: u32,
    load: f64,
    requests_per_s: f64,
    decisions_per_s: f64,
    mean_batch: f64,
    in_time_percent: f64,
}

/// The heading of the section that was written by hand, which is kept.
const KEPT: &str = "\n## A thousand GPUs, since";

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (mut engine, mut moves, mut pools) = (Vec::new(), Vec::new(), Vec::new());
    for line in measure("packhorse-serving", "engine")? {
        match line {
            EngineLine::Decisions(row) => engine.push(row),
            EngineLine::Move(row) => moves.push(row),
            EngineLine::Pool(row) => pools.push(row),
        }
    }
    let (components, engine): (Vec<Engine>, Vec<Engine>) =
        engine.into_iter().partition(|row| row.components > 1);
    let (mut simulator, mut decisions) = (Vec::new(), Vec::new());
    for line in measure("packhorse-simulator", "simulator")? {
        match line {
            SimulatorLine::Run(run) => simulator.push(run),
            SimulatorLine::Decisions(row) => decisions.push(row),
        }
    }
    let path = root().join(&options.report);
    let picture = path.with_extension("svg");
    let name = picture.file_name().context("the report has a name")?;
    let mut text = report(
        &engine,
        &components,
        &moves,
        &pools,
        &decisions,
        &simulator,
        &name.to_string_lossy(),
    )?;
    let before = fs::read_to_string(&path).unwrap_or_default();
    text += before.find(KEPT).map_or("", |kept| &before[kept..]);
    for (path, text) in [(&path, text), (&picture, figure(&engine)?)] {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        println!("Wrote {}", path.display());
    }
    Ok(())
}

/// Runs a benchmark that prints a JSON object per line.
pub(super) fn measure<T: for<'a> Deserialize<'a>>(
    package: &str,
    bench: &str,
) -> anyhow::Result<Vec<T>> {
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

fn report(
    engine: &[Engine],
    components: &[Engine],
    moves: &[Move],
    pools: &[Pool],
    decisions: &[SimulatedRow],
    simulator: &[Simulator],
    picture: &str,
) -> anyhow::Result<String> {
    let mut text = format!(
        "# How fast the serving engine decides\n\n\
         Made by `cargo xtask bench engine` on one of {}.\n\n\
         ## The engine\n\n\
         One model, batches of up to 16 (8 ms and 1 ms per row), requests of one row every so often, due after 200 ms, at 0.8 and 2 \
         times what the replicas can do at best. A thin driver in virtual time around the engine; its time counts, too. A \
         decision is an action of the engine: a batch dispatched, a request refused or dropped. Seconds are of processor time on this page, since the \
         machine also does other work. Allocations are all there are. The last \
         column is the rate over that at 0.8 of the load in the same run. A discipline that decides on fewer than 100,000 requests/s is not measured with more \
         replicas: it looks at all of them. `fixed-wait` refuses nothing, so that under overload the batches \
         at its workers, and the memory for them, grow for as long as the run lasts.\n\n\
         | discipline | replicas | load | requests/s | decisions/s | allocations per request | over 0.8 |\n|---|--:|--:|--:|--:|--:|--:|\n",
        machine()?
    );
    for row in engine {
        let same = |other: &&Engine| {
            other.load < 1.0
                && (&other.discipline, other.replicas) == (&row.discipline, row.replicas)
        };
        let base = engine
            .iter()
            .find(same)
            .map_or(f64::NAN, |base| base.requests_per_s);
        writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.0} | {:.2} | {:.2} |",
            row.discipline,
            row.replicas,
            row.load,
            row.requests_per_s,
            row.decisions_per_s,
            row.allocations_per_request.unwrap_or(f64::NAN),
            row.requests_per_s / base
        )?;
    }
    write!(
        text,
        "\n![Time per request over the number of replicas]({picture})\n"
    )?;
    text += "\n## Two engines\n\n\
        Two models with 100 replicas each at 0.8 of the load, without a device in common: decided by one engine on one thread, or each by an \
        engine on a thread of its own. The rates of the two threads, which run at the same time, are added. The best of seven rounds each. \
        [drivers.md](drivers.md) says how a gateway has several.\n\n\
        | threads | requests/s | decisions/s | over one thread |\n|--:|--:|--:|--:|\n";
    let one = components.iter().find(|row| row.threads == 1);
    let one = one.map_or(f64::NAN, |one| one.requests_per_s);
    for row in components {
        writeln!(
            text,
            "| {} | {:.0} | {:.0} | {:.2} |",
            row.threads,
            row.requests_per_s,
            row.decisions_per_s,
            row.requests_per_s / one
        )?;
    }
    write_pools(&mut text, pools)?;
    write_moves(&mut text, moves)?;
    text += "\n## The group servers\n\n\
        `flex`, `flex-np` and `clockwork` decide for all models of a group of devices together, in the simulator only. So the same model, devices and loads here run in \
        the simulator, without a network and with Poisson arrivals, whose time counts, too; and so do the disciplines of the engine, for comparison. A \
        decision is a batch or a dropped request. The last column is the part of the requests within 200 ms.\n\n\
        | discipline | replicas | load | requests/s | decisions/s | mean batch | in time |\n|---|--:|--:|--:|--:|--:|--:|\n";
    for row in decisions {
        writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.0} | {:.1} | {:.1} % |",
            row.discipline,
            row.replicas,
            row.load,
            row.requests_per_s,
            row.decisions_per_s,
            row.mean_batch,
            row.in_time_percent
        )?;
    }
    text += "\n## The simulator\n\n\
        The same engine, or a group server, with arrivals, network and devices around it. Six GPUs: the five vision models of the thesis' chapter 6 at 500 \
        requests/s each. A thousand GPUs: five models, a million requests/s in all. \
        There, alexnet's batches of 64 travel 34 ms and compute for 10 ms, so that a replica needs five of them under way to be busy; the links \
        carry any number together, which flatters `fixed-wait`. With links that queue \
        (`scenarios/scale/thousand-queue.toml`) a device gets 1,873 requests/s, and alexnet has 290 devices instead of 150.\n\n\
        | scenario | discipline | devices | offered, requests/s | goodput, requests/s | seconds | simulated requests per second |\n\
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
            row.seconds,
            row.requests_per_s
        )?;
    }
    Ok(text)
}

/// Writes the section about pools.
fn write_pools(text: &mut String, pools: &[Pool]) -> anyhow::Result<()> {
    *text += "\n## The pool of a device\n\n\
        Models that share one device, with the same batches and objective, and requests for each model in turn.\n\
        The load is relative to full batches: with many models nearly every batch has one row, so that a tenth of the load is already more than the device can do.\n\
        A batch of one row costs the engine as much as one of sixteen.\n\
        Where the device has room for a tenth of the models, the others are copied to it when requests of them wait, each in a millisecond.\n\
        Most requests then take a copy besides a batch.\n\n\
        | models | room for | load | requests/s | decisions/s | allocations per request |\n|--:|--:|--:|--:|--:|--:|\n";
    for row in pools {
        writeln!(
            text,
            "| {} | {} % | {} | {:.0} | {:.0} | {:.2} |",
            row.pooled,
            row.room * 100.0,
            row.load,
            row.requests_per_s,
            row.decisions_per_s,
            row.allocations_per_request
        )?;
    }
    Ok(())
}

/// Writes the section about moving models between engines.
fn write_moves(text: &mut String, moves: &[Move]) -> anyhow::Result<()> {
    *text += "\n## Moving models between engines\n\n\
        Models with ten replicas each move to an engine that had none, with their queues, replicas and batches in flight; as many models stay. The \
        processor time of one move, the median of fourteen, half of which are the way back. A gateway moves models only where a plan couples two \
        components or leaves the engines uneven; all of its engines stop meanwhile (`packhorse_engine_pause_seconds`).\n\n\
        | models | replicas | load | requests | ms | ns per request |\n|--:|--:|--:|--:|--:|--:|\n";
    for row in moves {
        writeln!(
            text,
            "| {} | {} | {} | {} | {:.2} | {:.0} |",
            row.models,
            row.replicas,
            row.load,
            row.requests,
            row.milliseconds,
            row.milliseconds * 1e6 / row.requests as f64
        )?;
    }
    Ok(())
}

/// Width and height of the figure's plot area, in pixels, and the margin around it.
const PLOT: (f64, f64, f64) = (520.0, 260.0, 60.0);

/// The colours of the figure's lines.
const COLOURS: [&str; 10] = [
    "#1b6ca8", "#d1495b", "#5b8c5a", "#8d6a9f", "#c77b0a", "#3a9d9d", "#a05a2c", "#c2559d",
    "#6b7280", "#94a112",
];

/// Draws the time per request over the number of replicas, both on a logarithmic scale, with a line per discipline and load.
fn figure(engine: &[Engine]) -> anyhow::Result<String> {
    let micros = |row: &Engine| 1e6 / row.requests_per_s;
    let most_replicas = engine.iter().map(|row| row.replicas).max().unwrap_or(1);
    let decades = f64::from(most_replicas).log10().ceil().max(1.0);
    let costs = || engine.iter().map(micros);
    let low = costs().fold(f64::INFINITY, f64::min).log10().floor();
    let high = costs().fold(0.0, f64::max).log10().ceil().max(low + 1.0);
    let (width, height, margin) = PLOT;
    let x = |replicas: u32| margin + width * f64::from(replicas).log10() / decades;
    let y = |micros: f64| margin / 2.0 + height * (high - micros.log10()) / (high - low);
    let (all_width, all_height) = (width + 4.0 * margin, height + 1.5 * margin);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_width} {all_height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for decade in 0..=decades as u32 {
        let (at, bottom) = (x(10_u32.pow(decade)), margin / 2.0 + height);
        writeln!(
            svg,
            "<path d=\"M{at:.1} {:.1}V{bottom:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            margin / 2.0,
            bottom + 16.0,
            10_u32.pow(decade)
        )?;
    }
    for decade in low as i32..=high as i32 {
        let at = y(10_f64.powi(decade));
        writeln!(
            svg,
            "<path d=\"M{margin} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} µs</text>",
            margin + width,
            margin - 6.0,
            at + 4.0,
            10_f64.powi(decade)
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">replicas</text>",
        margin + width / 2.0,
        all_height - 12.0
    )?;
    let mut lines: Vec<(&str, f64)> = Vec::new();
    for row in engine {
        let line = (row.discipline.as_str(), row.load);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    for ((discipline, load), colour) in lines.into_iter().zip(COLOURS.into_iter().cycle()) {
        let of_line =
            |row: &&Engine| row.discipline == discipline && row.load.total_cmp(&load).is_eq();
        let mut points = String::new();
        let mut last = (0.0, 0.0);
        for row in engine.iter().filter(of_line) {
            last = (x(row.replicas), y(micros(row)));
            write!(points, "{:.1},{:.1} ", last.0, last.1)?;
        }
        writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{discipline}, load {load}</text>",
            last.0 + 8.0,
            last.1 + 4.0
        )?;
    }
    svg += "</svg>\n";
    Ok(svg)
}

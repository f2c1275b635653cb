//! The data plane beside yardsticks: the programs of `lab/ceilings`, which do less on the same path, in the same run and in turns, so
//! that other load of the machine affects all of them.

mod figure;
pub(crate) mod grpc;
mod measure;
mod report;
mod servers;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use serde::Deserialize;

use self::{
    measure::{Generator, IMAGE_BYTES, LargeMessage, Lateness, Measurement, Payload, measure},
    report::Results,
    servers::{AwakeCores, Ceiling, Ours, Server, ceilings},
};
use crate::{
    bench::empty_folder,
    local::Interrupt,
    release,
    workspace::{cargo_build, python, root, succeed, use_programs},
};

/// The numbers of clients of the closed loops.
const CONCURRENCIES: [u32; 3] = [1, 8, 32];
/// The part of the sink's capacity at which the generator's own latency is measured.
const GENERATOR_LOAD: f64 = 0.8;
/// The clients of the sink's capacity, and the connections of the generator. With more of them the requests that are under way do not fit into the caches,
/// and sink and generator both become slower.
const GENERATOR_CONNECTIONS: u32 = 8;
/// The rows of large batches, each of [`IMAGE_BYTES`]: 9.6 and 19.2 MB, as in figure 4.4 of the thesis.
const LARGE: [u64; 2] = [16, 32];

/// How long and how often a benchmark measures.
#[derive(clap::Args)]
pub(crate) struct Pace {
    /// Time of one measurement, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of measurements of each, of which the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Use the release programs that are there, instead of building them
    #[arg(long)]
    no_build: bool,
}

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pace: Pace,
    /// File of the report
    #[arg(long, default_value = "docs/benchmarks/data-plane.md")]
    report: PathBuf,
    /// Measure only this part, and write no report
    #[arg(long, value_name = "PART", conflicts_with = "report")]
    only: Vec<Part>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Binary tensors of 602,112 bytes
    Large,
    /// Binary tensors of 64 bytes
    Small,
    /// Binary tensors of 64 bytes while the cores do not sleep
    Awake,
    /// Numbers as JSON
    Json,
    /// Batching on and off
    Batching,
    /// The stages of a request
    Stages,
    /// Large batches to a worker
    Messages,
    /// The generator itself
    Generator,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// The rate of a TCP connection, as `packhorse-ceilings stream` prints it.
#[derive(Deserialize)]
struct Streamed {
    bytes_per_s: f64,
}

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let results = Bench::run(&options.pace, "bench-data-plane", |bench, dir, model| {
        bench.measure_all(dir, model, |part| options.wants(part))
    })?;
    if !options.only.is_empty() {
        return Ok(());
    }
    let path = root().join(&options.report);
    let picture = path.with_extension("svg");
    let name = picture.file_name().context("the report has a name")?;
    let name = name.to_string_lossy().into_owned();
    for (path, text) in [
        (
            &path,
            results.to_markdown(options.pace.seconds, options.pace.rounds, &name)?,
        ),
        (&picture, figure::draw(&results)?),
    ] {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        println!("Wrote {}", path.display());
    }
    Ok(())
}

fn build() -> anyhow::Result<()> {
    release::build_programs()?;
    succeed(cargo_build(&["packhorse-ceilings"]).arg("--release"))
}

/// Runs this thread, and the processes that it starts meanwhile, on one core.
fn on_core<T>(core: usize, run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let this = Pid::from_raw(0);
    let before = sched_getaffinity(this).context("read the cores of this thread")?;
    let mut one = CpuSet::new();
    one.set(core).context("choose a core")?;
    sched_setaffinity(this, &one).with_context(|| format!("run on core {core}"))?;
    let result = run();
    sched_setaffinity(this, &before).context("run on all cores again")?;
    result
}

/// The settings of all measurements.
struct Bench<'a> {
    pace: &'a Pace,
    interrupt: &'a Interrupt,
    generator: Generator,
}

impl Bench<'_> {
    /// Builds the programs, and measures with the model that all servers have, in a folder of this name.
    fn run<T>(
        pace: &Pace,
        folder: &str,
        measure: impl FnOnce(&Bench<'_>, &Path, &Path) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        ensure!(pace.rounds > 0, "--rounds: at least 1");
        if !pace.no_build {
            build()?;
        }
        use_programs(release::programs());
        let interrupt = Interrupt::listen()?;
        let dir = empty_folder(folder)?;
        let (model, numbers) = (dir.join("sum.pt"), dir.join("numbers.npy"));
        let mut export = Command::new(python());
        export
            .args(["-Wignore", "xtask/src/bench/sum.py"])
            .args([&model, &numbers]);
        interrupt.run(&mut export)?;
        let bench = Bench {
            pace,
            interrupt: &interrupt,
            generator: Generator::new(numbers),
        };
        measure(&bench, &dir, &model)
    }

    fn measure_all(
        &self,
        dir: &Path,
        model: &Path,
        wants: impl Fn(Part) -> bool,
    ) -> anyhow::Result<Results> {
        let load = fs::read_to_string("/proc/loadavg").context("read the load average")?;
        let load = load.split(' ').next().unwrap_or_default().to_owned();
        let sink = Ceiling::sink("HTTP server alone", &[])?;
        let parser = Ceiling::sink("HTTP server and serde_json", &["--parse-json"])?;
        let fresh = Ceiling::two_hop("two hops", &[], &[])?;
        let kept = Ceiling::two_hop("two hops, kept memory", &["--kept"], &[])?;
        let sum = Ceiling::two_hop("two hops, kept memory, sum", &["--kept"], &["--sum"])?;
        let registration = "xtask/src/bench/sum.json";
        let ours = Ours::start(
            "Packhorse, shared memory",
            &[],
            &dir.join("batching"),
            registration,
            model,
            self.interrupt,
        )?;
        let tcp = Ours::start(
            "Packhorse, TCP",
            &["--shared-memory-links", "off"],
            &dir.join("tcp"),
            registration,
            model,
            self.interrupt,
        )?;
        let registration = "xtask/src/bench/sum-single.json";
        let single = Ours::start(
            "Packhorse, batching off",
            &[],
            &dir.join("single"),
            registration,
            model,
            self.interrupt,
        )?;

        let mut results = Results {
            load,
            ..Results::default()
        };
        let all: [&dyn Server; 6] = [&sink, &fresh, &kept, &sum, &tcp, &ours];
        for (part, payload) in [(Part::Large, Payload::Large), (Part::Small, Payload::Small)] {
            for concurrency in CONCURRENCIES.into_iter().filter(|_| wants(part)) {
                let rows = self.in_turns(&all, payload, concurrency)?;
                results.binary.extend(rows);
            }
        }
        if wants(Part::Awake) {
            results.awake = self.measure_awake(dir, model, &fresh)?;
        }
        if wants(Part::Json) {
            results.json = self.in_turns(&[&parser, &ours], Payload::Json, 8)?;
        }
        for payload in [Payload::Large, Payload::Small] {
            if wants(Part::Batching) {
                let rows = self.in_turns(&[&ours, &single], payload, 1)?;
                results.batching.extend(rows);
            }
        }
        for payload in [Payload::Large, Payload::Small] {
            if wants(Part::Stages) {
                let stages = self.generator.stages(&ours, payload, self.pace.seconds)?;
                for stage in &stages {
                    println!("{payload:?} {}: {:.3} ms", stage.name, stage.mean_ms);
                }
                results.stages.push((payload, stages));
            }
        }
        for rows in LARGE {
            for link in [&tcp, &ours] {
                if wants(Part::Messages) {
                    let large =
                        self.median(|| self.large_message(link, rows), LargeMessage::ratio)?;
                    println!("{large}");
                    results.large.push(large);
                }
            }
        }
        if wants(Part::Generator) {
            results.generator = self.measure_generator()?;
        }
        Ok(results)
    }

    /// Measures the plain two hops, and again with cores that do not sleep, beside ours, which keeps them from it while requests come. Returns nothing
    /// if this process may not do so.
    fn measure_awake(
        &self,
        dir: &Path,
        model: &Path,
        fresh: &Ceiling,
    ) -> anyhow::Result<Vec<Measurement>> {
        let awake = AwakeCores(fresh);
        if let Err(error) = awake.prepare() {
            println!("Not measured, cores that do not sleep: {error:#}");
            return Ok(Vec::new());
        }
        let start = |name, folder, flags: &[&str]| {
            Ours::start(
                name,
                &[&["--wake-latency-us", "0"], flags].concat(),
                &dir.join(folder),
                "xtask/src/bench/sum.json",
                model,
                self.interrupt,
            )
        };
        let tcp = start(
            "Packhorse, TCP, `--wake-latency-us 0`",
            "awake-tcp",
            &["--shared-memory-links", "off"],
        )?;
        let shared = start(
            "Packhorse, shared memory, `--wake-latency-us 0`",
            "awake",
            &[],
        )?;
        let mut rows = Vec::new();
        for concurrency in CONCURRENCIES {
            // Ours keep the cores awake for up to 200 ms longer. The cores sleep again as soon as the two hops before `fresh` have been measured.
            let all: [&dyn Server; 4] = [fresh, &tcp, &shared, &awake];
            rows.extend(self.in_turns(&all, Payload::Small, concurrency)?);
        }
        Ok(rows)
    }

    /// Measures the generator at a part of what a sink does. Each has a core of its own.
    fn measure_generator(&self) -> anyhow::Result<Vec<Lateness>> {
        let sink = on_core(0, || Ceiling::sink("HTTP server on one core", &[]))?;
        on_core(1, || {
            let (clients, seconds) = (GENERATOR_CONNECTIONS, self.pace.seconds);
            let lateness = |arrivals| {
                // What the server can do wavers with the machine: it is measured right before.
                let capacity = measure(&sink, &self.generator, Payload::Large, clients, seconds)?;
                let rate = GENERATOR_LOAD * capacity.rate_rps;
                self.generator
                    .lateness(&sink, rate, arrivals, clients, seconds)
            };
            let median = |arrivals| self.median(|| lateness(arrivals), |row| row.p99_ms);
            Ok(vec![median("uniform")?, median("poisson")?])
        })
    }

    /// Measures once a round, and returns the measurement of which the number is the median.
    fn median<T>(
        &self,
        measure: impl Fn() -> anyhow::Result<T>,
        number: impl Fn(&T) -> f64,
    ) -> anyhow::Result<T> {
        let rounds = 0..self.pace.rounds;
        let mut measured: Vec<T> = rounds.map(|_| measure()).collect::<Result<_, _>>()?;
        measured.sort_by(|a, b| number(a).total_cmp(&number(b)));
        Ok(measured.swap_remove(measured.len() / 2))
    }

    /// Measures servers in turns, and returns the median of each. The first turn warms up.
    fn in_turns(
        &self,
        servers: &[&dyn Server],
        payload: Payload,
        concurrency: u32,
    ) -> anyhow::Result<Vec<Measurement>> {
        let mut rounds = vec![Vec::new(); servers.len()];
        for round in 0..=self.pace.rounds {
            for (server, measured) in servers.iter().zip(&mut rounds) {
                ensure!(!self.interrupt.is_raised(), "interrupted");
                let seconds = self.pace.seconds;
                let measurement = measure(*server, &self.generator, payload, concurrency, seconds)?;
                if round > 0 {
                    measured.push(measurement);
                }
            }
        }
        let medians = rounds.iter().map(|rounds| Measurement::median(rounds));
        let medians: Vec<Measurement> = medians.collect::<Option<_>>().context("no round")?;
        for row in &medians {
            println!("{row}");
        }
        Ok(medians)
    }

    fn large_message(&self, ours: &Ours, rows: u64) -> anyhow::Result<LargeMessage> {
        let bytes = rows * IMAGE_BYTES;
        let mut stream = Command::new(ceilings());
        stream.args(["stream", "--bytes", &bytes.to_string()]);
        stream.args(["--seconds", &self.pace.seconds.to_string()]);
        let output = stream
            .stderr(Stdio::inherit())
            .output()
            .context("start the stream")?;
        ensure!(output.status.success(), "the stream: {}", output.status);
        let streamed: Streamed =
            serde_json::from_slice(&output.stdout).context("read what the stream says")?;
        let stages = self
            .generator
            .stages(ours, Payload::Images(rows), self.pace.seconds)?;
        let network = stages.iter().find(|stage| stage.name == "network");
        Ok(LargeMessage {
            server: ours.name().to_owned(),
            bytes,
            stream_bytes_per_s: streamed.bytes_per_s,
            network_ms: network.context("there is a stage `network`")?.mean_ms,
        })
    }
}

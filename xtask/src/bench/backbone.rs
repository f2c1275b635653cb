//! Models that share a backbone on the CPU: eight heads on one `ResNet50` beside one of them alone, from the client's socket on, at the same total
//! load. Both clusters run all the time and are measured in turns, so that other load of the machine affects both.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::json;

use super::{build_release_programs, empty_folder, machine, today};
use crate::{
    local::{AgentFlags, Interrupt, LocalCluster},
    processes::packhorse_pids,
    workspace::{program, python, root},
};

const SCRIPT: &str = "xtask/src/bench/backbone.py";
const HEADS: usize = 8;
/// The clients of all models together, which keep batches of eight full.
const CLIENTS: usize = 24;

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Time of one measurement, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Number of measurements of each, of which the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Use the programs beside this one, which are those of the profile `dev` and slower, instead of building release programs
    #[arg(long)]
    dev: bool,
    /// File of the report
    #[arg(long, default_value = "docs/benchmarks/backbone.md")]
    report: PathBuf,
}

/// The part of a report of `packhorse-lab bench` that counts.
#[derive(Deserialize)]
struct LoadReport {
    requests: Requests,
    throughput_rps: f64,
    latency_ms: Quantiles,
}

#[derive(Deserialize)]
struct Requests {
    all: u64,
    answered: u64,
}

#[derive(Deserialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

/// A cluster, and its measurements.
struct Side {
    what: String,
    models: Vec<String>,
    state_dir: PathBuf,
    cluster: LocalCluster,
    answer: Vec<u8>,
    /// The workers before any load.
    at_rest: WorkerMemory,
    rounds: Vec<Round>,
}

/// The memory of a cluster's workers together, in MiB.
#[derive(Clone, Copy, Default)]
struct WorkerMemory {
    workers: usize,
    /// The memory that the processes have for themselves now.
    private: f64,
    /// The most memory that they have had, with libraries and the memory that they share with the gateway.
    peak: f64,
}

struct Round {
    images_per_s: f64,
    /// The medians over the models.
    p50_ms: f64,
    p99_ms: f64,
}

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.rounds > 0, "--rounds: at least 1");
    if !options.dev {
        build_release_programs()?;
    }
    let interrupt = Interrupt::listen()?;
    let dir = empty_folder("bench-backbone")?;
    let mut export = Command::new(python());
    export.args(["-Wignore", SCRIPT, "export"]).arg(&dir);
    interrupt.run(export.arg(HEADS.to_string()))?;

    let mut one = Side::start(&dir, 1, &interrupt)?;
    let mut all = Side::start(&dir, HEADS, &interrupt)?;
    for side in [&mut one, &mut all] {
        side.answer = side.ask(&dir, &interrupt)?;
        side.at_rest = side.workers()?;
    }
    for _ in 0..options.rounds {
        for side in [&mut one, &mut all] {
            ensure!(!interrupt.is_raised(), "interrupted");
            let round = side.measure(options.seconds)?;
            println!("{}: {:.1} images/s", side.what, round.images_per_s);
            side.rounds.push(round);
        }
    }
    let text = page(options, &one, &all)?;
    let path = root().join(&options.report);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    println!("Wrote {}", path.display());
    Ok(())
}

impl Side {
    /// Starts a cluster that serves the first models.
    fn start(dir: &Path, models: usize, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let state_dir = dir.join(format!("cluster-{models}"));
        fs::create_dir_all(&state_dir)?;
        // A thread for the network; the other cores are for client and gateway.
        let agents = [AgentFlags::new("local", "cpu:1")];
        let mut cluster = LocalCluster::start_with(
            &["--shared-backbones", "on"],
            &state_dir,
            [0, 0],
            &agents,
            interrupt,
        )?;
        let names: Vec<String> = (0..models).map(|head| format!("head-{head}")).collect();
        for name in &names {
            let registration = state_dir.join(format!("{name}.json"));
            let tensor = |name: &str, shape: &[i64]| json!([{"name": name, "datatype": "FP32", "shape": shape}]);
            let content = json!({
                "name": name,
                "max_batch_size": 8,
                "slo_ms": 10_000,
                "rate_rps": 16 / models,
                "rate": "declared",
                "inputs": tensor("image", &[-1, 3, 224, 224]),
                "outputs": tensor("logits", &[-1, 100]),
            });
            fs::write(&registration, content.to_string())?;
            let artifact = dir.join(format!("{name}.pt"));
            cluster.register(name, &registration, &artifact, Stdio::null())?;
        }
        for name in &names {
            cluster.wait_until_ready(name)?;
        }
        let what = match models {
            1 => "one model".to_owned(),
            _ => format!("{models} models with one backbone"),
        };
        Ok(Self {
            what,
            models: names,
            state_dir,
            cluster,
            answer: Vec::new(),
            at_rest: WorkerMemory::default(),
            rounds: Vec::new(),
        })
    }

    /// Returns what the first model answers to a batch.
    fn ask(&self, dir: &Path, interrupt: &Interrupt) -> anyhow::Result<Vec<u8>> {
        let file = dir.join(format!("answer-{}", self.models.len()));
        let mut ask = Command::new(python());
        ask.args([SCRIPT, "ask"]);
        ask.arg(self.cluster.endpoints.inference.to_string());
        interrupt.run(ask.arg(&self.models[0]).arg(&file))?;
        fs::read(&file).with_context(|| format!("read {}", file.display()))
    }

    /// Measures all models at the same time, with an equal part of the clients each.
    fn measure(&self, seconds: u64) -> anyhow::Result<Round> {
        let clients = CLIENTS / self.models.len();
        let start = |model: &String| -> anyhow::Result<Child> {
            let mut client = Command::new(program("packhorse-lab")?);
            client
                .args(["bench", model, "--json", "--slo", "10000", "--warm-up", "3"])
                .args(["--duration", &seconds.to_string()])
                .args(["--concurrency", &clients.to_string()])
                .args([
                    "--url",
                    &format!("http://{}", self.cluster.endpoints.inference),
                ])
                .stdout(Stdio::piped());
            client.spawn().context("start packhorse")
        };
        let running: Vec<Child> = self.models.iter().map(start).collect::<Result<_, _>>()?;
        let mut reports: Vec<LoadReport> = Vec::new();
        for child in running {
            let output = child.wait_with_output().context("wait for packhorse")?;
            ensure!(
                output.status.success(),
                "packhorse-lab bench: {}",
                output.status
            );
            let report: LoadReport = serde_json::from_slice(&output.stdout)?;
            ensure!(
                report.requests.answered == report.requests.all,
                "not all requests were answered"
            );
            reports.push(report);
        }
        let middle = |number: fn(&LoadReport) -> f64| median(reports.iter().map(number));
        Ok(Round {
            images_per_s: reports.iter().map(|report| report.throughput_rps).sum(),
            p50_ms: middle(|report| report.latency_ms.p50),
            p99_ms: middle(|report| report.latency_ms.p99),
        })
    }

    fn workers(&self) -> anyhow::Result<WorkerMemory> {
        let mut found = WorkerMemory::default();
        for pid in packhorse_pids(&self.state_dir) {
            let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
                continue;
            };
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
            let mib = |name: &str| -> anyhow::Result<f64> {
                let kib = field(name).with_context(|| format!("a process has {name}"))?;
                let kib: f64 = kib.trim().trim_end_matches("kB").trim().parse()?;
                Ok(kib / 1024.0)
            };
            // The system keeps 15 bytes of a name.
            if field("Name:").is_some_and(|name| "packhorse-worker".starts_with(name.trim())) {
                found.workers += 1;
                found.private += mib("RssAnon:")?;
                found.peak += mib("VmHWM:")?;
            }
        }
        Ok(found)
    }
}

fn page(options: &Options, one: &Side, all: &Side) -> anyhow::Result<String> {
    let (flag, build) = if options.dev {
        (" --dev", "our programs as the profile `dev` builds them")
    } else {
        ("", "release build")
    };
    let Options {
        seconds, rounds, ..
    } = options;
    let mut page = format!(
        "# Eight models with one backbone on the CPU\n\n\
         Made by `cargo xtask bench backbone --seconds {seconds} --rounds {rounds}{flag}` on {}, {}, {build}.\n\n\
         The models are one ResNet50 with random weights and a linear layer of 100 classes each (`{SCRIPT}`); the weights of a layer have 0.8 MB, those \
         of the rest 94 MB. Two clusters, each with an agent that offers `--devices cpu:1`: one has the first model, the other all {HEADS}, which it \
         finds to share a backbone and serves with one worker. {CLIENTS} clients in all, with one image each, ask again as soon as they have their \
         answer; the models have equal parts of them. Measured in turns; medians of the rounds. *Own memory* is what the worker has for itself after its \
         start and a batch of eight images: weights, activations, and what libtorch needs. *Peak* is after the load, with libraries, the inputs that \
         wait for each model, and the memory that its links share with the gateway, of which eight models have more.\n\n\
         | | images/s | ratio | p50 ms | p99 ms | workers | own memory, MiB | ratio | peak, MiB | ratio |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        machine()?,
        today()?,
    );
    let peak_alone = one.workers()?.peak;
    for side in [one, all] {
        let pairs = side.rounds.iter().zip(&one.rounds);
        let ratio = median(pairs.map(|(this, one)| this.images_per_s / one.images_per_s));
        let number = |number: fn(&Round) -> f64| median(side.rounds.iter().map(number));
        let WorkerMemory { workers, peak, .. } = side.workers()?;
        let private = side.at_rest.private;
        writeln!(
            page,
            "| {} | {:.1} | {ratio:.2} | {:.0} | {:.0} | {workers} | {private:.0} | {:.2} | {peak:.0} | {:.2} |",
            side.what,
            number(|round| round.images_per_s),
            number(|round| round.p50_ms),
            number(|round| round.p99_ms),
            private / one.at_rest.private,
            peak / peak_alone,
        )?;
    }
    let equal = if one.answer == all.answer {
        "the same bits"
    } else {
        "**other bits**"
    };
    writeln!(
        page,
        "\nTo a batch of eight images the first model answers {equal} in both clusters. In a batch with images of several models the convolutions are \
         those of the whole batch, and a head's product has the rows of its model only, which libtorch may sum in another order than more rows.\n"
    )?;
    Ok(page)
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = numbers.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

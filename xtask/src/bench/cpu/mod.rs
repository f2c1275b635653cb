//! A network on the CPU: libtorch alone with its defaults and with what a worker does to be fast, a package that was compiled ahead of
//! time, the pipeline of a worker, and Packhorse from the client's socket on. All compute on one thread, and are measured in turns within
//! one run, so that other load of the machine affects all of them.

mod measured;
mod report;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, de::DeserializeOwned};

pub(crate) use self::measured::Options;
use self::{
    measured::{BATCH, CLIENTS, Measured, Rounds, SINGLE_WAYS, WAYS, Way},
    report::Results,
};
use crate::{
    bench::{build_release_programs, empty_folder},
    local::{AgentFlags, Interrupt, LocalCluster},
    processes::{Usage, packhorse_pids, usage},
    workspace::{program, python, root},
};

/// The registration, which is the signature of the worker's own benchmark too.
const REGISTRATION: &str = "xtask/src/bench/mobilenet.json";
const MODEL: &str = "mobilenet";
/// The time of a load before it is measured, in seconds: what is in flight at the end was not answered in its window, and at the beginning
/// of the window as much must be under way.
const WARM_UP_S: u64 = 1;
/// The environment by which glibc keeps memory that is freed, as workers have it.
const KEPT_MEMORY: [(&str, &str); 4] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_MAX_", "0"),
    ("MALLOC_TRIM_THRESHOLD_", "70368744177664"),
    ("MALLOC_TOP_PAD_", "16777216"),
];

/// The part of a report of `packhorse-worker bench` that counts.
#[derive(Deserialize)]
struct WorkerReport {
    requests_per_s: f64,
    batch_ms: Option<Quantiles>,
    cpu_ms_per_batch: f64,
    minor_faults_per_batch: f64,
    start_s: f64,
}

/// The part of a report of `packhorse-lab bench` that counts.
#[derive(Deserialize)]
struct LoadReport {
    requests: Requests,
    throughput_rps: f64,
    latency_ms: Quantiles,
    errors: serde_json::Value,
}

#[derive(Deserialize)]
struct Requests {
    all: u64,
    answered: u64,
}

#[derive(Deserialize)]
struct Quantiles {
    p50: f64,
}

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.rounds > 0, "--rounds: at least 1");
    if !options.dev {
        build_release_programs()?;
    }
    let interrupt = Interrupt::listen()?;
    let dir = empty_folder("bench-cpu")?;
    let state_dir = dir.join("cluster");
    fs::create_dir_all(&state_dir).with_context(|| format!("create {}", state_dir.display()))?;
    let (script, package) = (dir.join("model.pt"), dir.join("model.pt2"));
    let mut export = Command::new(python());
    export.args(["-Wignore", "xtask/src/bench/mobilenet.py"]);
    export.arg(&script);
    if !options.without_package {
        export.arg(&package);
    }
    interrupt.run(&mut export)?;
    // A thread for the network, as everywhere here; the other cores are for client and gateway.
    let agents = [AgentFlags::new("local", "cpu:1")];
    let mut cluster = LocalCluster::start(&state_dir, [0, 0], &agents, &interrupt)?;
    cluster.register(MODEL, Path::new(REGISTRATION), &script, Stdio::null())?;
    cluster.wait_until_ready(MODEL)?;

    let bench = Bench {
        seconds: options.seconds,
        interrupt: &interrupt,
        script,
        package,
        state_dir,
        cluster,
    };
    let results = Results {
        saturated: bench.in_turns(&ways(&WAYS, options), BATCH, options.rounds)?,
        single: bench.in_turns(&ways(&SINGLE_WAYS, options), 1, options.rounds)?,
    };
    let path = root().join(&options.report);
    let text = results.to_markdown(options)?;
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    println!("Wrote {}", path.display());
    Ok(())
}

/// Returns the ways that the flags ask for.
fn ways(all: &[Way], options: &Options) -> Vec<Way> {
    let wanted = |way: &Way| *way != Way::Package || !options.without_package;
    all.iter().copied().filter(wanted).collect()
}

/// The settings of all measurements.
struct Bench<'a> {
    seconds: u64,
    interrupt: &'a Interrupt,
    script: PathBuf,
    package: PathBuf,
    state_dir: PathBuf,
    cluster: LocalCluster,
}

impl Bench<'_> {
    /// Measures the ways in turns, with batches of this many images.
    fn in_turns(&self, ways: &[Way], batch: u32, rounds: usize) -> anyhow::Result<Vec<Rounds>> {
        let empty = |way: &Way| Rounds {
            way: *way,
            rounds: Vec::new(),
        };
        let mut all: Vec<Rounds> = ways.iter().map(empty).collect();
        for _ in 0..rounds {
            for Rounds { way, rounds } in &mut all {
                ensure!(!self.interrupt.is_raised(), "interrupted");
                let measured = self
                    .measure(*way, batch)
                    .with_context(|| format!("{way:?}, {batch} images"))?;
                println!(
                    "{way:?}, {batch} images: {:.1} images/s, {:.2} CPU ms and {:.0} faults per image",
                    measured.images_per_s, measured.cpu_ms, measured.faults
                );
                rounds.push(measured);
            }
        }
        Ok(all)
    }

    fn measure(&self, way: Way, batch: u32) -> anyhow::Result<Measured> {
        match way {
            Way::Defaults => self.worker(batch, &self.script, &["--tight", "--defaults"], &[]),
            Way::KeptMemory => self.worker(
                batch,
                &self.script,
                &["--tight", "--defaults"],
                &KEPT_MEMORY,
            ),
            Way::Optimised => self.worker(batch, &self.script, &["--tight"], &[]),
            Way::Package => self.worker(batch, &self.package, &["--tight"], &[]),
            Way::Pipeline => self.worker(batch, &self.script, &[], &[]),
            Way::Packhorse => self.packhorse(batch),
        }
    }

    /// Measures by `packhorse-worker bench`.
    fn worker(
        &self,
        batch: u32,
        model: &Path,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Measured> {
        let mut worker = Command::new(program("packhorse-worker")?);
        worker.arg("bench").arg("--model").arg(model);
        worker.arg("--signature").arg(root().join(REGISTRATION));
        worker.args(["--batch-size", &batch.to_string()]);
        worker.args(["--seconds", &self.seconds.to_string()]);
        worker.args(flags).envs(environment.iter().copied());
        let report: WorkerReport = output(&mut worker)?;
        Ok(Measured {
            images_per_s: report.requests_per_s,
            p50_ms: report.batch_ms.map(|batch| batch.p50),
            cpu_ms: report.cpu_ms_per_batch / f64::from(batch),
            faults: report.minor_faults_per_batch / f64::from(batch),
            start_s: Some(report.start_s),
        })
    }

    /// Measures by `packhorse-lab bench`: one client, or as many as fill batches of this many images.
    fn packhorse(&self, batch: u32) -> anyhow::Result<Measured> {
        let clients = if batch == 1 { 1 } else { CLIENTS };
        let mut client = Command::new(program("packhorse-lab")?);
        client
            .args(["bench", MODEL, "--json", "--slo", "10000"])
            .args(["--warm-up", &WARM_UP_S.to_string()])
            .args(["--duration", &self.seconds.to_string()])
            .args(["--concurrency", &clients.to_string()])
            .args([
                "--url",
                &format!("http://{}", self.cluster.endpoints.inference),
            ]);
        let pids = packhorse_pids(&self.state_dir);
        let before = usage(&pids)?;
        let report: LoadReport = output(&mut client)?;
        let Usage {
            cpu_s,
            minor_faults,
        } = usage(&pids)? - before;
        ensure!(
            report.requests.answered == report.requests.all,
            "Packhorse did not answer all requests: {}",
            report.errors
        );
        // The request before the load, those of the warm-up, and those that ended after it.
        let warm_up = report.throughput_rps * WARM_UP_S as f64;
        let all = (report.requests.all + 1 + u64::from(clients)) as f64 + warm_up;
        Ok(Measured {
            images_per_s: report.throughput_rps,
            p50_ms: Some(report.latency_ms.p50),
            cpu_ms: cpu_s * 1e3 / all,
            faults: minor_faults as f64 / all,
            start_s: None,
        })
    }
}

/// Runs a command that prints JSON.
fn output<T: DeserializeOwned>(command: &mut Command) -> anyhow::Result<T> {
    let name = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("start {name}"))?;
    ensure!(
        output.status.success(),
        "{name}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("read what {name} says"))
}

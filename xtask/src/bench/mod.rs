//! The time that gateway and worker add over calling libtorch directly: the same model on the same machine, in turns within one run, so
//! that other load of the machine affects both.

pub(crate) mod backbone;
pub(crate) mod cluster;
pub(crate) mod control;
pub(crate) mod cpu;
pub(crate) mod data_plane;
pub(crate) mod engine;
mod load;
pub(crate) mod placement;
mod sample;

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};

use self::sample::{Sample, Summary};
use crate::{
    http::message,
    local::{AgentFlags, Interrupt, LocalCluster},
    processes::cpu_seconds,
    release, setup,
    workspace::{python, root, use_programs},
};

const CONCURRENCIES: [usize; 3] = [1, 8, 32];

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Seconds of one measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of measurements of each
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// File of the report
    #[arg(long, default_value = "docs/benchmarks/gateway.md")]
    report: PathBuf,
}

/// A model that is measured.
struct Subject {
    name: &'static str,
    registration: &'static str,
    /// The Python script that writes it.
    export: &'static str,
    input: &'static str,
    shape: &'static [usize],
    what: &'static str,
}

const SUBJECTS: [Subject; 2] = [
    Subject {
        name: "tiny",
        registration: "xtask/src/bench/tiny.json",
        export: "xtask/src/bench/tiny.py",
        input: "x",
        shape: &[1, 16],
        what: "x + 1 on 16 numbers: next to nothing to compute",
    },
    Subject {
        name: "network",
        registration: "xtask/src/bench/network.json",
        export: "examples/efficientnet-lite0/export.py",
        input: "image",
        shape: &[1, 3, 224, 224],
        what: "EfficientNet-Lite0 on one image of 602,112 bytes",
    },
];

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    setup::run_and_build()?;
    let interrupt = Interrupt::listen()?;
    let dir = empty_folder("bench-gateway")?;
    let mut report = introduction(options)?;
    for subject in &SUBJECTS {
        // A separate cluster, so that no other worker uses memory or cores.
        measure(
            subject,
            options,
            &dir.join(subject.name),
            &interrupt,
            &mut report,
        )?;
    }
    let path = root().join(&options.report);
    fs::write(&path, report).with_context(|| format!("write {}", path.display()))?;
    println!("Wrote {}", path.display());
    Ok(())
}

fn measure(
    subject: &Subject,
    options: &Options,
    dir: &Path,
    interrupt: &Interrupt,
    report: &mut String,
) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let model = dir.join("model.pt");
    interrupt.run(
        Command::new(python())
            .arg("-Wignore")
            .arg(subject.export)
            .arg(&model),
    )?;
    let mut cluster =
        LocalCluster::start(dir, [0, 0], &[AgentFlags::new("local", "cpu")], interrupt)?;
    let registration = Path::new(subject.registration);
    cluster.register(subject.name, registration, &model, Stdio::inherit())?;
    cluster.wait_until_ready(subject.name)?;
    let mut direct = Direct::start(&model, subject.shape)?;
    let request = request(subject);
    let length = Duration::from_secs_f64(options.seconds);
    writeln!(report, "\n## {}: {}\n", subject.name, subject.what)?;
    writeln!(
        report,
        "| at once | | requests/s | median ms | (of each round) | p99 ms | CPU ms per request |"
    )?;
    writeln!(report, "|---|---|---|---|---|---|---|")?;
    for concurrency in CONCURRENCIES {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 0..=options.rounds {
            ensure!(!interrupt.is_raised(), "interrupted");
            let direct_sample = direct.measure(concurrency, options.seconds)?;
            let before = cpu_seconds(dir)?;
            let mut sample = load::run(cluster.endpoints.inference, &request, concurrency, length)?;
            sample.cpu_s = cpu_seconds(dir)? - before;
            // The first round warms up.
            if round > 0 {
                without.push(direct_sample);
                with.push(sample);
            }
        }
        let without =
            Summary::new(without, options.seconds).context("libtorch answered nothing")?;
        let with = Summary::new(with, options.seconds).context("the gateway answered nothing")?;
        println!(
            "{} × {concurrency}: {:.3} ms direct, {:.3} ms through the gateway",
            subject.name,
            without.p50_us / 1e3,
            with.p50_us / 1e3
        );
        row(report, concurrency, "libtorch directly", &without)?;
        row(report, concurrency, "through Packhorse", &with)?;
        added(report, concurrency, &without, &with)?;
    }
    Ok(())
}

fn row(
    report: &mut String,
    concurrency: usize,
    name: &str,
    summary: &Summary,
) -> anyhow::Result<()> {
    let ms = |us: f64| format!("{:.3}", us / 1e3);
    let Summary {
        rate,
        p50_us,
        p50_range_us: (lowest, highest),
        p99_us,
        cpu_us,
    } = summary;
    writeln!(
        report,
        "| {concurrency} | {name} | {rate:.0} | {} | {}–{} | {} | {} |",
        ms(*p50_us),
        ms(*lowest),
        ms(*highest),
        ms(*p99_us),
        ms(*cpu_us)
    )?;
    Ok(())
}

/// Returns the cost of one over the other; negative if shared batches save more than the transport costs.
fn added(
    report: &mut String,
    concurrency: usize,
    without: &Summary,
    with: &Summary,
) -> anyhow::Result<()> {
    let ms = |with: f64, without: f64| format!("{:+.3}", (with - without) / 1e3);
    let p50 = ms(with.p50_us, without.p50_us);
    let p99 = ms(with.p99_us, without.p99_us);
    let cpu = ms(with.cpu_us, without.cpu_us);
    writeln!(
        report,
        "| {concurrency} | *added* | | {p50} | | {p99} | {cpu} |"
    )?;
    Ok(())
}

/// Returns an inference request with zeros as binary input, which asks for binary output.
fn request(subject: &Subject) -> Vec<u8> {
    let bytes = 4 * subject.shape.iter().product::<usize>();
    let head = serde_json::json!({
        "inputs": [{
            "name": subject.input,
            "datatype": "FP32",
            "shape": subject.shape,
            "parameters": {"binary_data_size": bytes},
        }],
        "parameters": {"binary_data_output": true},
    })
    .to_string();
    let body = [head.as_bytes(), &vec![0; bytes]].concat();
    let headers = format!("inference-header-content-length: {}\r\n", head.len());
    message(
        "POST",
        &format!("/v2/models/{}/infer", subject.name),
        &headers,
        &body,
    )
}

/// The Python process that calls libtorch.
struct Direct {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Direct {
    fn start(model: &Path, shape: &[usize]) -> anyhow::Result<Self> {
        let mut process = Command::new(python())
            .arg("-Wignore")
            .arg(root().join("xtask/src/bench/direct.py"))
            .arg(model)
            .arg("--input")
            .args(shape.iter().map(ToString::to_string))
            // The worker is started in the same way: memory is kept instead of returned after every call.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_MMAP_MAX_", "0")
            .env("MALLOC_TRIM_THRESHOLD_", "70368744177664")
            .env("MALLOC_TOP_PAD_", "16777216")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start direct.py")?;
        let orders = process.stdin.take().context("it is piped")?;
        let answers = BufReader::new(process.stdout.take().context("it is piped")?);
        Ok(Self {
            process,
            orders,
            answers,
        })
    }

    fn measure(&mut self, concurrency: usize, seconds: f64) -> anyhow::Result<Sample> {
        writeln!(self.orders, "{concurrency} {seconds}").context("ask direct.py")?;
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .context("read what direct.py says")?;
        serde_json::from_str(&line).context("read what direct.py says")
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // It may be killed, since it keeps no state.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn introduction(options: &Options) -> anyhow::Result<String> {
    Ok(format!(
        "# What gateway and worker add over calling libtorch directly\n\n\
         Made by `cargo xtask bench gateway --seconds {} --rounds {}` on {}.\n\n\
         Both sides have the same TorchScript file, prepared the same way, and the same cores, and are measured in turns: \
         libtorch directly (a Python process; as many threads as there are requests at once share one module), then the same load \
         through Packhorse (HTTP with binary tensors on kept connections, gateway, raw TCP, one worker; requests that wait \
         together share a batch). A closed loop: each client asks again as soon as it has its answer. The clients run on the \
         same cores as the gateway, and so does the worker. CPU is that of the serving side: the Python process; gateway, agent \
         and worker together. The first round of each is thrown away; the medians of the others show how much the machine \
         wavered.\n\n\
         At 8 and 32 at once the tiny model's direct calls take turns in the Python interpreter: their latencies leave out the \
         wait for the turn, and are as flattering as can be.\n",
        options.seconds,
        options.rounds,
        machine()?,
    ))
}

/// Builds the release programs, and lets the benchmark use them.
fn build_release_programs() -> anyhow::Result<()> {
    release::build_programs()?;
    use_programs(release::programs());
    Ok(())
}

/// Returns a folder of the build folder, which is empty whatever an earlier run has left there.
pub(crate) fn empty_folder(name: &str) -> anyhow::Result<PathBuf> {
    let dir = root().join("target").join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

/// Returns the description of the machine for a report.
fn machine() -> anyhow::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
    let name = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, name)| name);
    let cores = std::thread::available_parallelism().context("count the cores")?;
    let kernel =
        fs::read_to_string("/proc/sys/kernel/osrelease").context("read the kernel's version")?;
    Ok(format!("{cores} cores of {name}, Linux {}", kernel.trim()))
}

/// Returns the date.
fn today() -> anyhow::Result<String> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

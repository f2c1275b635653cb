//! Measurements of a server by `packhorse-lab bench`, and of the CPU time and the page faults of its processes.

use std::{fmt, path::PathBuf, process::Command};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, de::DeserializeOwned};

use super::servers::{Protocol, Server, ceilings};
use crate::{
    processes::{Usage, usage},
    workspace::{program, root},
};

/// The size of an image of 3 × 224 × 224 numbers, in bytes.
pub(super) const IMAGE_BYTES: u64 = 602_112;

/// The times that a server is measured while its processes change.
const TRIES: usize = 5;

/// The input of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// 602,112 bytes: an image of 3 × 224 × 224 numbers.
    Large,
    /// 64 bytes.
    Small,
    /// The numbers of the large one as JSON.
    Json,
    /// This many of the large ones, as one request.
    Images(u64),
}

impl Payload {
    /// Returns the name in reports.
    pub(super) fn name(self) -> String {
        match self {
            Self::Large => "602,112 B".to_owned(),
            Self::Small => "64 B".to_owned(),
            Self::Json => "JSON".to_owned(),
            Self::Images(rows) => format!("{:.1} MB", (rows * IMAGE_BYTES) as f64 / 1e6),
        }
    }
}

/// The load generator.
pub(super) struct Generator {
    numbers: PathBuf,
}

/// The part of the generator's report that counts.
#[derive(Deserialize)]
struct Loaded {
    requests: Requests,
    throughput_rps: f64,
    latency_ms: Times,
    lateness_ms: Times,
    own_delay_ms: Times,
    stages: Vec<Stage>,
    client_cpu_s: f64,
    errors: serde_json::Value,
}

#[derive(Deserialize)]
struct Requests {
    all: u64,
    answered: u64,
}

#[derive(Deserialize)]
struct Times {
    p50: f64,
    p99: f64,
    max: f64,
}

/// A stage of the latency.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Stage {
    #[serde(rename = "stage")]
    pub(super) name: String,
    pub(super) mean_ms: f64,
    pub(super) p99_ms: f64,
}

/// The generator's own delay in an open loop.
pub(super) struct Lateness {
    pub(super) arrivals: &'static str,
    pub(super) rate_rps: f64,
    pub(super) throughput_rps: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// The same with the wait for a connection.
    pub(super) late_p99_ms: f64,
}

/// A large message over the raw connection and over ours.
pub(super) struct LargeMessage {
    /// The server whose link it is.
    pub(super) server: String,
    pub(super) bytes: u64,
    /// The rate of the raw connection, in bytes per second.
    pub(super) stream_bytes_per_s: f64,
    /// The mean time of the stage `network`, in milliseconds.
    pub(super) network_ms: f64,
}

impl LargeMessage {
    /// Returns the rate of our link, in bytes per second.
    pub(super) fn link_bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.network_ms * 1e3
    }

    /// Returns the rate of our link over that of the raw connection.
    pub(super) fn ratio(&self) -> f64 {
        self.link_bytes_per_s() / self.stream_bytes_per_s
    }
}

impl fmt::Display for LargeMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}: {:.2} GB/s, {:.2} of a TCP connection",
            Payload::Images(self.bytes / IMAGE_BYTES).name(),
            self.server,
            self.link_bytes_per_s() / 1e9,
            self.ratio()
        )
    }
}

/// The measurement of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measurement {
    pub(super) server: String,
    pub(super) payload: Payload,
    pub(super) concurrency: u32,
    /// Answers per second.
    pub(super) rate_rps: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// CPU seconds of all processes of the server per 1,000 requests.
    pub(super) cpu_s: f64,
    /// Minor page faults of these processes per request.
    pub(super) faults: f64,
    /// CPU seconds of the generator per 1,000 requests.
    pub(super) client_cpu_s: f64,
}

impl Measurement {
    /// Returns the median of each number over some rounds.
    pub(super) fn median(rounds: &[Self]) -> Option<Self> {
        let median = |number: fn(&Self) -> f64| {
            let mut numbers: Vec<f64> = rounds.iter().map(number).collect();
            numbers.sort_by(f64::total_cmp);
            // The lower of two middle ones.
            numbers.get(numbers.len().saturating_sub(1) / 2).copied()
        };
        Some(Self {
            rate_rps: median(|round| round.rate_rps)?,
            p50_ms: median(|round| round.p50_ms)?,
            p99_ms: median(|round| round.p99_ms)?,
            cpu_s: median(|round| round.cpu_s)?,
            faults: median(|round| round.faults)?,
            client_cpu_s: median(|round| round.client_cpu_s)?,
            ..rounds.first()?.clone()
        })
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} × {}, {}: {:.0} requests/s, p50 {:.3} ms, p99 {:.3} ms, {:.3} CPU s and {:.1} faults",
            self.payload.name(),
            self.concurrency,
            self.server,
            self.rate_rps,
            self.p50_ms,
            self.p99_ms,
            self.cpu_s,
            self.faults
        )
    }
}

/// Measures a server in a closed loop.
pub(super) fn measure(
    server: &dyn Server,
    generator: &Generator,
    payload: Payload,
    concurrency: u32,
    seconds: f64,
) -> anyhow::Result<Measurement> {
    let _prepared = server.prepare()?;
    for _ in 0..TRIES {
        let pids = server.pids();
        let measured = measure_once(server, generator, payload, concurrency, seconds, &pids);
        // A process that ended meanwhile took its times along.
        if server.pids() == pids {
            return measured;
        }
    }
    bail!("the processes of {} do not stay the same", server.name())
}

fn measure_once(
    server: &dyn Server,
    generator: &Generator,
    payload: Payload,
    concurrency: u32,
    seconds: f64,
    pids: &[i32],
) -> anyhow::Result<Measurement> {
    let before = usage(pids)?;
    let pace = ["--concurrency".to_owned(), concurrency.to_string()];
    let loaded: Loaded = match server.protocol() {
        Protocol::Http => generator.run(server, payload, &pace, seconds)?,
        Protocol::Grpc => ask_over_grpc(server, payload, &pace, seconds)?,
    };
    let Usage {
        cpu_s,
        minor_faults,
    } = usage(pids)? - before;
    // The request before the load, and those that ended after it.
    let requests = (loaded.requests.all + 1 + u64::from(concurrency)) as f64;
    Ok(Measurement {
        server: server.name().to_owned(),
        payload,
        concurrency,
        rate_rps: loaded.throughput_rps,
        p50_ms: loaded.latency_ms.p50,
        p99_ms: loaded.latency_ms.p99,
        cpu_s: cpu_s * 1e3 / requests,
        faults: minor_faults as f64 / requests,
        client_cpu_s: loaded.client_cpu_s * 1e3 / requests,
    })
}

impl Generator {
    /// Creates a generator; `numbers` is the file with the input of [`Payload::Json`].
    pub(super) fn new(numbers: PathBuf) -> Self {
        Self { numbers }
    }

    /// Returns the stages of requests of one client.
    pub(super) fn stages(
        &self,
        server: &dyn Server,
        payload: Payload,
        seconds: f64,
    ) -> anyhow::Result<Vec<Stage>> {
        let pace = ["--concurrency", "1", "--stages"].map(str::to_owned);
        let loaded: Loaded = self.run(server, payload, &pace, seconds)?;
        ensure!(
            !loaded.stages.is_empty(),
            "{} says no stages",
            server.name()
        );
        Ok(loaded.stages)
    }

    /// Returns the generator's own delay at this rate, on so many connections.
    pub(super) fn lateness(
        &self,
        server: &dyn Server,
        rate_rps: f64,
        arrivals: &'static str,
        connections: u32,
        seconds: f64,
    ) -> anyhow::Result<Lateness> {
        let (rate, connections) = (rate_rps.to_string(), connections.to_string());
        let pace = [
            "--rate",
            &rate,
            "--arrivals",
            arrivals,
            "--connections",
            &connections,
        ]
        .map(str::to_owned);
        let loaded: Loaded = self.run(server, Payload::Large, &pace, seconds)?;
        let times = &loaded.own_delay_ms;
        println!("generator, {arrivals}: p99 {:.3} ms", times.p99);
        Ok(Lateness {
            arrivals,
            rate_rps,
            throughput_rps: loaded.throughput_rps,
            p50_ms: times.p50,
            p99_ms: times.p99,
            max_ms: times.max,
            late_p99_ms: loaded.lateness_ms.p99,
        })
    }

    fn run(
        &self,
        server: &dyn Server,
        payload: Payload,
        pace: &[String],
        seconds: f64,
    ) -> anyhow::Result<Loaded> {
        let mut command = Command::new(program("packhorse-lab")?);
        command
            .args(["bench", "sum", "--json", "--slo", "10000", "--warm-up", "0"])
            .args(["--duration", &seconds.to_string()])
            .args(["--url", &format!("http://{}", server.address())])
            .args(pace)
            .current_dir(root());
        match payload {
            Payload::Large => command.args(["--payload-bytes", "602112"]),
            Payload::Small => command.args(["--payload-bytes", "64"]),
            Payload::Images(rows) => {
                let bytes = (rows * IMAGE_BYTES).to_string();
                command.args(["--batch", &rows.to_string(), "--payload-bytes", &bytes])
            }
            Payload::Json => {
                let input = format!("x={}", self.numbers.display());
                command.args(["--json-tensors", "--input", &input])
            }
        };
        let loaded: Loaded = output(&mut command)
            .with_context(|| format!("{} × {}", server.name(), payload.name()))?;
        ensure!(
            loaded.requests.answered == loaded.requests.all,
            "{} did not answer all requests: {}",
            server.name(),
            loaded.errors
        );
        Ok(loaded)
    }
}

/// Asks over gRPC, by clients of tonic.
fn ask_over_grpc(
    server: &dyn Server,
    payload: Payload,
    pace: &[String],
    seconds: f64,
) -> anyhow::Result<Loaded> {
    let bytes = match payload {
        Payload::Small => 64,
        Payload::Large => IMAGE_BYTES,
        Payload::Json | Payload::Images(_) => bail!("over gRPC there is no {payload:?}"),
    };
    let mut command = Command::new(ceilings());
    command
        .args(["grpc-load", "--server", &server.address().to_string()])
        .args(["--payload-bytes", &bytes.to_string()])
        .args(["--duration", &seconds.to_string()])
        .args(pace);
    output(&mut command).with_context(|| format!("{} × {}", server.name(), payload.name()))
}

/// Runs a command that prints JSON.
fn output<T: DeserializeOwned>(command: &mut Command) -> anyhow::Result<T> {
    let output = command.output().context("start the load")?;
    ensure!(
        output.status.success(),
        "the load: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("read what the load says")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_taken_of_each_number() {
        let round = |rate_rps, p99_ms| Measurement {
            server: "s".to_owned(),
            payload: Payload::Small,
            concurrency: 8,
            rate_rps,
            p50_ms: 1.0,
            p99_ms,
            cpu_s: 0.5,
            faults: 2.0,
            client_cpu_s: 0.1,
        };
        let rounds = vec![round(10.0, 7.0), round(30.0, 5.0), round(20.0, 6.0)];
        assert_eq!(Measurement::median(&rounds), Some(round(20.0, 6.0)));
        assert_eq!(Measurement::median(&[]), None);
    }
}

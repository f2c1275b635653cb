//! The page of the benchmark.

use std::{fmt::Write as _, fs};

use super::measure::{IMAGE_BYTES, LargeMessage, Lateness, Measurement, Payload, Stage};
use crate::bench::{machine, today};

/// All measurements.
#[derive(Default)]
pub(super) struct Results {
    /// Binary tensors: every server, by payload and concurrency.
    pub(super) binary: Vec<Measurement>,
    /// 64 bytes on cores that do not sleep, beside the plain two hops on such that do; empty if it could not be measured.
    pub(super) awake: Vec<Measurement>,
    /// JSON: the parser alone, and ours.
    pub(super) json: Vec<Measurement>,
    /// Ours with batching on and off.
    pub(super) batching: Vec<Measurement>,
    /// The load average of the last minute before the run.
    pub(super) load: String,
    /// The stages of ours at one client.
    pub(super) stages: Vec<(Payload, Vec<Stage>)>,
    pub(super) large: Vec<LargeMessage>,
    pub(super) generator: Vec<Lateness>,
}

/// The names of the servers that others are compared with.
const TWO_HOPS: &str = "two hops";

impl Results {
    /// Returns the page.
    pub(super) fn to_markdown(
        &self,
        seconds: f64,
        rounds: usize,
        picture: &str,
    ) -> anyhow::Result<String> {
        let mut page = introduction(seconds, rounds, &self.load, picture)?;
        page += "\n## Binary tensors\n\n\
            A closed loop: each client asks again as soon as it has its answer. Ratios are over the plain two hops in the same run; faults are \
            minor page faults of the serving processes per request.\n";
        for payload in [Payload::Large, Payload::Small] {
            writeln!(page, "\n### {}\n", payload.name())?;
            let rows = self.binary.iter().filter(|row| row.payload == payload);
            compare(&mut page, rows, |row| {
                find(&self.binary, payload, row.concurrency, TWO_HOPS)
            })?;
        }
        if !self.awake.is_empty() {
            page += "\n### 64 B, cores that do not sleep\n\n\
                `packhorse-gateway --wake-latency-us 0` asks Linux that idle cores wake at once while requests come, by `/dev/cpu_dma_latency`. The benchmark \
                asks for the same while it measures the two hops once more. Ratios are over the plain two hops in the same run with the cores as they are; \
                a core that waits without sleeping counts as idle, and so the CPU time is again that of the serving processes.\n\n";
            compare(&mut page, &self.awake, |row| {
                find(&self.awake, row.payload, row.concurrency, TWO_HOPS)
            })?;
        }
        page += "\n## JSON\n\n\
            150,528 random numbers as JSON at 8 at once. The other server reads the body and parses it with `serde_json` into a `Vec<f32>`, and passes it to \
            nobody.\n\n";
        compare(&mut page, &self.json, |_| self.json.first())?;
        page += "\n## Batching\n\n\
            The same model with batches of up to 32 and of 1, at one client: to wait for others would be in vain.\n\n\
            | | | p50 ms, batching on | off | ratio |\n|---|--:|--:|--:|--:|\n";
        for pair in self.batching.chunks_exact(2) {
            writeln!(
                page,
                "| {} | {} at once | {:.3} | {:.3} | {:.2} |",
                pair[0].payload.name(),
                pair[0].concurrency,
                pair[0].p50_ms,
                pair[1].p50_ms,
                pair[0].p50_ms / pair[1].p50_ms
            )?;
        }
        self.write_stages(&mut page)?;
        self.write_large(&mut page)?;
        page += "\n## The generator\n\n\
            `packhorse-lab bench` against an HTTP server, each on a core of its own, as an open loop at 80 % of what the server did for 8 clients, with 602,112 bytes: the \
            delay from the time at which a request is due and one of 8 connections is free until the generator begins to send it. The last column has the wait for a \
            connection, too, which is long where the server does not keep up. With more connections the requests under way do not fit into the caches, and both get slower.\n\n\
            | arrivals | offered, requests/s | answered | p50 ms | p99 ms | max ms | p99 with the wait, ms |\n|---|--:|--:|--:|--:|--:|--:|\n";
        for row in &self.generator {
            writeln!(
                page,
                "| {} | {:.0} | {:.0} | {:.3} | {:.3} | {:.3} | {:.3} |",
                row.arrivals,
                row.rate_rps,
                row.throughput_rps,
                row.p50_ms,
                row.p99_ms,
                row.max_ms,
                row.late_p99_ms
            )?;
        }
        Ok(page)
    }

    fn write_stages(&self, page: &mut String) -> anyhow::Result<()> {
        *page += "\n## Where the time of one request goes\n\n\
            One client, with `--stages`: means in milliseconds, which add up to the latency. `client` is the wait in the generator, `transfer` what is neither \
            in it nor in the gateway: sending, receiving and waking up.\n\n| stage |";
        for (payload, _) in &self.stages {
            write!(page, " {}, mean | p99 |", payload.name())?;
        }
        *page += "\n|---|";
        *page += &"--:|--:|".repeat(self.stages.len());
        let names = self.stages.first().map(|(_, stages)| stages.iter());
        for (i, stage) in names.into_iter().flatten().enumerate() {
            write!(page, "\n| {} |", stage.name)?;
            for (_, stages) in &self.stages {
                if let Some(stage) = stages.get(i) {
                    write!(page, " {:.3} | {:.3} |", stage.mean_ms, stage.p99_ms)?;
                }
            }
        }
        *page += "\n| all |";
        for (_, stages) in &self.stages {
            let sum: f64 = stages.iter().map(|stage| stage.mean_ms).sum();
            write!(page, " {sum:.3} | |")?;
        }
        *page += "\n";
        Ok(())
    }

    fn write_large(&self, page: &mut String) -> anyhow::Result<()> {
        *page += "\n## Large batches to a worker\n\n\
            Figure 4.4 of the thesis: a batch as one request of one client, over its mean stage `network`, which is the way to the worker and of a short \
            answer back; beside it a TCP connection between two threads that write and read such messages from kept memory, with two on their way. \
            Over shared memory nothing is copied on this way: the model reads the batch where the gateway has received it, and the time is that of waking up.\n\n\
            | batch | link of | TCP connection, GB/s | link, GB/s | ratio |\n|---|---|--:|--:|--:|\n";
        for row in &self.large {
            writeln!(
                page,
                "| {} | {} | {:.2} | {:.2} | {:.2} |",
                Payload::Images(row.bytes / IMAGE_BYTES).name(),
                row.server,
                row.stream_bytes_per_s / 1e9,
                row.link_bytes_per_s() / 1e9,
                row.ratio()
            )?;
        }
        Ok(())
    }
}

fn introduction(seconds: f64, rounds: usize, load: &str, picture: &str) -> anyhow::Result<String> {
    Ok(format!(
        "# The data plane beside programs that do less\n\n\
         Made by `cargo xtask bench data-plane --seconds {seconds} --rounds {rounds}` on {}, {}.\n\n\
         * HTTP server alone: axum, which reads the body into `Bytes` and answers.\n\
         * Two hops: the same, but the body goes over one TCP connection to a worker process that reads it and answers 4 bytes. The plainest gateway.\n\
         * Two hops, kept memory: both sides read bodies into memory that they keep. With the sum, the worker also adds the numbers of each body up, which is the \
         work of the model that Packhorse serves.\n\
         * Packhorse: gateway and one worker on the CPU, with a TorchScript model that sums its input on one thread (`--devices cpu:1`); the link between them is TCP \
         (`--shared-memory-links off`) or shared memory, as it is on one host. The other tables, where they do not say it, are of the latter.\n\n\
         All are in `lab/ceilings` but the last two, which are built as they are released, with a profile of a run under load \
         ([what it brings](build.md#with-a-profile-of-a-run)); the others are release builds without one, and leave it to the system how much a connection may send at once. The servers are measured in turns within one run, \
         by `packhorse-lab bench` on the same cores, which sends bodies of 64 KiB and more from a file in memory, without copying them; the first turn is thrown away, and of the others the medians are shown. Clients, servers and whatever else the machine does share its cores: absolute \
         numbers waver between runs, ratios less. When the run began, the machine's load average was {load}; what is above 0 is other work. CPU time is that of \
         the serving processes.{idle}\n\n\
         ![Requests per second over the plain two hops]({picture})\n",
        machine()?,
        today()?,
        load = load.trim(),
        idle = idle_cores()
    ))
}

/// Returns what the idle cores of a virtual machine do; nothing about other machines.
fn idle_cores() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let governor = read("/sys/devices/system/cpu/cpuidle/current_governor_ro");
    let limit = read("/sys/module/haltpoll/parameters/guest_halt_poll_ns");
    match limit.trim().parse::<u64>() {
        Ok(limit) if governor.trim() == "haltpoll" => {
            let what = match limit {
                0 => "halt at once, so that whatever wakes one up waits for the host, and finds its caches cold".to_owned(),
                limit => format!("poll for up to {} µs before they halt", limit / 1000),
            };
            format!(
                " Idle cores of this virtual machine {what} (`guest_halt_poll_ns`): at one client that decides more than anything else. \
                 [data-plane](data-plane.md) is about cores that halt, [data-plane-polling](data-plane-polling.md) about such that poll."
            )
        }
        _ => String::new(),
    }
}

/// Writes a table of measurements, each with its ratios over the one that `base` returns.
pub(super) fn compare<'a>(
    page: &mut String,
    rows: impl IntoIterator<Item = &'a Measurement>,
    base: impl Fn(&Measurement) -> Option<&'a Measurement>,
) -> anyhow::Result<()> {
    *page += "| at once | | requests/s | ratio | CPU s per 1000 | ratio | p50 ms | p99 ms | ratio | faults |\n\
        |--:|---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for row in rows {
        compared(page, row, base(row))?;
    }
    Ok(())
}

/// Writes a row with its ratios.
fn compared(
    page: &mut String,
    row: &Measurement,
    base: Option<&Measurement>,
) -> anyhow::Result<()> {
    let ratio = |number: fn(&Measurement) -> f64| {
        let base = base.map(number).filter(|base| *base > 0.0);
        base.map_or_else(String::new, |base| format!("{:.2}", number(row) / base))
    };
    writeln!(
        page,
        "| {} | {} | {:.0} | {} | {:.3} | {} | {:.3} | {:.3} | {} | {:.1} |",
        row.concurrency,
        row.server,
        row.rate_rps,
        ratio(|row| row.rate_rps),
        row.cpu_s,
        ratio(|row| row.cpu_s),
        row.p50_ms,
        row.p99_ms,
        ratio(|row| row.p99_ms),
        row.faults
    )?;
    Ok(())
}

pub(super) fn find<'a>(
    rows: &'a [Measurement],
    payload: Payload,
    concurrency: u32,
    server: &str,
) -> Option<&'a Measurement> {
    rows.iter().find(|row| {
        (row.payload, row.concurrency, row.server.as_str()) == (payload, concurrency, server)
    })
}

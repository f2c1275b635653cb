//! `packhorse-lab bench MODEL`: sends one request again and again, in an open or a closed loop, and measures the answers.

mod alarm;
mod arrivals;
mod capacity;
mod figure;
mod generator;
mod recorder;
mod report;
mod request_end;

use std::time::Duration;

use anyhow::Context as _;
use packhorse_client::InferenceClient;
use packhorse_cluster::{ModelName, ModelVersion};
use packhorse_protocol::{Form, ModelMetadata, RequestMessage, Tensor};
use packhorse_terminal::{
    context::Context,
    inputs::{NamedValue, read_input},
    output::{self, format_number},
};
use serde::Serialize;

use self::{
    arrivals::{Arrivals, Schedule},
    capacity::{CapacitySearch, CapacityStep, REQUIRED},
    generator::{Load, Pace},
    recorder::{CountBy, Recorder},
    report::{LoadReport, Report, arrivals_name, format_ms},
};
use super::payload;
use crate::plot::PlotFile;

/// The clients of the closed loop with which a search for the capacity begins.
const PROBE_CLIENTS: u32 = 32;

/// The flags for a model.
#[derive(clap::Args)]
#[command(next_help_heading = "Load on one model")]
pub(super) struct ModelArgs {
    /// Name of the model to send requests to
    pub(super) model: Option<ModelName>,
    /// Version of the model [default: the newest]
    #[arg(long, value_name = "N", conflicts_with = "scenario")]
    version: Option<ModelVersion>,
    /// Input of the model: FILE.npy, FILE.raw with the bytes of its rows, or FILE.json with nested lists; may be repeated [default:
    /// zeros in the shape that the gateway declares]
    #[arg(long, value_name = "NAME=FILE", conflicts_with = "scenario")]
    input: Vec<NamedValue>,
    /// Rows of a request of zeros
    #[arg(long, value_name = "ROWS", default_value_t = 1, conflicts_with_all = ["scenario", "input"], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Size of a request of zeros in bytes, which dimensions that vary are as long as it allows
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        hide_default_value = true,
        conflicts_with_all = ["scenario", "input"]
    )]
    payload_bytes: u64,
    /// Send and ask for tensors as JSON [default: binary]
    #[arg(long, conflicts_with = "scenario")]
    json_tensors: bool,
    /// Requests per second of an open loop, due at times that are fixed in advance; the first rate of a search
    #[arg(long, value_name = "RPS", conflicts_with_all = ["scenario", "concurrency"], value_parser = parse_rate)]
    rate: Option<f64>,
    /// Gaps between the requests of an open loop
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson, conflicts_with = "scenario")]
    arrivals: Arrivals,
    /// Largest number of connections of an open loop; a request that finds none free waits, which counts as latency
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "scenario", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    connections: u32,
    /// Threads that send; one sends a few GB/s or some ten thousand small requests per second
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "scenario", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Time that is measured, in seconds; that of each step of a search
    #[arg(long, value_name = "S", default_value_t = 10.0, conflicts_with = "scenario", value_parser = parse_seconds)]
    duration: f64,
    /// Time before it in which requests are sent and not counted, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0, conflicts_with = "scenario", value_parser = parse_seconds)]
    warm_up: f64,
    /// Latency within which an answer counts as goodput, in milliseconds [default: the model's SLO if --admin-url and --token-file give
    /// access to it, else --deadline]
    #[arg(long, value_name = "MS", conflicts_with = "scenario", value_parser = parse_rate)]
    slo: Option<f64>,
    /// Time limit of each request in milliseconds, which replaces the model's SLO as its deadline
    #[arg(long, value_name = "MS", conflicts_with = "scenario", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    deadline: Option<u64>,
    /// Ask the gateway for the durations of each request's stages
    #[arg(long, conflicts_with = "scenario")]
    stages: bool,
    /// Find the highest rate of an open loop at which 99 % of the requests are answered within the SLO
    #[arg(long, conflicts_with_all = ["scenario", "concurrency"])]
    find_capacity: bool,
    /// Draw the result into this file, as SVG
    #[arg(long, value_name = "FILE", conflicts_with = "scenario")]
    plot: Option<PlotFile>,
}

/// The report of a search for the capacity.
#[derive(Serialize)]
struct CapacityReport {
    #[serde(flatten)]
    load: LoadReport,
    /// The highest rate that passed, in requests per second; null if none did.
    capacity_rps: Option<f64>,
    /// The part of the requests that must be answered within the SLO.
    required_within_slo: f64,
    steps: Vec<CapacityStep>,
}

/// A model with the request that is sent to it.
struct Bench<'a> {
    args: &'a ModelArgs,
    client: InferenceClient,
    request: RequestMessage,
    model: &'a ModelName,
    slo_ms: Option<f64>,
    url: String,
    seed: u64,
}

impl ModelArgs {
    /// Runs the benchmark; `concurrency` is the number of clients of a closed loop.
    pub(super) async fn run(
        &self,
        model: &ModelName,
        seed: u64,
        concurrency: Option<u32>,
        context: &Context,
    ) -> anyhow::Result<()> {
        let client = context.inference()?;
        let metadata = client.model_metadata(model, self.version).await?;
        let request = RequestMessage {
            inputs: self.inputs(&metadata)?,
            output_form: Some(self.form()),
            timeout: self.deadline.map(Duration::from_millis),
            ..RequestMessage::default()
        };
        // An answer that cannot be parsed, and a request that is not valid, are found before thousands of them are sent.
        let first = client.infer(model, self.version, &request).await;
        first.context("the first request")?;
        let bench = Bench {
            args: self,
            client,
            request,
            model,
            slo_ms: self.slo_ms(model, context).await,
            url: context.url().to_string(),
            seed,
        };
        if self.find_capacity {
            bench.find_capacity(context.json()).await
        } else {
            bench.measure(concurrency, context.json()).await
        }
    }

    fn form(&self) -> Form {
        if self.json_tensors {
            Form::Json
        } else {
            Form::Binary
        }
    }

    fn inputs(&self, metadata: &ModelMetadata) -> anyhow::Result<Vec<Tensor>> {
        let inputs = if self.input.is_empty() {
            payload::inputs(&metadata.inputs, self.batch.into(), self.payload_bytes)?
        } else {
            let inputs = self.input.iter().map(|input| read_input(input, metadata));
            inputs.collect::<anyhow::Result<_>>()?
        };
        let inputs = inputs.into_iter().map(|input| input.in_form(self.form()));
        Ok(inputs.collect())
    }

    /// Returns the latency within which an answer counts as goodput, in milliseconds.
    async fn slo_ms(&self, model: &ModelName, context: &Context) -> Option<f64> {
        if self.slo.is_some() {
            return self.slo;
        }
        let registered = match context.admin() {
            Ok(admin) => admin.model(model, self.version).await.ok(),
            Err(_) => None,
        };
        let registered = registered.map(|model| model.slo_ms);
        registered.or(self.deadline.map(|ms| ms as f64))
    }
}

impl Bench<'_> {
    async fn measure(&self, concurrency: Option<u32>, json: bool) -> anyhow::Result<()> {
        let args = self.args;
        let (report, recorder) = if let Some(rate) = args.rate {
            self.open_loop(rate).await?
        } else {
            let clients = concurrency.unwrap_or(1);
            self.closed_loop(clients, args.warm_up, args.duration)
                .await?
        };
        if let Some(file) = &args.plot {
            file.write(&figure::of_load(&report, &recorder))?;
        }
        if json {
            output::print_json(&report)
        } else {
            report.print_text()
        }
    }

    async fn find_capacity(&self, json: bool) -> anyhow::Result<()> {
        let slo_ms = self.slo_ms.context(
            "--find-capacity needs the SLO: name it with --slo, or give access to the model's with --admin-url and --token-file",
        )?;
        let first = if let Some(rate) = self.args.rate {
            rate
        } else {
            let probe = self.closed_loop(PROBE_CLIENTS, 0.0, 1.0).await?.0;
            // A rate that usually passes.
            probe.throughput_rps / 2.0
        };
        let mut search = CapacitySearch::new(first);
        let mut steps = Vec::new();
        while let Some(rate) = search.next_rate() {
            let (report, _) = self.open_loop(rate).await?;
            let step = CapacityStep {
                rate_rps: rate,
                passed: report.within_slo.is_some_and(|part| part >= REQUIRED),
                within_slo: report.within_slo,
                throughput_rps: report.throughput_rps,
                p50_ms: report.latency_ms.p50,
                p99_ms: report.latency_ms.p99,
                lateness_p99_ms: report.lateness_ms.p99,
            };
            search.note(rate, step.passed);
            output::note(step.describe());
            steps.push(step);
        }
        let capacity_rps = search.capacity();
        if let Some(file) = &self.args.plot {
            let model = self.model.as_str();
            file.write(&figure::of_search(model, slo_ms, capacity_rps, &steps))?;
        }
        if json {
            return output::print_json(&CapacityReport {
                load: self.load_report(None, None),
                capacity_rps,
                required_within_slo: REQUIRED,
                steps,
            });
        }
        let found = match capacity_rps {
            Some(rate) => format!("{} requests/s", format_number(rate)),
            None => "no rate".to_owned(),
        };
        Ok(output::print_line(format!(
            "{}: {found} with {} % within {} ms",
            self.model,
            format_number(REQUIRED * 100.0),
            format_number(slo_ms)
        ))?)
    }

    async fn open_loop(&self, rate: f64) -> anyhow::Result<(Report, Recorder)> {
        let args = self.args;
        let pace = Pace::Open {
            schedule: Schedule::new(args.arrivals, rate, self.seed),
            connections: args.connections as usize,
        };
        let load = LoadReport {
            rate_rps: Some(rate),
            arrivals: Some(arrivals_name(args.arrivals)),
            seed: Some(self.seed),
            ..self.load_report(None, None)
        };
        self.run(pace, load).await
    }

    async fn closed_loop(
        &self,
        clients: u32,
        warm_up_s: f64,
        duration_s: f64,
    ) -> anyhow::Result<(Report, Recorder)> {
        let load = LoadReport {
            concurrency: Some(clients),
            ..self.load_report(Some(warm_up_s), Some(duration_s))
        };
        let clients = clients as usize;
        self.run(Pace::Closed { clients }, load).await
    }

    async fn run(&self, pace: Pace, load: LoadReport) -> anyhow::Result<(Report, Recorder)> {
        let request = self.client.encode(
            self.model,
            self.args.version,
            &self.request,
            self.args.stages,
        )?;
        let load = LoadReport {
            body_bytes: request.body_len(),
            ..load
        };
        let start = Duration::from_secs_f64(load.warm_up_s);
        let end = start + Duration::from_secs_f64(load.duration_s);
        let count_by = match pace {
            Pace::Open { .. } => CountBy::Due,
            Pace::Closed { .. } => CountBy::End,
        };
        let slo = self.slo_ms.map(|ms| Duration::from_secs_f64(ms / 1e3));
        let recorder = Recorder::new(start..end, count_by, slo);
        let spinner = output::spinner();
        let shown = spinner.clone();
        let progress = move |now: Duration, recorder: &Recorder| {
            shown.set_message(progress_text(now, end, recorder));
        };
        let before = cpu_time();
        let load_to_send = Load {
            client: self.client.clone(),
            request,
            pace,
            length: end,
            threads: self.args.threads as usize,
        };
        let recorder = generator::run(load_to_send, recorder, progress).await?;
        let cpu = cpu_time().saturating_sub(before);
        spinner.finish_and_clear();
        Ok((Report::new(load, &recorder, cpu), recorder))
    }

    fn load_report(&self, warm_up_s: Option<f64>, duration_s: Option<f64>) -> LoadReport {
        let args = self.args;
        let rows = self
            .request
            .inputs
            .first()
            .map(|input| input.shape().dims());
        LoadReport {
            model: self.model.to_string(),
            version: args.version.map(ModelVersion::get),
            url: self.url.clone(),
            rate_rps: None,
            arrivals: None,
            seed: None,
            concurrency: None,
            threads: args.threads,
            warm_up_s: warm_up_s.unwrap_or(args.warm_up),
            duration_s: duration_s.unwrap_or(args.duration),
            body_bytes: 0,
            rows: rows.and_then(|dims| dims.first().copied()).unwrap_or(1),
            json_tensors: args.json_tensors,
            deadline_ms: args.deadline,
            slo_ms: self.slo_ms,
        }
    }
}

fn progress_text(now: Duration, end: Duration, recorder: &Recorder) -> String {
    let ms = |part| {
        let ms = recorder.latency.quantile_ms(part);
        ms.map_or_else(|| "-".to_owned(), format_ms)
    };
    let ends = &recorder.ends;
    let last = recorder.seconds.iter().rev().nth(1).copied();
    format!(
        "{:.1} of {:.1} s: {} answers/s, p50 {} ms, p99 {} ms, {} answered, {} not",
        now.as_secs_f64(),
        end.as_secs_f64(),
        last.unwrap_or_default().answered,
        ms(0.5),
        ms(0.99),
        ends.answered,
        ends.all() - ends.answered
    )
}

/// Returns the CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if value.is_finite() && value > 0.0 && value <= 1e7 {
        Ok(value)
    } else {
        Err("expected a number above 0 and at most 10000000".to_owned())
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if value.is_finite() && (0.0..=86_400.0).contains(&value) {
        Ok(value)
    } else {
        Err("expected a number from 0 to 86400".to_owned())
    }
}

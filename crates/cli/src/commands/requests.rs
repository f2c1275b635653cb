//! `packhorse requests` and `packhorse trace`: requests that ended lately, and where their time went.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use packhorse_api::{CacheUse, EndOfRequest, RequestFilter, RequestView};

use packhorse_client::ListedRequests;
use packhorse_terminal::{
    context::Context,
    output::{self, Colour, format_number, format_time, paint},
    versioned_name,
};

use super::arguments::{ModelReference, parse_duration, parse_model, parse_moment};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse requests --id order-4711\n  packhorse requests --missed --since 10m\n  packhorse requests --outcome rejected --key team-a\n  packhorse requests --model minilm --limit 100 --json"
)]
pub(crate) struct RequestsArgs {
    /// Show the requests with this id, their x-request-id or that of their trace, with all that is known about them
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Show only requests that missed their SLO
    #[arg(long, conflicts_with = "outcome")]
    missed: bool,
    /// Show only requests that ended in this way: answered, late, refused, expired, lost, failed, cancelled, or rejected before it reached a model
    #[arg(long, value_name = "OUTCOME")]
    outcome: Option<RequestFilter>,
    /// Show only requests of this model, in all its versions or in this one
    #[arg(long, value_name = "NAME[:VERSION]", value_parser = parse_model)]
    model: Option<ModelReference>,
    /// Show only requests with the API key of this id or name
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Show only requests that did not arrive before this time: how long ago it is, such as 10m, or the time, such as 2026-11-29T16:12:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    since: Option<i64>,
    /// Show only requests that had arrived by this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    until: Option<i64>,
    /// Largest number of requests to show, the newest first
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: u16,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  packhorse trace --last 10s -o trace.json")]
pub(crate) struct TraceArgs {
    /// Length of the time window that ends now, such as 500ms, 10s or 2m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    last: Duration,
    /// File for the trace, or - for standard output; Perfetto (ui.perfetto.dev) opens it
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

impl RequestsArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let filter = self.missed.then_some(RequestFilter::Missed);
        let (model, version) = self.model.unzip();
        let which = ListedRequests {
            outcome: filter.or(self.outcome),
            model,
            version: version.flatten(),
            id: self.id,
            key: self.key,
            since: self.since,
            until: self.until,
            limit: self.limit.into(),
        };
        let requests = context.admin()?.requests(&which).await?;
        if context.json() {
            return output::print_json(&requests);
        }
        if which.id.is_none() {
            return print(&requests);
        }
        for request in &requests {
            print_whole(request)?;
        }
        if requests.is_empty() {
            output::print_line("no requests; the gateway remembers the last 150,000 at most")?;
        }
        Ok(())
    }
}

impl TraceArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let last = i64::try_from(self.last.as_millis()).unwrap_or(i64::MAX);
        let trace = context.admin()?.trace(-last, None).await?;
        if self.output.as_os_str() == "-" {
            return Ok(output::print_bytes(&trace)?);
        }
        let file = self.output.display();
        std::fs::write(&self.output, &trace).with_context(|| format!("cannot write {file}"))?;
        output::note(format_args!(
            "{file} has {} bytes; open it at https://ui.perfetto.dev",
            trace.len()
        ));
        Ok(())
    }
}

fn print(requests: &[RequestView]) -> anyhow::Result<()> {
    let header = [
        "TIME",
        "ID",
        "KEY",
        "MODEL",
        "OUTCOME",
        "LATENCY MS",
        "SLO MS",
        "RECEIVE",
        "DECODE",
        "LOAD",
        "BATCH",
        "QUEUE",
        "NETWORK",
        "WORKER",
        "COPY",
        "COMPUTE",
        "DEVICE",
        "REASON",
    ];
    let mut table = output::new_table(&header);
    for request in requests {
        let stages = &request.stages_ms;
        let device = request
            .batch
            .as_ref()
            .and_then(|batch| batch.device.as_ref());
        let colour = colour_of(request.outcome);
        table.add_row([
            format_time(request.at_ms as u64),
            request.request_id.clone().unwrap_or_default(),
            key_of(request).unwrap_or_default(),
            model_of(request),
            paint(request.outcome.name(), colour),
            format_number(request.latency_ms),
            slo_of(request).unwrap_or_else(|| "-".to_owned()),
            format_number(stages.receive),
            format_number(stages.decode + stages.tokenize),
            format_number(stages.load),
            format_number(stages.batch),
            format_number(stages.queue),
            format_number(stages.network),
            format_number(stages.worker_queue),
            format_number(stages.copy_in + stages.copy_out),
            format_number(stages.compute),
            device.map_or_else(|| "-".to_owned(), ToString::to_string),
            reason_of(request).unwrap_or_default(),
        ]);
    }
    Ok(output::print_table(&table, "no requests")?)
}

/// Returns the name of the request's key, or its id if the key was deleted.
fn key_of(request: &RequestView) -> Option<String> {
    request.key_name.clone().or_else(|| request.key.clone())
}

/// Returns the request's model with its version, if it had one.
fn model_of(request: &RequestView) -> String {
    match (&request.model, request.version) {
        (Some(model), Some(version)) => versioned_name(model, version),
        (Some(model), None) => model.to_string(),
        (None, _) => "-".to_owned(),
    }
}

/// Returns the time within which the request was to be answered, if it had one.
fn slo_of(request: &RequestView) -> Option<String> {
    (request.outcome != EndOfRequest::Rejected).then(|| format_number(request.slo_ms))
}

/// Returns the reason for the request's end, with the status that a rejected one was answered with.
fn reason_of(request: &RequestView) -> Option<String> {
    let status = request.status.map(|status| format!("{status}: "));
    let reason = request.reason.as_ref()?;
    Some(format!("{}{reason}", status.unwrap_or_default()))
}

fn colour_of(outcome: EndOfRequest) -> Colour {
    if outcome.is_missed() {
        Colour::Red
    } else if outcome == EndOfRequest::Answered {
        Colour::Green
    } else {
        Colour::Yellow
    }
}

/// Prints all that is known about a request, in lines.
fn print_whole(request: &RequestView) -> anyhow::Result<()> {
    let slo = slo_of(request).map(|slo| format!(" (in time within {slo} ms)"));
    output::print_line(format!(
        "{}  {}  {} after {} ms{}",
        request.request_id.as_deref().unwrap_or("-"),
        model_of(request),
        paint(request.outcome.name(), colour_of(request.outcome)),
        format_number(request.latency_ms),
        slo.unwrap_or_default(),
    ))?;
    if let Some(reason) = reason_of(request) {
        output::print_line(format!("  reason    {reason}"))?;
    }
    let rows = match request.rows {
        0 => "not read".to_owned(),
        1 => "1 row".to_owned(),
        rows => format!("{rows} rows"),
    };
    let key = key_of(request).map(|key| format!(", key {key}"));
    let address = request.address.as_ref();
    let address = address.map(|address| format!(", from {address}"));
    let arrived = format_time(request.at_ms as u64);
    let (key, address) = (key.unwrap_or_default(), address.unwrap_or_default());
    output::print_line(format!("  arrived   {arrived}, {rows}{key}{address}"))?;
    if let Some(trace) = &request.trace_id {
        output::print_line(format!("  trace     {trace}"))?;
    }
    let stages = &request.stages_ms;
    let parts = [
        ("receive", stages.receive),
        ("decode", stages.decode),
        ("tokenize", stages.tokenize),
        ("lookup", stages.lookup),
        ("load", stages.load),
        ("batch", stages.batch),
        ("queue", stages.queue),
        ("network", stages.network),
        ("worker queue", stages.worker_queue),
        ("copy in", stages.copy_in),
        ("compute", stages.compute),
        ("copy out", stages.copy_out),
    ];
    let spent = parts.iter().filter(|(_, ms)| *ms >= 0.05);
    let spent: Vec<String> = spent
        .map(|(name, ms)| format!("{name} {}", format_number(*ms)))
        .collect();
    if !spent.is_empty() {
        output::print_line(format!("  ms        {}", spent.join(", ")))?;
    }
    let Some(batch) = &request.batch else {
        let none = match request.cache {
            Some(CacheUse::Hit) => "  batch     none: the cache had its answer",
            _ => "  batch     none was sent with it",
        };
        return Ok(output::print_line(none)?);
    };
    let device = batch.device.as_ref();
    let device = device.map_or_else(String::new, |device| format!(" on {device}"));
    let text = format!("  batch     {} of {} rows{device}", batch.id, batch.rows);
    Ok(output::print_line(text)?)
}

//! `packhorse requests` and `packhorse trace`: requests that ended lately, and where their time went.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use packhorse_api::{EndOfRequest, RequestFilter, RequestView};

use super::arguments::{ModelReference, parse_duration, parse_model};
use crate::{
    context::Context,
    output::{self, Colour, format_number, format_time, paint},
    view::versioned_name,
};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse requests --missed\n  packhorse requests --model minilm --limit 100 --json"
)]
pub(crate) struct RequestsArgs {
    /// Show only requests that missed their SLO
    #[arg(long, conflicts_with = "outcome")]
    missed: bool,
    /// Show only requests that ended in this way: answered, late, refused, expired, lost, failed or cancelled
    #[arg(long, value_name = "OUTCOME")]
    outcome: Option<RequestFilter>,
    /// Show only requests of this model, in all its versions or in this one
    #[arg(long, value_name = "NAME[:VERSION]", value_parser = parse_model)]
    model: Option<ModelReference>,
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
        let requests = context
            .admin()?
            .requests(
                filter.or(self.outcome),
                self.model.as_ref().map(|(name, version)| (name, *version)),
                self.limit.into(),
            )
            .await?;
        if context.json() {
            return output::print_json(&requests);
        }
        print(&requests)
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
        "MODEL",
        "OUTCOME",
        "LATENCY MS",
        "SLO MS",
        "RECEIVE",
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
        let colour = if request.outcome.is_missed() {
            Colour::Red
        } else if request.outcome == EndOfRequest::Answered {
            Colour::Green
        } else {
            Colour::Yellow
        };
        table.add_row([
            format_time(request.at_ms as u64),
            versioned_name(&request.model, request.version),
            paint(request.outcome.name(), colour),
            format_number(request.latency_ms),
            format_number(request.slo_ms),
            format_number(stages.receive),
            format_number(stages.load),
            format_number(stages.batch),
            format_number(stages.queue),
            format_number(stages.network),
            format_number(stages.worker_queue),
            format_number(stages.copy_in + stages.copy_out),
            format_number(stages.compute),
            device.map_or_else(|| "-".to_owned(), ToString::to_string),
            request.reason.clone().unwrap_or_default(),
        ]);
    }
    Ok(output::print_table(&table, "no requests")?)
}

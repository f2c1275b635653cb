//! `packhorse-lab bench`: sends requests to a live gateway and measures how they are answered.
//!
//! [`model`] sends one request to one model, in an open or a closed loop; [`scenario_load`] sends the load of a scenario to its models.

mod model;
mod open_loop;
mod payload;
mod scenario_load;

use std::path::PathBuf;

use packhorse_terminal::context::Context;

use self::{model::ModelArgs, scenario_load::ScenarioLoad};

/// The largest number of unanswered requests of a scenario, unless a flag says another.
const SCENARIO_CONCURRENCY: u32 = 512;

#[derive(clap::Args)]
#[group(id = "subject", required = true, multiple = false, args = ["model", "scenario"])]
#[command(after_help = "\
With MODEL, one request is encoded once and sent again and again, over kept HTTP/1.1 connections. --rate is \
an open loop: each request is due at a time that follows from rate, kind of gaps and seed alone, and its \
latency counts from then. --concurrency is a closed loop: each client sends its next request when it has \
the answer to the last; one client is the default. Requests are refused (429, 503 with Retry-After), \
expired (504), failed (other statuses) or lost (the worker or the connection).

With --scenario, the models of the scenario must be registered with the gateway of --url; the scenario's \
devices and profiles are ignored. A model with `requests` is sent that number of requests; any other model \
is sent the requests that arrive until the window ends. A request has one row of zeros in the shape that \
the gateway declares; dimensions that vary are as long as payload_bytes allows. Its deadline is the \
scenario's slo_ms. The report has the live cluster's plan and discipline if --admin-url and --token-file \
give access to them. Latency counts from the time at which a request is due. Requests that are sent more \
than 10 ms late are counted; if there are many, the client limits the results.

Examples:
  packhorse-lab bench resnet50 --concurrency 8 --duration 30
  packhorse-lab bench resnet50 --rate 200 --input image=cat.npy --slo 100 --stages --plot latency.svg
  packhorse-lab bench resnet50 --rate 200 --arrivals uniform --json-tensors --deadline 50 --json
  packhorse-lab bench resnet50 --find-capacity --slo 100 --duration 5
  packhorse-lab bench --scenario live.toml
  packhorse-lab bench --scenario live.toml --url http://gateway:8080 --seed 3 --json")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Clients of a closed loop; with --scenario the largest number of unanswered requests, after which requests wait, which counts
    /// as latency [default: 1; with --scenario 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    concurrency: Option<u32>,
    /// Seed of the arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Scenario: models, rates and SLOs
    #[arg(long, value_name = "FILE", help_heading = "Load of a scenario")]
    scenario: Option<PathBuf>,
    /// Send a request again whose connection fails, until its SLO has passed: a gateway may be started again
    #[arg(long, conflicts_with = "model", help_heading = "Load of a scenario")]
    retry: bool,
    /// Write the numbers of requests by second, model and outcome into this file, as CSV
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "model",
        help_heading = "Load of a scenario"
    )]
    timeline: Option<PathBuf>,
}

impl BenchArgs {
    pub(super) async fn run(&self, context: &Context) -> anyhow::Result<()> {
        let (seed, concurrency) = (self.seed, self.concurrency);
        if let Some(scenario) = &self.scenario {
            let load = ScenarioLoad {
                scenario,
                seed,
                concurrency: concurrency.unwrap_or(SCENARIO_CONCURRENCY),
                retry: self.retry,
                timeline: self.timeline.as_deref(),
            };
            return load.run(context).await;
        }
        let model = self.model.model.as_ref();
        let model = model.expect("a model or a scenario is required");
        self.model.run(model, seed, concurrency, context).await
    }
}

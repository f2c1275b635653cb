//! `packhorse bench`: a scenario's load against a live gateway.
//!
//! The load is open-loop: requests are sent when a simulation of the same scenario and seed has them arrive, whether or not the
//! ones before are answered, and latency counts from that moment. A gateway or a client that falls behind cannot hide it.

mod drive;
mod payload;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Context as _;
use indicatif::ProgressBar;
use packhorse_client::InferenceClient;
use packhorse_cluster::{Discipline, ModelSpec};
use packhorse_protocol::{Form, ModelStatistics, RequestMessage};
use packhorse_simulator::{Measurement, ModelReport, Scenario, Schedule, Totals};
use serde::Serialize;
use serde_json::Value;

use self::drive::{Ended, Target, drive};
use super::{plan, scenario, simulate};
use crate::{
    context::Context,
    output::{self, number},
};

/// A request that is sent more than this after it was due was not sent in time.
const LATE_MS: f64 = 10.0;

/// The most different failures that are told apart.
const MAX_FAILURES: usize = 8;

#[derive(clap::Args)]
#[command(after_help = "\
The models of the scenario must be registered with the gateway of --url; devices and profiles of
the scenario do not matter. A model with `requests` gets so many, the others what arrives until the
window ends. Every request has one row of zeros in the shape that the gateway declares; dimensions
that vary are as long as payload_bytes allows. Its deadline is the scenario's slo_ms. Plan and
discipline are the live cluster's, where --admin-url and --token-file lead to it.

Latency counts from the moment at which a request was due, so that whatever makes the client wait
is in it. What was sent more than 10 ms late is counted: with many of them the numbers say as much
of this client as of the gateway.

Examples:
  packhorse bench --scenario live.toml
  packhorse bench --scenario live.toml --url http://gateway:8080 --seed 3 --json")]
pub(crate) struct BenchArgs {
    /// Which models are asked how often
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Seed of the arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The most requests under way at a time; further ones wait, and that is counted
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    concurrency: u32,
}

/// What `--json` prints: a simulation's report, and what is to be known of the client.
#[derive(Serialize)]
struct Report {
    scenario: String,
    /// Null if the admin listener cannot be asked.
    discipline: Option<Discipline>,
    seed: u64,
    /// Null if the admin listener cannot be asked.
    plan: Option<Value>,
    models: Vec<ModelReport>,
    totals: Totals,
    client: Client,
}

#[derive(Serialize)]
struct Client {
    url: String,
    sent: usize,
    /// Sent more than [`LATE_MS`] after they were due.
    sent_late: usize,
    max_lateness_ms: f64,
    /// Neither answered nor dropped.
    failed: u64,
    /// How often what was said of it.
    failures: BTreeMap<String, u64>,
}

impl BenchArgs {
    pub(super) async fn run(&self, context: &Context) -> anyhow::Result<()> {
        let scenario = scenario::read(&self.scenario)?;
        let shown = || self.scenario.display().to_string();
        let schedule = Schedule::new(&scenario, self.seed).with_context(shown)?;
        let client = context.inference();
        let targets = targets(&scenario, &client).await.with_context(shown)?;
        let (discipline, plan) = live(context).await;
        let before = statistics(&client, &targets).await;

        let bar = ProgressBar::new(schedule.requests().len() as u64);
        let mut measurement = Measurement::new(&scenario, &schedule);
        let mut sent = Client {
            url: context.url().to_string(),
            sent: schedule.requests().len(),
            sent_late: 0,
            max_lateness_ms: 0.0,
            failed: 0,
            failures: BTreeMap::new(),
        };
        let record = |ended: Ended| {
            bar.inc(1);
            let lateness = ended.sent.saturating_since(ended.due).as_secs_f64() * 1e3;
            sent.sent_late += usize::from(lateness > LATE_MS);
            sent.max_lateness_ms = sent.max_lateness_ms.max(lateness);
            match ended.outcome {
                drive::Outcome::Answered => {
                    measurement.answered(ended.model, ended.due, ended.at);
                }
                drive::Outcome::Dropped => measurement.dropped(ended.model),
                drive::Outcome::Failed(why) => {
                    measurement.lost(ended.model);
                    sent.fail(why);
                }
            }
        };
        let concurrency = self.concurrency as usize;
        let requests = schedule.requests();
        drive(&client, targets.as_slice(), requests, concurrency, record).await;
        bar.finish_and_clear();

        let after = statistics(&client, &targets).await;
        let mean_batch: Vec<Option<f64>> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| mean_batch(before.as_ref()?, after.as_ref()?))
            .collect();
        let (models, totals) = measurement.report(&mean_batch);
        let report = Report {
            scenario: scenario.name.clone(),
            discipline,
            seed: self.seed,
            plan,
            models,
            totals,
            client: sent,
        };
        if context.json() {
            output::json(&report)
        } else {
            print(&report)
        }
    }
}

impl Client {
    fn fail(&mut self, why: String) {
        self.failed += 1;
        let known = self.failures.len() < MAX_FAILURES || self.failures.contains_key(&why);
        let why = if known { why } else { "other".to_owned() };
        *self.failures.entry(why).or_default() += 1;
    }
}

/// How each model is asked, in the scenario's order.
async fn targets(scenario: &Scenario, client: &InferenceClient) -> anyhow::Result<Vec<Target>> {
    let mut targets = Vec::new();
    for (i, model) in scenario.problem.models.iter().enumerate() {
        let at = || format!("models[{i}] is {}", model.id);
        let (name, version) = (model.id.name.clone(), model.id.version);
        let metadata = client
            .model_metadata(&name, Some(version))
            .await
            .with_context(at)?;
        let inputs = payload::inputs(&metadata.inputs, model.payload.as_u64()).with_context(at)?;
        let request = RequestMessage {
            inputs,
            output_form: Some(Form::Binary),
            // Beyond the longest objective there is no timeout either.
            timeout: Some(model.slo).filter(|slo| *slo <= ModelSpec::MAX_SLO),
            ..RequestMessage::default()
        };
        targets.push(Target {
            name,
            version,
            request,
        });
    }
    Ok(targets)
}

/// Discipline and plan of the cluster, where the admin listener tells them: a benchmark does without.
async fn live(context: &Context) -> (Option<Discipline>, Option<Value>) {
    let Ok(admin) = context.admin() else {
        return (None, None);
    };
    let told = async {
        let discipline = admin.policy().await?.discipline;
        anyhow::Ok((Some(discipline), plan::live(&admin).await?))
    };
    told.await.unwrap_or_else(|error| {
        eprintln!("note: the cluster's plan and discipline are not known: {error:#}");
        (None, None)
    })
}

/// What the gateway has counted for each model, where it says so.
async fn statistics(client: &InferenceClient, targets: &[Target]) -> Vec<Option<ModelStatistics>> {
    let mut all = Vec::new();
    for target in targets {
        let told = client.model_statistics(&target.name, Some(target.version));
        let told = told.await.ok();
        all.push(told.and_then(|told| told.model_stats.into_iter().next()));
    }
    all
}

/// Rows per batch between two looks at the gateway's statistics, whoever asked.
fn mean_batch(before: &ModelStatistics, after: &ModelStatistics) -> Option<f64> {
    let batches = after.execution_count.checked_sub(before.execution_count)?;
    let rows = after.inference_count.checked_sub(before.inference_count)?;
    (batches > 0).then(|| rows as f64 / batches as f64)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let policy = report
        .plan
        .as_ref()
        .and_then(|plan| plan["policy"].as_str());
    let discipline = report.discipline.map(|discipline| discipline.to_string());
    output::line(format!(
        "seed {}: {} against {}, planned by {}, dispatched by {}",
        report.seed,
        report.scenario,
        report.client.url,
        policy.unwrap_or("an unknown policy"),
        discipline.as_deref().unwrap_or("an unknown discipline")
    ))?;
    simulate::print_models(&report.models, report.totals)?;
    let client = &report.client;
    output::line(format!(
        "{} requests, {} of them sent more than {LATE_MS} ms after they were due (at most {} ms)",
        client.sent,
        client.sent_late,
        number(client.max_lateness_ms)
    ))?;
    for (why, count) in &client.failures {
        output::line(format!("{count} requests failed: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_batch_is_of_what_happened_meanwhile() {
        let counted = |rows, batches| ModelStatistics {
            inference_count: rows,
            execution_count: batches,
            ..ModelStatistics::default()
        };
        let mean = mean_batch(&counted(10, 10), &counted(40, 20));
        assert_eq!(mean, Some(3.0));
        assert_eq!(mean_batch(&counted(10, 10), &counted(10, 10)), None);
        // The gateway was started anew.
        assert_eq!(mean_batch(&counted(10, 10), &counted(4, 2)), None);
    }

    #[test]
    fn failures_are_told_apart_up_to_a_limit() {
        let mut client = Client {
            url: String::new(),
            sent: 0,
            sent_late: 0,
            max_lateness_ms: 0.0,
            failed: 0,
            failures: BTreeMap::new(),
        };
        for i in 0..30 {
            client.fail(format!("{}", i % 15));
        }
        assert_eq!(client.failed, 30);
        assert_eq!(client.failures.len(), MAX_FAILURES + 1);
        assert_eq!(client.failures["other"], 14);
    }
}

//! `packhorse-lab bench --scenario`: sends a scenario's load to a live gateway and measures how it is served.
//!
//! The load is open-loop: a request is due at the time at which it arrives in a simulation of the same scenario and seed, whether or
//! not earlier requests are answered. Latency counts from that time, so that it includes the delays of a slow gateway and of a slow
//! client.

use std::{collections::BTreeMap, path::Path};

use anyhow::Context as _;
use indicatif::ProgressBar;
use packhorse_client::InferenceClient;
use packhorse_cluster::{Discipline, ModelSpec};
use packhorse_protocol::{Form, ModelStatistics, RequestMessage};
use packhorse_simulator::{
    ArrivalSchedule, BenchCounters, ModelReport, RequestEnd as EndKind, Scenario, Timeline, Totals,
};
use packhorse_terminal::{
    context::Context,
    files::write_file,
    output::{self, format_number},
    plan,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    open_loop::{Options, RequestEnd, RequestOutcome, Target, send_open_loop},
    payload,
};
use crate::{model_table::print_models, scenario};

/// The delay in milliseconds after which a request counts as sent late.
const LATE_MS: f64 = 10.0;

/// The largest number of different failures that are counted apart.
const MAX_FAILURES: usize = 8;

/// A scenario's load.
pub(super) struct ScenarioLoad<'a> {
    /// The scenario: models, rates and SLOs.
    pub(super) scenario: &'a Path,
    /// The seed of the arrivals.
    pub(super) seed: u64,
    /// The largest number of unanswered requests.
    pub(super) concurrency: u32,
    /// True if a request whose connection fails is sent again.
    pub(super) retry: bool,
    /// The file for the numbers of requests by second.
    pub(super) timeline: Option<&'a Path>,
}

/// The report as JSON: that of a simulation, and measurements of the client.
#[derive(Serialize)]
struct Report {
    scenario: String,
    /// The discipline; null if the admin API is not accessible.
    discipline: Option<Discipline>,
    seed: u64,
    /// The plan in force; null if the admin API is not accessible.
    plan: Option<Value>,
    models: Vec<ModelReport>,
    totals: Totals,
    client: ClientReport,
}

#[derive(Serialize)]
struct ClientReport {
    url: String,
    sent: usize,
    /// The requests sent more than [`LATE_MS`] after they were due.
    sent_late: usize,
    max_lateness_ms: f64,
    /// The requests that were neither answered nor dropped.
    failed: u64,
    /// The number of requests by error message.
    failures: BTreeMap<String, u64>,
}

impl ScenarioLoad<'_> {
    pub(super) async fn run(&self, context: &Context) -> anyhow::Result<()> {
        let scenario = scenario::read_scenario(self.scenario)?;
        let shown = || self.scenario.display().to_string();
        let schedule = ArrivalSchedule::new(&scenario, self.seed).with_context(shown)?;
        let client = context.inference()?;
        let targets = targets(&scenario, &client).await.with_context(shown)?;
        let (discipline, plan) = live_cluster(context).await;
        let before = statistics(&client, &targets).await;

        let bar = ProgressBar::new(schedule.requests().len() as u64);
        let mut counters = BenchCounters::new(&scenario, &schedule);
        let mut sent = ClientReport {
            url: context.url().to_string(),
            sent: schedule.requests().len(),
            sent_late: 0,
            max_lateness_ms: 0.0,
            failed: 0,
            failures: BTreeMap::new(),
        };
        let mut timeline = Timeline::default();
        let record = |end: RequestEnd| {
            bar.inc(1);
            let lateness = end.sent.saturating_since(end.due).as_secs_f64() * 1e3;
            sent.sent_late += usize::from(lateness > LATE_MS);
            sent.max_lateness_ms = sent.max_lateness_ms.max(lateness);
            let kind = match end.outcome {
                RequestOutcome::Answered => {
                    counters.answered(end.model, end.due, end.ended);
                    let slo = scenario.problem.models[end.model.0].slo;
                    if end.ended.saturating_since(end.due) <= slo {
                        EndKind::WithinSlo
                    } else {
                        EndKind::Late
                    }
                }
                RequestOutcome::Dropped => {
                    counters.dropped(end.model);
                    EndKind::Dropped
                }
                RequestOutcome::Disconnected(error) | RequestOutcome::Failed(error) => {
                    counters.lost(end.model);
                    sent.count_failure(error);
                    EndKind::Lost
                }
            };
            timeline.count(end.model, end.due, kind);
        };
        let concurrency = self.concurrency as usize;
        let requests = schedule.requests();
        let options = Options {
            concurrency,
            retry: self.retry,
        };
        send_open_loop(&client, targets.as_slice(), requests, options, record).await;
        bar.finish_and_clear();
        if let Some(file) = self.timeline {
            write_file(file, timeline.to_csv(&scenario).as_bytes())?;
        }

        let after = statistics(&client, &targets).await;
        let mean_batch: Vec<Option<f64>> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| mean_batch(before.as_ref()?, after.as_ref()?))
            .collect();
        let (models, totals) = counters.report(&mean_batch);
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
            output::print_json(&report)
        } else {
            print_report(&report)
        }
    }
}

impl ClientReport {
    fn count_failure(&mut self, error: String) {
        self.failed += 1;
        let known = self.failures.len() < MAX_FAILURES || self.failures.contains_key(&error);
        let error = if known { error } else { "other".to_owned() };
        *self.failures.entry(error).or_default() += 1;
    }
}

/// Returns the request for each model, in the scenario's order.
async fn targets(scenario: &Scenario, client: &InferenceClient) -> anyhow::Result<Vec<Target>> {
    let mut targets = Vec::new();
    for (i, model) in scenario.problem.models.iter().enumerate() {
        let at = || format!("models[{i}] is {}", model.id);
        let (name, version) = (model.id.name.clone(), model.id.version);
        let metadata = client
            .model_metadata(&name, Some(version))
            .await
            .with_context(at)?;
        let inputs =
            payload::inputs(&metadata.inputs, 1, model.payload.as_u64()).with_context(at)?;
        let request = RequestMessage {
            inputs,
            output_form: Some(Form::Binary),
            // A timeout can be as long as the longest SLO.
            timeout: Some(model.slo).filter(|slo| *slo <= ModelSpec::MAX_SLO),
            ..RequestMessage::default()
        };
        targets.push(Target {
            name,
            version,
            slo: model.slo,
            request,
        });
    }
    Ok(targets)
}

/// Returns the discipline and the plan of the cluster, or `None` if the admin API is not accessible.
async fn live_cluster(context: &Context) -> (Option<Discipline>, Option<Value>) {
    let Ok(admin) = context.admin() else {
        return (None, None);
    };
    let answer = async {
        let discipline = admin.policy().await?.discipline;
        anyhow::Ok((Some(discipline), plan::current_plan_json(&admin).await?))
    };
    answer.await.unwrap_or_else(|error| {
        output::note(format_args!(
            "note: the report lacks the cluster's plan and discipline: {error:#}"
        ));
        (None, None)
    })
}

/// Returns the gateway's counters of each model, or `None` if it does not return them.
async fn statistics(client: &InferenceClient, targets: &[Target]) -> Vec<Option<ModelStatistics>> {
    let mut all = Vec::new();
    for target in targets {
        let answer = client.model_statistics(&target.name, Some(target.version));
        let statistics = answer.await.ok();
        all.push(statistics.and_then(|statistics| statistics.model_stats.into_iter().next()));
    }
    all
}

/// Returns the rows per batch between two readings of the gateway's counters, including the batches of other clients.
fn mean_batch(before: &ModelStatistics, after: &ModelStatistics) -> Option<f64> {
    let batches = after.execution_count.checked_sub(before.execution_count)?;
    let rows = after.inference_count.checked_sub(before.inference_count)?;
    (batches > 0).then(|| rows as f64 / batches as f64)
}

fn print_report(report: &Report) -> anyhow::Result<()> {
    let policy = report
        .plan
        .as_ref()
        .and_then(|plan| plan["policy"].as_str());
    let discipline = report.discipline.map(|discipline| discipline.to_string());
    output::print_line(format!(
        "seed {}: {} against {}, planned by {}, dispatched by {}",
        report.seed,
        report.scenario,
        report.client.url,
        policy.unwrap_or("an unknown policy"),
        discipline.as_deref().unwrap_or("an unknown discipline")
    ))?;
    print_models(&report.models, report.totals)?;
    let client = &report.client;
    output::print_line(format!(
        "{} requests, {} of them sent more than {LATE_MS} ms late (at most {} ms)",
        client.sent,
        client.sent_late,
        format_number(client.max_lateness_ms)
    ))?;
    for (error, count) in &client.failures {
        output::print_line(format!("{count} requests failed: {error}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_batch_is_that_between_two_readings() {
        let counted = |rows, batches| ModelStatistics {
            inference_count: rows,
            execution_count: batches,
            ..ModelStatistics::default()
        };
        let mean = mean_batch(&counted(10, 10), &counted(40, 20));
        assert_eq!(mean, Some(3.0));
        assert_eq!(mean_batch(&counted(10, 10), &counted(10, 10)), None);
        // The gateway was restarted.
        assert_eq!(mean_batch(&counted(10, 10), &counted(4, 2)), None);
    }

    #[test]
    fn failures_are_counted_apart_up_to_a_limit() {
        let mut client = ClientReport {
            url: String::new(),
            sent: 0,
            sent_late: 0,
            max_lateness_ms: 0.0,
            failed: 0,
            failures: BTreeMap::new(),
        };
        for i in 0..30 {
            client.count_failure(format!("{}", i % 15));
        }
        assert_eq!(client.failed, 30);
        assert_eq!(client.failures.len(), MAX_FAILURES + 1);
        assert_eq!(client.failures["other"], 14);
    }
}

//! `packhorse-lab predict`: predicts the latencies of a plan's replicas by a policy's own model, and compares such predictions with
//! measurements.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use packhorse_cluster::{ModelIndex, PlannedReplica};
use packhorse_contention::{PairMember, PairTable};
use packhorse_placement::PlanningOptions;
use packhorse_simulator::{ReplicaReport, Scenario};
use packhorse_terminal::{
    context::Context,
    files::read_text_within_limit,
    output::{self, format_number},
    policy_options::PolicyOptionArgs,
    versioned_name,
};
use serde::Serialize;

use super::scenario::{self, PolicyName};

#[derive(clap::Args)]
#[command(after_help = "\
--measured reads a CSV file with the columns model_a, model_b, batch_a, batch_b, share_a_pct, share_b_pct, latency_a_ms \
and latency_b_ms. A row is two replicas that were measured together on the scenario's first device; \
`packhorse-lab profile pairs` writes such files.

Examples:
  packhorse-lab predict --scenario scenarios/igniter/readme.toml --policy igniter --plan plan.json
  packhorse-lab predict --scenario scenarios/igniter/pairs.toml --policy igniter --measured scenarios/igniter/pairs.csv")]
#[group(id = "what", required = true, args = ["plan", "measured"])]
pub(crate) struct PredictArgs {
    /// Scenario: devices, models, rates and SLOs
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Placement policy that has a model of latencies: igniter or goodput
    #[arg(long, value_name = "POLICY")]
    policy: PolicyName,
    #[command(flatten)]
    options: PolicyOptionArgs,
    /// Plan, in the form that `packhorse plan --json` prints
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Print the errors of predictions for these measured pairs, in place of a plan's predictions
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
}

/// The predictions for a plan as JSON.
#[derive(Serialize)]
struct PredictReport {
    replicas: Vec<PredictedReplica>,
}

#[derive(Serialize)]
struct PredictedReplica {
    #[serde(flatten)]
    replica: ReplicaReport,
    latency_ms: f64,
}

/// The errors of predictions as JSON.
#[derive(Serialize)]
struct ErrorReport {
    scenario: String,
    policy: &'static str,
    /// The number of compared latencies: two for each pair.
    measurements: usize,
    mean_error_pct: f64,
    largest_error_pct: f64,
    models: Vec<ModelErrors>,
}

#[derive(Serialize)]
struct ModelErrors {
    name: String,
    measurements: usize,
    mean_error_pct: f64,
    largest_error_pct: f64,
}

impl PredictArgs {
    pub(super) fn run(&self, context: &Context) -> anyhow::Result<()> {
        let scenario = scenario::read_scenario(&self.scenario)?;
        let options = scenario::planning_options(&scenario, &self.options)?;
        let predictor = Predictor {
            scenario: &scenario,
            policy: &self.policy,
            options,
        };
        if let Some(path) = &self.measured {
            return predictor.print_errors(context, path);
        }
        let path = self
            .plan
            .as_ref()
            .context("expected --plan or --measured")?;
        let replicas = scenario::read_plan(&scenario, path)?;
        predictor.print_latencies(context, &replicas)
    }
}

struct Predictor<'a> {
    scenario: &'a Scenario,
    policy: &'a PolicyName,
    options: PlanningOptions,
}

impl Predictor<'_> {
    /// Returns the predicted latencies in milliseconds.
    fn latencies_ms(&self, replicas: &[PlannedReplica]) -> anyhow::Result<Vec<f64>> {
        let entry = self.policy.entry()?;
        let predicted = entry.predict(&self.scenario.problem, &self.options, replicas)?;
        Ok(predicted
            .iter()
            .map(|latency| latency.as_secs_f64() * 1e3)
            .collect())
    }

    fn print_latencies(
        &self,
        context: &Context,
        replicas: &[PlannedReplica],
    ) -> anyhow::Result<()> {
        let latencies = self.latencies_ms(replicas)?;
        if context.json() {
            let reports = replicas.iter().zip(latencies);
            return output::print_json(&PredictReport {
                replicas: reports
                    .map(|(replica, latency_ms)| PredictedReplica {
                        replica: self.scenario.replica_report(replica),
                        latency_ms,
                    })
                    .collect(),
            });
        }
        let header = [
            "DEVICE",
            "MODEL",
            "BATCH",
            "SHARE",
            "LATENCY MS",
            "ALONE MS",
            "SLO MS",
        ];
        let mut table = output::new_table(&header);
        for (replica, latency_ms) in replicas.iter().zip(latencies) {
            let report = self.scenario.replica_report(replica);
            let problem = &self.scenario.problem;
            let alone = problem
                .profile(replica.model, replica.device)
                .map(|profile| profile.latency(replica.batch_size).as_secs_f64() * 1e3);
            let share = report.compute_share_pct;
            table.add_row([
                report.device.to_string(),
                report.model,
                report.batch_size.to_string(),
                share.map_or("-".to_owned(), |share| {
                    format!("{} %", format_number(share))
                }),
                format!("{latency_ms:.2}"),
                alone.map_or("-".to_owned(), |alone| format!("{alone:.2}")),
                format_number(problem.models[replica.model.0].slo.as_secs_f64() * 1e3),
            ]);
        }
        Ok(output::print_table(&table, "no replicas")?)
    }

    fn print_errors(&self, context: &Context, path: &Path) -> anyhow::Result<()> {
        let report = self.errors(path)?;
        if context.json() {
            return output::print_json(&report);
        }
        output::print_line(format!(
            "{} compared with {}: mean error {:.2} % over {} measurements, largest {:.1} %\n",
            report.policy,
            path.display(),
            report.mean_error_pct,
            report.measurements,
            report.largest_error_pct
        ))?;
        let mut table =
            output::new_table(&["MODEL", "MEASUREMENTS", "MEAN ERROR", "LARGEST ERROR"]);
        for model in report.models {
            table.add_row([
                model.name,
                model.measurements.to_string(),
                format!("{:.2} %", model.mean_error_pct),
                format!("{:.1} %", model.largest_error_pct),
            ]);
        }
        Ok(output::print_table(&table, "no measurements")?)
    }

    /// Returns the errors of the predictions for the pairs of a file.
    fn errors(&self, path: &Path) -> anyhow::Result<ErrorReport> {
        let shown = || path.display().to_string();
        let text = read_text_within_limit(path).with_context(shown)?;
        let mut by_model: BTreeMap<ModelIndex, Vec<f64>> = BTreeMap::new();
        let table = PairTable::from_csv(&text).with_context(shown)?;
        for (number, pair) in table.pairs.iter().enumerate() {
            let line = || format!("{}: line {}", path.display(), number + 2);
            let errors = self.pair_errors(pair).with_context(line)?;
            for (model, error) in errors {
                by_model.entry(model).or_default().push(error);
            }
        }
        let all: Vec<f64> = by_model.values().flatten().copied().collect();
        ensure!(!all.is_empty(), "{} has no pairs", path.display());
        let models = by_model.iter().map(|(model, errors)| ModelErrors {
            name: self.name(*model),
            measurements: errors.len(),
            mean_error_pct: mean(errors),
            largest_error_pct: largest(errors),
        });
        Ok(ErrorReport {
            scenario: self.scenario.name.clone(),
            policy: self.policy.entry()?.name,
            measurements: all.len(),
            mean_error_pct: mean(&all),
            largest_error_pct: largest(&all),
            models: models.collect(),
        })
    }

    fn name(&self, model: ModelIndex) -> String {
        let id = &self.scenario.problem.models[model.0].id;
        versioned_name(&id.name, id.version)
    }

    /// Returns the error of each of the two latencies, in percent of the measured one.
    fn pair_errors(&self, pair: &[PairMember; 2]) -> anyhow::Result<[(ModelIndex, f64); 2]> {
        let replica = |member: &PairMember| ReplicaReport {
            model: versioned_name(&member.model.name, member.model.version),
            device: 0,
            batch_size: member.batch_size,
            compute_share_pct: Some(member.compute_share.get()),
            worker: None,
            residency: None,
        };
        let replicas = self.scenario.replicas(&[0, 1].map(|i| replica(&pair[i])))?;
        let measured = |i: usize| pair[i].latency.as_secs_f64() * 1e3;
        let predicted = self.latencies_ms(&replicas)?;
        let error = |i: usize| 100.0 * (predicted[i] - measured(i)).abs() / measured(i);
        Ok([0, 1].map(|i| (replicas[i].model, error(i))))
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

//! `packhorse simulate`: plans tried in a simulated cluster, side by side.

use std::{path::PathBuf, time::Duration};

use indicatif::ProgressBar;
use packhorse_cluster::{Discipline, PlannedReplica, Time};
use packhorse_figures::runs;
use packhorse_simulator::{
    ModelReport, PlanReport, Replanning, Report, Scenario, Totals, csv, simulate,
    simulate_replanning,
};

use super::scenario::{self, ChoiceArgs, PolicyName};
use crate::{
    context::Context,
    output::{self, number},
    plot::PlotFile,
};

#[derive(clap::Args)]
#[command(after_help = "\
Repeat --policy, --discipline or --seed to see several side by side.

--csv prints a row per run and model under one header, and after each run's models one for the
sums, whose model is (total); what has no value is empty.

With --replan-every the first plan is for the scenario's rates. A new plan starts replicas beside
the old ones where memory allows, each ready after its model's load_ms; what both plans have is not
touched. A rate is told to the policy anew when it, smoothed over periods, has moved by a tenth, and
by more than chance makes of a steady one.

Examples:
  packhorse simulate --scenario thesis.toml --policy usher
  packhorse simulate --scenario thesis.toml --policy usher --policy first-fit --discipline fixed-wait --discipline deadline
  packhorse simulate --scenario thesis.toml --plan plan.json --seed 1 --seed 2 --seed 3 --json
  packhorse simulate --scenario thesis.toml --policy usher --policy first-fit --csv > runs.csv
  packhorse simulate --scenario scenarios/ramp/evening.toml --policy nexus --replan-every 2
  packhorse simulate --scenario thesis.toml --policy usher --policy ao-milp --plot runs.svg")]
pub(crate) struct SimulateArgs {
    /// What there is and what is asked of it
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Policies that plan
    #[arg(long, value_name = "P", default_value = packhorse_placement::DEFAULT_POLICY)]
    policy: Vec<PolicyName>,
    #[command(flatten)]
    choices: ChoiceArgs,
    /// A plan to try instead, as `packhorse plan --scenario FILE --json` prints it
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    plan: Option<PathBuf>,
    /// How requests become batches
    #[arg(long, value_name = "D", default_value = "deadline")]
    discipline: Vec<Discipline>,
    /// Seeds of all randomness
    #[arg(long, value_name = "N", default_value = "1")]
    seed: Vec<u64>,
    /// Let the policy replan every S simulated seconds, from the rates and slowdowns that the run has shown
    #[arg(long, value_name = "S", value_parser = parse_period, conflicts_with = "plan")]
    replan_every: Option<Duration>,
    /// Print results as CSV, for spreadsheets
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Also draw goodput beside the ideal, latencies, stages and, of a single run, batch sizes over time
    #[arg(long, value_name = "F.svg|F.png")]
    plot: Option<PlotFile>,
}

fn parse_period(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (1e-3..=1e7).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds between 0.001 and 1e7".to_owned()),
    }
}

/// What is tried.
struct Trial<'a> {
    /// None if the plan was read.
    policy: Option<&'a PolicyName>,
    plan: PlanReport,
    replicas: Vec<PlannedReplica>,
    discipline: Discipline,
}

impl SimulateArgs {
    pub(super) fn run(&self, context: &Context) -> anyhow::Result<()> {
        let scenario = scenario::read(&self.scenario)?;
        let mut reports = Vec::new();
        for trial in self.trials(&scenario)? {
            for &seed in &self.seed {
                reports.push(self.try_out(&scenario, &trial, seed)?);
            }
        }
        if let Some(plot) = &self.plot {
            plot.write(&runs::figure(&scenario, &reports))?;
        }
        if self.csv {
            return Ok(output::raw(csv(&reports).as_bytes())?);
        }
        match reports.as_slice() {
            [report] if context.json() => output::json(report),
            reports if context.json() => output::json(&reports),
            [report] => print(report),
            reports => print_side_by_side(reports, &self.seed),
        }
    }

    /// Every plan with every discipline.
    fn trials(&self, scenario: &Scenario) -> anyhow::Result<Vec<Trial<'_>>> {
        let mut trials = Vec::new();
        if let Some(path) = &self.plan {
            let replicas = scenario::read_plan(scenario, path)?;
            let report = PlanReport::from_replicas(scenario, &replicas);
            trials.extend(self.discipline.iter().map(|discipline| Trial {
                policy: None,
                plan: report.clone(),
                replicas: replicas.clone(),
                discipline: *discipline,
            }));
            return Ok(trials);
        }
        for policy in &self.policy {
            for &discipline in &self.discipline {
                let (replicas, plan) = scenario::plan(scenario, policy, &self.choices, discipline)?;
                trials.push(Trial {
                    policy: Some(policy),
                    plan,
                    replicas,
                    discipline,
                });
            }
        }
        Ok(trials)
    }

    fn try_out(&self, scenario: &Scenario, trial: &Trial, seed: u64) -> anyhow::Result<Report> {
        let Trial {
            policy,
            plan,
            replicas,
            discipline,
        } = trial;
        let (plan, discipline) = (plan.clone(), *discipline);
        let simulation = &scenario.simulation;
        let length = simulation.warmup + simulation.window;
        let bar = ProgressBar::new(u64::try_from(length.as_millis())?);
        let mut progress = |now: Time| bar.set_position(now.as_nanos() / 1_000_000);
        let report = match (self.replan_every, policy) {
            (Some(every), Some(policy)) => {
                let mut policy = scenario::replanner(scenario, policy, &self.choices)?;
                let replanning = Replanning {
                    every,
                    policy: &mut policy,
                };
                simulate_replanning(
                    scenario,
                    plan,
                    replicas,
                    discipline,
                    seed,
                    replanning,
                    &mut progress,
                )
            }
            _ => simulate(scenario, plan, replicas, discipline, seed, &mut progress),
        };
        bar.finish_and_clear();
        Ok(report?)
    }
}

const MODEL_HEADER: [&str; 14] = [
    "MODEL",
    "OFFERED/S",
    "ANSWERED/S",
    "GOOD/S",
    "DROPPED",
    "P50 MS",
    "P95",
    "P99",
    "QUEUE P95",
    "BATCH P95",
    "NETWORK P95",
    "WORKER P95",
    "COMPUTE P95",
    "MEAN BATCH",
];

fn print(report: &Report) -> anyhow::Result<()> {
    output::line(format!(
        "seed {}: {}, planned by {}, dispatched by {}",
        report.seed, report.scenario, report.plan.policy, report.discipline
    ))?;
    let totals = report.totals;
    print_models(&report.models, totals)?;
    if let Some(replanning) = &report.replanning {
        output::line(format!(
            "replanned {} times, every {} s: {} plans were new, {} not to be had; {} replicas started, {} stopped",
            replanning.asked,
            replanning.every_s,
            replanning.changed,
            replanning.unanswered,
            replanning.started,
            replanning.stopped
        ))?;
    }
    print_lost(
        report
            .models
            .iter()
            .map(|model| (model.name.as_str(), model.lost)),
        totals,
    )
}

/// A line for each model, and one for the sums.
pub(super) fn print_models(models: &[ModelReport], totals: Totals) -> std::io::Result<()> {
    let mut table = output::table(&MODEL_HEADER);
    for model in models {
        table.add_row(model_row(model));
    }
    let mut row = vec!["total".to_owned()];
    row.extend(
        [
            totals.offered_rps,
            totals.throughput_rps,
            totals.goodput_rps,
        ]
        .map(number),
    );
    row.push(totals.dropped.to_string());
    row.resize(MODEL_HEADER.len(), String::new());
    table.add_row(row);
    output::line(output::table_text(&table))
}

/// What faults cost, where they did: nobody refused or dropped these.
fn print_lost<'a>(
    models: impl Iterator<Item = (&'a str, u64)>,
    totals: Totals,
) -> anyhow::Result<()> {
    if totals.lost == 0 {
        return Ok(());
    }
    let of: Vec<String> = models
        .filter(|(_, lost)| *lost > 0)
        .map(|(name, lost)| format!("{lost} of {name}"))
        .collect();
    let (lost, of) = (totals.lost, of.join(", "));
    Ok(output::line(format!(
        "{lost} requests were lost with their workers: {of}"
    ))?)
}

fn model_row(model: &ModelReport) -> Vec<String> {
    let (latency, stages) = (model.latency_ms, model.stages_ms_p95);
    let maybe = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let mut row = vec![model.name.clone()];
    row.extend([model.offered_rps, model.throughput_rps, model.goodput_rps].map(number));
    row.push(model.dropped.to_string());
    row.extend([latency.p50, latency.p95, latency.p99].map(maybe));
    row.extend(
        [
            stages.queue,
            stages.batch,
            stages.network,
            stages.worker_queue,
            stages.compute,
        ]
        .map(maybe),
    );
    row.push(maybe(model.mean_batch));
    row
}

fn print_side_by_side(reports: &[Report], seeds: &[u64]) -> anyhow::Result<()> {
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let scenario = reports
        .first()
        .map_or("", |report| report.scenario.as_str());
    output::line(format!("seed {}: {scenario}", seeds.join(", ")))?;
    let header = [
        "POLICY",
        "DISCIPLINE",
        "SEED",
        "OFFERED/S",
        "ANSWERED/S",
        "GOOD/S",
        "GOOD %",
        "DROPPED",
        "LOST",
        "NEW PLANS",
    ];
    let replans = reports.iter().any(|report| report.replanning.is_some());
    let header = &header[..header.len() - usize::from(!replans)];
    let mut table = output::table(header);
    for report in reports {
        let totals = report.totals;
        let mut row = vec![
            report.plan.policy.clone(),
            report.discipline.to_string(),
            report.seed.to_string(),
        ];
        row.extend(
            [
                totals.offered_rps,
                totals.throughput_rps,
                totals.goodput_rps,
            ]
            .map(number),
        );
        row.push(format!(
            "{:.1}",
            100.0 * totals.goodput_rps / totals.offered_rps.max(f64::MIN_POSITIVE)
        ));
        row.extend([totals.dropped, totals.lost].map(|count| count.to_string()));
        row.extend(
            report
                .replanning
                .map(|replanning| replanning.changed.to_string()),
        );
        table.add_row(row);
    }
    Ok(output::line(output::table_text(&table))?)
}

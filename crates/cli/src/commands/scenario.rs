//! Scenario files, and planning for them.

use std::{fs, path::Path, str::FromStr, time::Instant};

use anyhow::Context as _;
use packhorse_cluster::{Discipline, Plan, PlannedReplica, Problem};
use packhorse_placement::{
    Budget, ComputeMetric, IgniterCoefficients, Objective, PolicyOptions, UnknownPolicy, policy,
};
use packhorse_simulator::{PlanReport, Scenario};

use crate::{
    context::Context,
    output::{self, number},
};

/// The name of a policy that there is.
#[derive(Clone, Debug)]
pub(super) struct PolicyName(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        policy(name).map(|entry| Self(entry.name.to_owned()))
    }
}

/// A caller's choices about how a policy decides.
#[derive(clap::Args, Debug)]
pub(super) struct ChoiceArgs {
    /// What counts as a replica's need of multiprocessors, achieved, mean or sm [default: the policy's own]
    #[arg(long, value_name = "METRIC", requires = "scenario")]
    creq: Option<ComputeMetric>,
    /// What policies that optimise make as large as they can, goodput or max-min
    #[arg(long, value_name = "O", requires = "scenario", default_value_t)]
    objective: Objective,
    /// Has `nexus` reckon as its published code does, which waits (b-1)/rate for a batch of b
    #[arg(long, requires = "scenario")]
    nexus_published: bool,
    /// Which of equally good plans the MILPs take [default: whichever they find]
    #[arg(long, value_name = "WHAT", requires = "scenario", value_parser = ["small-batch"])]
    prefer: Option<String>,
}

impl ChoiceArgs {
    /// What counts as a replica's need of multiprocessors, where the caller says so.
    pub(super) fn compute_metric(&self) -> Option<ComputeMetric> {
        self.creq
    }
}

/// Reads a scenario; what it names is looked for from its own folder.
pub(super) fn read(path: &Path) -> anyhow::Result<Scenario> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut load = |name: &str| fs::read_to_string(folder.join(name)).map_err(|e| e.to_string());
    Scenario::parse(&text, &mut load).with_context(|| path.display().to_string())
}

/// How many steps a policy has each time that it is asked again during a run: never a time, or equal runs would differ.
const REPLAN_STEPS: u64 = 10_000_000;

fn options(scenario: &Scenario, choices: &ChoiceArgs) -> anyhow::Result<PolicyOptions> {
    let coefficients = scenario.igniter_coefficients.as_deref();
    Ok(PolicyOptions {
        compute_metric: choices.creq,
        objective: choices.objective,
        prefer_small_batch: choices.prefer.is_some(),
        nexus_published: choices.nexus_published,
        igniter_coefficients: coefficients
            .map(IgniterCoefficients::from_csv)
            .transpose()
            .context("igniter_coefficients")?,
    })
}

/// A policy to be asked during a run.
pub(super) fn replanner(
    scenario: &Scenario,
    name: &PolicyName,
    choices: &ChoiceArgs,
) -> anyhow::Result<impl FnMut(&Problem) -> Option<Plan>> {
    let (policy, options) = (policy(&name.0)?, options(scenario, choices)?);
    Ok(move |problem: &Problem| {
        let mut budget = Budget::new(REPLAN_STEPS, &|| false);
        policy.place_with(problem, &options, &mut budget).ok()
    })
}

/// Asks a policy.
#[expect(
    clippy::disallowed_methods,
    reason = "how long a policy takes is part of its report"
)]
pub(super) fn plan(
    scenario: &Scenario,
    name: &PolicyName,
    choices: &ChoiceArgs,
    discipline: Discipline,
) -> anyhow::Result<(Vec<PlannedReplica>, PlanReport)> {
    let mut problem = scenario.problem.clone();
    problem.discipline = discipline;
    let options = options(scenario, choices)?;
    let start = Instant::now();
    let plan = policy(&name.0)?
        .place_with(&problem, &options, &mut Budget::unlimited())
        .with_context(|| format!("policy {}", name.0))?;
    let solve_ms = start.elapsed().as_secs_f64() * 1e3;
    let report = PlanReport::new(scenario, &plan, solve_ms);
    Ok((plan.replicas, report))
}

/// Writes a plan for people, or for programs.
pub(super) fn print_plan(context: &Context, plan: &PlanReport) -> anyhow::Result<()> {
    if context.json() {
        return output::json(plan);
    }
    output::line(format!(
        "{} by {}: {} requests/s within their SLO expected, on {} devices",
        plan.scenario,
        plan.policy,
        number(plan.predicted_goodput_rps),
        plan.devices_used
    ))?;
    let mut table = output::table(&["DEVICE", "MODEL", "BATCH", "SHARE"]);
    let mut replicas: Vec<_> = plan.replicas.iter().collect();
    replicas.sort_by_key(|replica| replica.device);
    for replica in replicas {
        let share = replica
            .compute_share_pct
            .map_or("-".to_owned(), |share| format!("{} %", number(share)));
        let (device, batch) = (replica.device.to_string(), replica.batch_size.to_string());
        table.add_row([device, replica.model.clone(), batch, share]);
    }
    output::table_or(&table, "no replica")?;
    if !plan.unserved.is_empty() {
        output::line(format!("unserved: {}", plan.unserved.join(", ")))?;
    }
    Ok(())
}

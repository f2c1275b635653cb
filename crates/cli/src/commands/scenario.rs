//! Scenario files, and planning for them.

use std::{path::Path, str::FromStr, time::Instant};

use anyhow::Context as _;
use packhorse_cluster::{Device, Discipline, Explanation, Plan, PlannedReplica, Problem};
use packhorse_placement::{
    Budget, Cluster, ComputeMetric, ComputeShares, Effort, IgniterCoefficients, Objective,
    PolicyEntry, PolicyOptions, UnknownPolicy, policy, smallest_cluster,
};
use packhorse_simulator::{PlanReport, ReplicaReport, Scenario};
use serde::Deserialize;

use crate::{context::read_text_within_limit, output};

/// The name of a policy that there is.
#[derive(Clone, Debug)]
pub(super) struct PolicyName(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        policy(name).map(|entry| Self(entry.name.to_owned()))
    }
}

impl PolicyName {
    pub(super) fn entry(&self) -> anyhow::Result<&'static PolicyEntry> {
        Ok(policy(&self.0)?)
    }

    pub(super) fn into_name(self) -> String {
        self.0
    }
}

/// A caller's choices about how a policy decides.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ChoiceArgs {
    /// What counts as a replica's need of multiprocessors, achieved, mean or sm [default: the policy's own]
    #[arg(long, value_name = "METRIC")]
    creq: Option<ComputeMetric>,
    /// What policies that optimise make as large as they can, goodput or max-min [default: goodput]
    #[arg(long, value_name = "O")]
    objective: Option<Objective>,
    /// Has `nexus` reckon as its published code does, which waits (b-1)/rate for a batch of b
    #[arg(long)]
    nexus_published: bool,
    /// Which of equally good plans the MILPs take [default: whichever they find]
    #[arg(long, value_name = "WHAT", value_parser = ["small-batch"])]
    prefer: Option<String>,
    /// Whether `goodput` may confine replicas to shares of their GPU, which takes MPS, never or auto (where it pays) [default: never]
    #[arg(long, value_name = "WHEN")]
    compute_shares: Option<ComputeShares>,
    /// How many times as much as usual `goodput` tries [default: 1]
    #[arg(long, value_name = "TIMES")]
    effort: Option<Effort>,
}

impl ChoiceArgs {
    /// What counts as a replica's need of multiprocessors, where the caller says so.
    pub(super) fn compute_metric(&self) -> Option<ComputeMetric> {
        self.creq
    }

    /// For the policies here.
    pub(super) fn options(&self, scenario: &Scenario) -> anyhow::Result<PolicyOptions> {
        let coefficients = scenario.igniter_coefficients.as_deref();
        Ok(PolicyOptions {
            compute_metric: self.creq,
            objective: self.objective.unwrap_or_default(),
            prefer_small_batch: self.prefer.is_some(),
            nexus_published: self.nexus_published,
            compute_shares: self.compute_shares.unwrap_or_default(),
            effort: self.effort.unwrap_or_default(),
            igniter_coefficients: coefficients
                .map(IgniterCoefficients::from_csv)
                .transpose()
                .context("igniter_coefficients")?,
        })
    }

    /// For a gateway; none if nothing was chosen.
    pub(super) fn for_gateway(&self) -> Option<packhorse_api::PolicyOptions> {
        let chosen = packhorse_api::PolicyOptions {
            compute_metric: self.creq.map(|metric| metric.to_string()),
            objective: self.objective.map(|objective| objective.to_string()),
            prefer_small_batch: self.prefer.is_some(),
            nexus_published: self.nexus_published,
            compute_shares: self.compute_shares.map(|choice| choice.to_string()),
            effort: self.effort.map(Effort::get),
        };
        (chosen != packhorse_api::PolicyOptions::default()).then_some(chosen)
    }
}

/// Reads a scenario; what it names is looked for from its own folder.
pub(super) fn read(path: &Path) -> anyhow::Result<Scenario> {
    let text = read_text_within_limit(path).with_context(|| path.display().to_string())?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut load =
        |name: &str| read_text_within_limit(&folder.join(name)).map_err(|e| e.to_string());
    Scenario::parse(&text, &mut load).with_context(|| path.display().to_string())
}

/// Reads a plan for a scenario, as `packhorse plan --json` prints it.
pub(super) fn read_plan(scenario: &Scenario, path: &Path) -> anyhow::Result<Vec<PlannedReplica>> {
    /// What counts of it.
    #[derive(Deserialize)]
    struct PlanFile {
        replicas: Vec<ReplicaReport>,
    }
    let shown = || path.display().to_string();
    let text = read_text_within_limit(path).with_context(shown)?;
    let file: PlanFile = serde_json::from_str(&text).with_context(shown)?;
    scenario.replicas(&file.replicas).with_context(shown)
}

/// How many steps a policy has each time that it is asked again during a run: never a time, or equal runs would differ.
const REPLAN_STEPS: u64 = 10_000_000;

/// A policy to be asked during a run.
pub(super) fn replanner(
    scenario: &Scenario,
    name: &PolicyName,
    choices: &ChoiceArgs,
) -> anyhow::Result<impl FnMut(&Problem) -> Option<Plan>> {
    let (policy, options) = (name.entry()?, choices.options(scenario)?);
    Ok(move |problem: &Problem| {
        let mut budget = Budget::new(REPLAN_STEPS, &|| false);
        policy.place_with(problem, &options, &mut budget).ok()
    })
}

/// A policy's answer.
pub(super) struct Answer {
    /// The cluster that was planned for, with what the policy places there.
    pub(super) cluster: Cluster,
    /// How long the policy took.
    pub(super) solve_ms: f64,
    /// By model, if that is asked for.
    pub(super) explanations: Vec<Explanation>,
}

/// Asks a policy how it would place the scenario's models on the scenario's devices, or, with a limit, on how few devices it would
/// serve them all.
#[expect(
    clippy::disallowed_methods,
    reason = "how long a policy takes is part of its report"
)]
pub(super) fn ask(
    scenario: &Scenario,
    name: &PolicyName,
    choices: &ChoiceArgs,
    discipline: Discipline,
    min_devices: Option<usize>,
) -> anyhow::Result<Answer> {
    let problem = Problem {
        discipline,
        ..scenario.problem.clone()
    };
    let options = choices.options(scenario)?;
    let entry = name.entry()?;
    let mut budget = Budget::unlimited();
    let failed = || format!("policy {}", entry.name);
    let start = Instant::now();
    let cluster = match min_devices {
        None => {
            let placed = entry.place_with(&problem, &options, &mut budget);
            Cluster {
                plan: placed.with_context(failed)?,
                problem,
                exhaustive: true,
            }
        }
        Some(limit) => {
            let spinner = output::spinner();
            let mut tried = |counts: &[usize]| {
                let devices: usize = counts.iter().sum();
                spinner.set_message(format!("asking {} with {devices} devices", entry.name));
            };
            let found = smallest_cluster(entry, &problem, limit, &options, &mut budget, &mut tried);
            spinner.finish_and_clear();
            found.with_context(failed)?
        }
    };
    Ok(Answer {
        cluster,
        solve_ms: start.elapsed().as_secs_f64() * 1e3,
        explanations: Vec::new(),
    })
}

/// How many steps are taken to find what would serve models: never a time, or equal questions would have different answers.
const EXPLAIN_STEPS: u64 = 20_000_000;

/// What bounds each model on a cluster, and what it would take to serve it.
pub(super) fn explain(
    scenario: &Scenario,
    name: &PolicyName,
    choices: &ChoiceArgs,
    cluster: &Cluster,
) -> anyhow::Result<Vec<Explanation>> {
    let spinner = output::spinner();
    spinner.set_message("looking for what would serve all models");
    let found = packhorse_placement::explain(
        name.entry()?,
        &cluster.problem,
        &cluster.plan,
        &choices.options(scenario)?,
        &mut Budget::new(EXPLAIN_STEPS, &|| false),
    );
    spinner.finish_and_clear();
    Ok(found?)
}

/// Asks a policy, for a report.
pub(super) fn plan(
    scenario: &Scenario,
    name: &PolicyName,
    choices: &ChoiceArgs,
    discipline: Discipline,
) -> anyhow::Result<(Vec<PlannedReplica>, PlanReport)> {
    let Answer {
        cluster, solve_ms, ..
    } = ask(scenario, name, choices, discipline, None)?;
    let report = PlanReport::new(scenario, &cluster.plan, solve_ms);
    Ok((cluster.plan.replicas, report))
}

/// How many devices there are of each kind, in the order of their first.
pub(super) fn kinds(problem: &Problem) -> Vec<(&Device, usize)> {
    let mut kinds: Vec<(&Device, usize)> = Vec::new();
    for device in &problem.devices {
        match kinds.iter_mut().find(|(kind, _)| {
            (&kind.kind, kind.memory, kind.cost_per_hour)
                == (&device.kind, device.memory, device.cost_per_hour)
        }) {
            Some((_, count)) => *count += 1,
            None => kinds.push((device, 1)),
        }
    }
    kinds
}

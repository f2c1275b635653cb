//! Reads scenario files and plans for them.

use std::{path::Path, str::FromStr, time::Instant};

use anyhow::Context as _;
use packhorse_cluster::{Device, Discipline, Explanation, Plan, PlannedReplica, Problem};
use packhorse_placement::{
    Budget, IgniterCoefficients, PlanningOptions, PolicyEntry, SmallestCluster, UnknownPolicy,
    devices_needed, policy, smallest_cluster,
};
use packhorse_simulator::{DevicesByKind, PlanReport, ReplicaReport, Scenario};
use serde::Deserialize;

use crate::{files::read_text_within_limit, output, policy_options::PolicyOptionArgs};

/// The name of an existing policy.
#[derive(Clone, Debug)]
pub(super) struct PolicyName(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        parse_policy_name(name).map(Self)
    }
}

impl PolicyName {
    /// Returns the policy.
    pub(super) fn entry(&self) -> anyhow::Result<&'static PolicyEntry> {
        Ok(policy(&self.0)?)
    }
}

/// Checks the name of a policy.
pub(crate) fn parse_policy_name(name: &str) -> Result<String, UnknownPolicy> {
    policy(name).map(|entry| entry.name.to_owned())
}

/// Returns the options of a policy, with the scenario's coefficients for `igniter`.
pub(super) fn planning_options(
    scenario: &Scenario,
    options: &PolicyOptionArgs,
) -> anyhow::Result<PlanningOptions> {
    let coefficients = scenario.igniter_coefficients.as_deref();
    Ok(PlanningOptions {
        policy: options.options(),
        igniter_coefficients: coefficients
            .map(IgniterCoefficients::from_csv)
            .transpose()
            .context("igniter_coefficients")?,
    })
}

/// Reads a scenario. Paths in it are relative to its folder.
pub(super) fn read_scenario(path: &Path) -> anyhow::Result<Scenario> {
    let text = read_text_within_limit(path).with_context(|| path.display().to_string())?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut load =
        |name: &str| read_text_within_limit(&folder.join(name)).map_err(|e| e.to_string());
    Scenario::parse(&text, &mut load).with_context(|| path.display().to_string())
}

/// Reads the replicas of a plan for a scenario, in the form that `packhorse plan --json` prints.
pub(super) fn read_plan(scenario: &Scenario, path: &Path) -> anyhow::Result<Vec<PlannedReplica>> {
    /// The fields that are read.
    #[derive(Deserialize)]
    struct PlanFile {
        replicas: Vec<ReplicaReport>,
    }
    let shown = || path.display().to_string();
    let text = read_text_within_limit(path).with_context(shown)?;
    let file: PlanFile = serde_json::from_str(&text).with_context(shown)?;
    scenario.replicas(&file.replicas).with_context(shown)
}

/// The step limit of a policy that plans again during a run. A time limit would make equal runs differ.
const REPLAN_STEPS: u64 = 10_000_000;

/// Returns a function that plans again during a run.
pub(super) fn replanner(
    scenario: &Scenario,
    name: &PolicyName,
    options: &PolicyOptionArgs,
) -> anyhow::Result<impl FnMut(&Problem) -> Option<Plan>> {
    let (policy, options) = (name.entry()?, planning_options(scenario, options)?);
    Ok(move |problem: &Problem| {
        let mut budget = Budget::new(REPLAN_STEPS, &|| false);
        policy.place_with(problem, &options, &mut budget).ok()
    })
}

/// Returns a function that searches the smallest cluster during a run, as the gateway does.
pub(super) fn cluster_search(
    scenario: &Scenario,
    name: &PolicyName,
    options: &PolicyOptionArgs,
) -> anyhow::Result<impl FnMut(&Problem, &DevicesByKind) -> Option<DevicesByKind>> {
    let (policy, options) = (name.entry()?, planning_options(scenario, options)?);
    Ok(move |problem: &Problem, last: &DevicesByKind| {
        let mut budget = Budget::new(REPLAN_STEPS, &|| false);
        devices_needed(policy, problem, last, &options, &mut budget).ok()
    })
}

/// A plan for a scenario.
pub(super) struct PlanningOutcome {
    /// The cluster with the plan for it.
    pub(super) cluster: SmallestCluster,
    /// The time that the policy took, in milliseconds.
    pub(super) solve_ms: f64,
    /// The explanation of each model, if requested; else empty.
    pub(super) explanations: Vec<Explanation>,
}

/// Lets a policy place the scenario's models on the scenario's devices or, if `min_devices` has a limit, on the smallest cluster of at
/// most that many devices that serves all models.
#[expect(
    clippy::disallowed_methods,
    reason = "the time that a policy takes is part of its report"
)]
pub(super) fn place(
    scenario: &Scenario,
    name: &PolicyName,
    options: &PolicyOptionArgs,
    discipline: Discipline,
    min_devices: Option<usize>,
) -> anyhow::Result<PlanningOutcome> {
    let problem = Problem {
        discipline,
        ..scenario.problem_at_start()
    };
    let options = planning_options(scenario, options)?;
    let entry = name.entry()?;
    let mut budget = Budget::unlimited();
    let failed = || format!("policy {}", entry.name);
    let start = Instant::now();
    let cluster = match min_devices {
        None => {
            let placed = entry.place_with(&problem, &options, &mut budget);
            SmallestCluster {
                plan: placed.with_context(failed)?,
                problem,
                exhaustive: true,
            }
        }
        Some(limit) => {
            let spinner = output::spinner();
            let mut show_progress = |counts: &[usize]| {
                let devices: usize = counts.iter().sum();
                spinner.set_message(format!("planning with {} on {devices} devices", entry.name));
            };
            let found = smallest_cluster(
                entry,
                &problem,
                limit,
                &options,
                &mut budget,
                &mut show_progress,
            );
            spinner.finish_and_clear();
            found.with_context(failed)?
        }
    };
    Ok(PlanningOutcome {
        cluster,
        solve_ms: start.elapsed().as_secs_f64() * 1e3,
        explanations: Vec::new(),
    })
}

/// The step limit of explanations. A time limit would make equal requests differ.
const EXPLAIN_STEPS: u64 = 20_000_000;

/// Explains what limits each model of a plan, and which changes would suffice to serve it.
pub(super) fn explain(
    scenario: &Scenario,
    name: &PolicyName,
    options: &PolicyOptionArgs,
    cluster: &SmallestCluster,
) -> anyhow::Result<Vec<Explanation>> {
    let spinner = output::spinner();
    spinner.set_message("searching for changes that would serve all models");
    let found = packhorse_placement::explain(
        name.entry()?,
        &cluster.problem,
        &cluster.plan,
        &planning_options(scenario, options)?,
        &mut Budget::new(EXPLAIN_STEPS, &|| false),
    );
    spinner.finish_and_clear();
    Ok(found?)
}

/// Returns the replicas that a policy plans for a scenario, with the report of the plan.
pub(super) fn plan(
    scenario: &Scenario,
    name: &PolicyName,
    options: &PolicyOptionArgs,
    discipline: Discipline,
) -> anyhow::Result<(Vec<PlannedReplica>, PlanReport)> {
    let outcome = place(scenario, name, options, discipline, None)?;
    let report = PlanReport::new(scenario, &outcome.cluster.plan, outcome.solve_ms);
    Ok((outcome.cluster.plan.replicas, report))
}

/// Returns a device of each kind with the number of devices of that kind, in the order in which kinds first occur.
pub(super) fn count_kinds(problem: &Problem) -> Vec<(&Device, usize)> {
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

//! Reads scenario files and plans for them.

use std::{path::Path, str::FromStr, time::Instant};

use anyhow::Context as _;
use packhorse_cluster::{
    Device, Discipline, Explanation, Mixed, Plan, PlannedReplica, Problem, ReplicaSpec,
};
use packhorse_control::PlanningInput;
use packhorse_placement::{
    Budget, DEFAULT_POLICY, FALLBACK_POLICY, IgniterCoefficients, PlaceError, PlanningOptions,
    PolicyEntry, SmallestCluster, SmallestClusterError, UnknownPolicy, devices_needed, policy,
    smallest_cluster,
};
use packhorse_simulator::{DevicesByKind, PlanReport, ReplicaReport, Scenario};
use packhorse_terminal::{files::read_text_within_limit, output, policy_options::PolicyOptionArgs};
use serde::Deserialize;

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

/// Returns the policy that the scenario names, or the default.
pub(super) fn default_policy(scenario: &Scenario) -> anyhow::Result<PolicyName> {
    let name = scenario.context.policy.as_deref();
    let name = name.unwrap_or(DEFAULT_POLICY).parse();
    name.context("policy of the scenario")
}

/// Returns the discipline that the scenario names, or the default.
pub(super) fn default_discipline(scenario: &Scenario) -> Discipline {
    scenario.context.discipline.unwrap_or_default()
}

/// Returns the options of a policy, or without any those of the scenario, with the scenario's coefficients for `igniter`.
pub(super) fn planning_options(
    scenario: &Scenario,
    options: &PolicyOptionArgs,
) -> anyhow::Result<PlanningOptions> {
    let coefficients = scenario.igniter_coefficients.as_deref();
    Ok(PlanningOptions {
        policy: options
            .given()
            .or(scenario.context.options)
            .unwrap_or_default(),
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
    /// The replicas that stay beside those of the plan.
    pub(super) kept: Vec<ReplicaSpec>,
    /// The parts of the scenario that a search for the smallest cluster ignores, by name.
    pub(super) ignored: Vec<&'static str>,
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
    let options = planning_options(scenario, options)?;
    let entry = name.entry()?;
    let input = scenario.planning_input(entry.name.to_owned(), options.policy, discipline);
    let failed = || format!("policy {}", entry.name);
    let start = Instant::now();
    let cluster = match min_devices {
        None => place_on_all(scenario, &input, &options).with_context(failed),
        Some(limit) => place_on_few(entry, &input.problem, &options, limit).with_context(failed),
    }?;
    let solve_ms = start.elapsed().as_secs_f64() * 1e3;
    let kept = input.kept(&cluster.plan).into_iter().cloned();
    let parts = [
        (
            "families",
            scenario.families.is_empty() && input.families.is_empty(),
        ),
        ("backbones", input.backbones.is_empty()),
    ];
    let ignored = parts.into_iter().filter(|(_, is_empty)| !is_empty);
    Ok(PlanningOutcome {
        kept: kept.collect(),
        ignored: ignored.map(|(name, _)| name).collect(),
        cluster,
        solve_ms,
        explanations: Vec::new(),
    })
}

/// Plans for all devices as the gateway does. As there, another policy is in the place of one that makes no plan, if the scenario names that one.
fn place_on_all(
    scenario: &Scenario,
    input: &PlanningInput,
    options: &PlanningOptions,
) -> Result<SmallestCluster, PlaceError> {
    let place = |name: &str, problem: &Problem| {
        let entry = policy(name).map_err(|e| PlaceError::Solver(e.to_string()))?;
        entry.place_with(problem, options, &mut Budget::unlimited())
    };
    let falls_back = scenario.context.policy.as_ref() == Some(&input.policy);
    let fallback = if falls_back {
        FALLBACK_POLICY
    } else {
        &input.policy
    };
    let spinner = output::spinner();
    spinner.set_message(format!("planning with {}", input.policy));
    let placed = input.place_or_fall_back(fallback, place);
    spinner.finish_and_clear();
    let (Mixed { mix, plan }, failure) = placed?;
    if let Some(error) = failure {
        let name = &input.policy;
        output::note(format_args!(
            "note: policy {name} found no plan ({error}), so policy {fallback} made the plan"
        ));
    }
    Ok(SmallestCluster {
        plan,
        problem: input.at(mix).problem,
        exhaustive: true,
    })
}

/// Plans for the smallest cluster of at most this many devices.
fn place_on_few(
    entry: &PolicyEntry,
    problem: &Problem,
    options: &PlanningOptions,
    limit: usize,
) -> Result<SmallestCluster, SmallestClusterError> {
    let spinner = output::spinner();
    let mut show_progress = |counts: &[usize]| {
        let devices: usize = counts.iter().sum();
        spinner.set_message(format!("planning with {} on {devices} devices", entry.name));
    };
    let found = smallest_cluster(
        entry,
        problem,
        limit,
        options,
        &mut Budget::unlimited(),
        &mut show_progress,
    );
    spinner.finish_and_clear();
    found
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
    let mut forecasts = cluster.plan.models.iter();
    let is_short = forecasts.any(|forecast| forecast.shortfall.is_some());
    let spinner = output::spinner();
    let message = "searching for changes that would serve all models";
    spinner.set_message(message);
    if is_short && spinner.is_hidden() {
        output::note(message);
    }
    let planning = planning_options(scenario, options)?;
    let entry = name.entry()?;
    let problem = cluster.problem.clone();
    let discipline = problem.discipline;
    let input = PlanningInput {
        problem,
        ..scenario.planning_input(entry.name.to_owned(), planning.policy, discipline)
    };
    let mut failure = None;
    let found = input.of_models(&cluster.plan, |problem, plan| {
        let mut budget = Budget::new(EXPLAIN_STEPS, &|| false);
        let found = packhorse_placement::explain(entry, problem, plan, &planning, &mut budget);
        found.unwrap_or_else(|error| {
            failure = Some(error);
            Vec::new()
        })
    });
    spinner.finish_and_clear();
    failure.map_or(Ok(found), |error| Err(error.into()))
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

//! Planners, which are the sources of an experiment's plans.

use std::{fs, time::Duration};

use anyhow::Context as _;
use packhorse_cluster::{
    BatchStep, Discipline, LatencyModel, Objective, PlannedReplica, PolicyOptions, Problem, Time,
};
use packhorse_placement::{Budget, IgniterCoefficients, POLICIES, PlanningOptions, policy};
use packhorse_simulator::{
    DispatchOptions, PlanReport, Replanning, ReplicaReport, Report, RunOptions, Scenario,
    SimulateError, simulate, simulate_replanning, simulate_with,
};
use serde::Deserialize;

use crate::{cell_limit::CellLimit, plan_cache::PlanCache, setting::root};

/// The policies whose plan depends on the calibration and the discipline. All others plan once per setting.
const DEPEND_ON_CONDITIONS: [&str; 1] = ["goodput"];

/// The policies that are compared on `published` alone: the pages of the thesis' figures have those that were there before.
const ONLY_PUBLISHED: [&str; 1] = ["herd"];

/// The budget of a policy for a plan during a run, in steps, as in `packhorse-lab simulate --replan-every`.
pub(crate) const REPLAN_STEPS: u64 = 10_000_000;

/// A source of plans: a policy with options, or a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planner {
    /// The planner's name in tables and figures.
    pub(crate) label: String,
    /// The policy or the file.
    source: PlanSource,
    /// The quantity that the policy maximises.
    objective: Objective,
    /// The period in which the policy replans during a run, from the observations of the run; `None` for never.
    replan_every: Option<Duration>,
    /// True to remove the compute shares from the plan.
    without_shares: bool,
    /// True to choose the smallest batches among equally good plans.
    small_batches: bool,
    /// A model and the batch size that replaces the plan's.
    batches: Option<(&'static str, u32)>,
    /// The choice of the batch sizes.
    batch_step: BatchStep,
    /// The way from profiles to times under compute shares.
    latency_model: LatencyModel,
    /// True if `herd` forms its groups by the heuristic.
    herd_greedy: bool,
    /// The most steps of the search; `None` for no limit.
    steps: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
enum PlanSource {
    /// The policy of this name.
    Policy(&'static str),
    /// The file of this name in `scenarios/thesis/plans`.
    File(&'static str),
}

impl Planner {
    fn new(label: String, source: PlanSource) -> Self {
        Self {
            label,
            source,
            objective: Objective::default(),
            replan_every: None,
            without_shares: false,
            small_batches: false,
            batches: None,
            batch_step: BatchStep::default(),
            latency_model: LatencyModel::default(),
            herd_greedy: false,
            steps: None,
        }
    }

    pub(crate) fn from_policy(name: &'static str) -> Self {
        Self::new(name.to_owned(), PlanSource::Policy(name))
    }

    pub(crate) fn from_file(label: impl Into<String>, file: &'static str) -> Self {
        Self::new(label.into(), PlanSource::File(file))
    }

    pub(crate) fn without_shares(self) -> Self {
        Self {
            label: format!("{}, no shares", self.label),
            without_shares: true,
            ..self
        }
    }

    pub(crate) fn preferring_small_batches(self) -> Self {
        Self {
            label: format!("{}, small batches", self.label),
            small_batches: true,
            ..self
        }
    }

    pub(crate) fn with_batches(self, model: &'static str, batch_size: u32) -> Self {
        Self {
            label: format!("{}, {model} at {batch_size}", self.label),
            batches: Some((model, batch_size)),
            ..self
        }
    }

    pub(crate) fn with_objective(self, objective: Objective) -> Self {
        Self {
            label: format!("{}, {objective}", self.label),
            objective,
            ..self
        }
    }

    pub(crate) fn with_batch_step(self, batch_step: BatchStep) -> Self {
        Self {
            label: format!("{}, {batch_step}", self.label),
            batch_step,
            ..self
        }
    }

    pub(crate) fn with_latency_model(self, latency_model: LatencyModel) -> Self {
        Self {
            label: format!("{}, {latency_model}", self.label),
            latency_model,
            ..self
        }
    }

    pub(crate) fn greedy(self) -> Self {
        Self {
            label: format!("{}, greedy", self.label),
            herd_greedy: true,
            ..self
        }
    }

    /// Limits the steps of the search. The label stays.
    pub(crate) fn within_steps(self, steps: u64) -> Self {
        Self {
            steps: Some(steps),
            ..self
        }
    }

    pub(crate) fn replanning(self, every: Duration) -> Self {
        Self {
            label: format!("{}, replanning", self.label),
            replan_every: Some(every),
            ..self
        }
    }

    /// Returns a planner for each policy on the pages of the thesis' figures.
    pub(crate) fn all() -> Vec<Self> {
        let planners = Self::every_policy().into_iter();
        planners
            .filter(|planner| !ONLY_PUBLISHED.contains(&planner.label.as_str()))
            .collect()
    }

    /// Returns a planner for each policy.
    pub(crate) fn every_policy() -> Vec<Self> {
        POLICIES
            .iter()
            .map(|entry| Self::from_policy(entry.name))
            .collect()
    }

    /// Returns true if the plan depends on the calibration and the discipline.
    pub(crate) fn depends_on_conditions(&self) -> bool {
        matches!(self.source, PlanSource::Policy(name) if DEPEND_ON_CONDITIONS.contains(&name))
    }

    /// Returns the reason why the planner cannot plan for a scenario; `None` if it can.
    pub(crate) fn unavailable_reason(&self, scenario: &Scenario) -> Option<&'static str> {
        let needs_coefficients = self.source == PlanSource::Policy("igniter");
        (needs_coefficients && scenario.igniter_coefficients.is_none())
            .then_some("the coefficients of the thesis' models were not published, and there are no measurements to fit them to")
    }

    /// Returns the options of the policy.
    fn options(&self, scenario: &Scenario) -> anyhow::Result<PlanningOptions> {
        let coefficients = scenario.igniter_coefficients.as_deref();
        Ok(PlanningOptions {
            igniter_coefficients: coefficients
                .map(IgniterCoefficients::from_csv)
                .transpose()?,
            policy: PolicyOptions {
                objective: self.objective,
                prefer_small_batch: self.small_batches,
                batch_step: self.batch_step,
                latency_model: self.latency_model,
                herd_greedy: self.herd_greedy,
                ..PolicyOptions::default()
            },
        })
    }

    /// Returns the plan for a scenario.
    pub(crate) fn plan(
        &self,
        scenario: &Scenario,
        discipline: Discipline,
        cache: &PlanCache,
    ) -> anyhow::Result<Planned> {
        let planned = self.plan_within(scenario, discipline, cache, CellLimit::NONE)?;
        planned.context("a plan takes no longer than no limit")
    }

    /// Returns the plan for a scenario; `None` if it takes too long.
    pub(crate) fn plan_within(
        &self,
        scenario: &Scenario,
        discipline: Discipline,
        cache: &PlanCache,
        limit: CellLimit,
    ) -> anyhow::Result<Option<Planned>> {
        let (mut replicas, mut report) = match self.source {
            PlanSource::Policy(name) => {
                let options = self.options(scenario)?;
                let mut problem = scenario.problem.clone();
                problem.discipline = discipline;
                let planned = cache.plan(name, problem, options, limit, self.steps)?;
                let Some((plan, solve_ms)) = planned else {
                    return Ok(None);
                };
                let report = PlanReport::new(scenario, &plan, solve_ms);
                (plan.replicas, report)
            }
            PlanSource::File(file) => {
                let path = root().join("scenarios/thesis/plans").join(file);
                let context = || path.display().to_string();
                let text = fs::read_to_string(&path).with_context(context)?;
                let file: PlanFile = serde_json::from_str(&text).with_context(context)?;
                let replicas = scenario.replicas(&file.replicas).with_context(context)?;
                let report = PlanReport::from_replicas(scenario, &replicas);
                (replicas, report)
            }
        };
        if self.without_shares {
            for replica in &mut replicas {
                replica.compute_share = None;
            }
            for replica in &mut report.replicas {
                replica.compute_share_pct = None;
            }
        }
        if let Some((model, batch_size)) = self.batches {
            let models = &scenario.problem.models;
            for replica in &mut replicas {
                if models[replica.model.0].id.name.as_str() == model {
                    replica.batch_size = batch_size;
                }
            }
            report = PlanReport::from_replicas(scenario, &replicas);
        }
        Ok(Some(Planned { replicas, report }))
    }

    /// Simulates a plan of this planner with one seed, without new plans during the run; `None` if it takes too long.
    pub(crate) fn run_within(
        &self,
        scenario: &Scenario,
        planned: &Planned,
        dispatch: DispatchOptions,
        seed: u64,
        limit: CellLimit,
    ) -> anyhow::Result<Option<Report>> {
        if limit.duration().is_none() {
            return self.run(scenario, planned, dispatch, seed).map(Some);
        }
        let running = limit.start();
        let stop = || running.is_over();
        let options = RunOptions {
            dispatch,
            stop: Some(&stop),
            ..RunOptions::default()
        };
        let (plan, replicas) = (planned.report.clone(), &planned.replicas);
        match simulate_with(scenario, plan, replicas, seed, options, &mut |_| {}) {
            Ok(report) => Ok(Some(report)),
            Err(SimulateError::Stopped) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Simulates a plan of this planner with one seed.
    pub(crate) fn run(
        &self,
        scenario: &Scenario,
        planned: &Planned,
        dispatch: DispatchOptions,
        seed: u64,
    ) -> anyhow::Result<Report> {
        let (plan, replicas) = (planned.report.clone(), &planned.replicas);
        let progress = &mut |_: Time| {};
        let (PlanSource::Policy(name), Some(every)) = (&self.source, self.replan_every) else {
            return Ok(simulate(
                scenario, plan, replicas, dispatch, seed, progress,
            )?);
        };
        let (policy, options) = (policy(name)?, self.options(scenario)?);
        let mut replan = |problem: &Problem| {
            let mut budget = Budget::new(REPLAN_STEPS, &|| false);
            policy.place_with(problem, &options, &mut budget).ok()
        };
        let replanning = Replanning::new(every, Some(packhorse_placement::estimate), &mut replan);
        Ok(simulate_replanning(
            scenario, plan, replicas, dispatch, seed, replanning, progress,
        )?)
    }
}

/// The part of a plan file that is read.
#[derive(Deserialize)]
struct PlanFile {
    replicas: Vec<ReplicaReport>,
}

/// A plan with its report.
#[derive(Clone)]
pub(crate) struct Planned {
    pub(crate) replicas: Vec<PlannedReplica>,
    pub(crate) report: PlanReport,
}

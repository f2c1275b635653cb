//! Where settings are tried: plans are made and run, on all cores.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use packhorse_cluster::{
    Discipline, Objective, Plan, PlannedReplica, PolicyOptions, Problem, Time,
};
use packhorse_placement::{
    Budget, IgniterCoefficients, POLICIES, PlanningOptions, policy,
};
use packhorse_simulator::{
    Curves, Dispatch, PlanReport, Replanning, ReplicaReport, Report, Scenario, SimulateError,
    simulate, simulate_replanning,
};
use rayon::prelude::*;
use serde::Deserialize;

use crate::{
    setting::{Setting, World, root},
    sweep::{DISCIPLINES, Sweep, Trial, TrialKey},
};

/// Policies whose plan depends on the world and the discipline; the others are asked once per setting.
const READ_THE_WORLD: [&str; 1] = ["goodput"];

/// What a policy may spend on a plan during a run, as in `packhorse simulate --replan-every`.
const REPLAN_STEPS: u64 = 10_000_000;

/// One run of these replicas, dispatched by `deadline`.
pub(crate) fn try_plan(
    scenario: &Scenario,
    plan: &[PlannedReplica],
    seed: u64,
) -> Result<Report, SimulateError> {
    let report = PlanReport::from_replicas(scenario, plan);
    simulate(
        scenario,
        report,
        plan,
        Discipline::Deadline,
        seed,
        &mut |_| {},
    )
}

/// Where a plan comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planner {
    /// Its name in tables and figures.
    pub(crate) label: String,
    source: Source,
    /// What a policy makes as large as it can.
    objective: Objective,
    /// How often the policy replans during a run, from what the run has shown.
    replan_every: Option<Duration>,
    /// Nobody limits the multiprocessors of a replica, whatever the plan says.
    without_shares: bool,
    /// Of equally good plans, one with small batches.
    small_batches: bool,
    /// This model gets batches of this size, whatever the plan says.
    batches: Option<(&'static str, u32)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Policy(&'static str),
    /// In `scenarios/thesis/plans`.
    File(&'static str),
}

impl Planner {
    pub(crate) fn policy(name: &'static str) -> Self {
        Self {
            label: name.to_owned(),
            source: Source::Policy(name),
            objective: Objective::default(),
            replan_every: None,
            without_shares: false,
            small_batches: false,
            batches: None,
        }
    }

    pub(crate) fn file(label: impl Into<String>, file: &'static str) -> Self {
        Self {
            label: label.into(),
            source: Source::File(file),
            objective: Objective::default(),
            replan_every: None,
            without_shares: false,
            small_batches: false,
            batches: None,
        }
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

    pub(crate) fn aiming_at(self, objective: Objective) -> Self {
        Self {
            label: format!("{}, {objective}", self.label),
            objective,
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

    /// Every policy that there is.
    pub(crate) fn all() -> Vec<Self> {
        POLICIES
            .iter()
            .map(|entry| Self::policy(entry.name))
            .collect()
    }

    fn reads_the_world(&self) -> bool {
        matches!(self.source, Source::Policy(name) if READ_THE_WORLD.contains(&name))
    }

    /// Why it cannot plan for this scenario.
    fn cannot(&self, scenario: &Scenario) -> Option<&'static str> {
        let wants_coefficients = self.source == Source::Policy("igniter");
        (wants_coefficients && scenario.igniter_coefficients.is_none())
            .then_some("the thesis' coefficients of its models were not published; there are none to fit them to")
    }

    /// What its policy may choose.
    fn options(&self, scenario: &Scenario) -> anyhow::Result<PlanningOptions> {
        let coefficients = scenario.igniter_coefficients.as_deref();
        Ok(PlanningOptions {
            igniter_coefficients: coefficients
                .map(IgniterCoefficients::from_csv)
                .transpose()?,
            policy: PolicyOptions {
                objective: self.objective,
                prefer_small_batch: self.small_batches,
                ..PolicyOptions::default()
            },
        })
    }

    fn plan(
        &self,
        scenario: &Scenario,
        discipline: Discipline,
        answers: &Answers,
    ) -> anyhow::Result<Planned> {
        let (mut replicas, mut report) = match self.source {
            Source::Policy(name) => {
                let options = self.options(scenario)?;
                let mut problem = scenario.problem.clone();
                problem.discipline = discipline;
                let (plan, solve_ms) = answers.ask(name, problem, options)?;
                let report = PlanReport::new(scenario, &plan, solve_ms);
                (plan.replicas, report)
            }
            Source::File(file) => {
                let path = root().join("scenarios/thesis/plans").join(file);
                let shown = || path.display().to_string();
                let text = fs::read_to_string(&path).with_context(shown)?;
                let file: PlanFile = serde_json::from_str(&text).with_context(shown)?;
                let replicas = scenario.replicas(&file.replicas).with_context(shown)?;
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
        Ok(Planned { replicas, report })
    }

    /// One run with what it planned.
    fn run(
        &self,
        scenario: &Scenario,
        planned: &Planned,
        dispatch: Dispatch,
        seed: u64,
    ) -> anyhow::Result<Report> {
        let (plan, replicas) = (planned.report.clone(), &planned.replicas);
        let progress = &mut |_: Time| {};
        let (Source::Policy(name), Some(every)) = (&self.source, self.replan_every) else {
            return Ok(simulate(
                scenario, plan, replicas, dispatch, seed, progress,
            )?);
        };
        let (policy, options) = (policy(name)?, self.options(scenario)?);
        let mut answer = |problem: &Problem| {
            let mut budget = Budget::new(REPLAN_STEPS, &|| false);
            policy.place_with(problem, &options, &mut budget).ok()
        };
        let replanning = Replanning {
            every,
            policy: &mut answer,
        };
        Ok(simulate_replanning(
            scenario, plan, replicas, dispatch, seed, replanning, progress,
        )?)
    }
}

/// What policies have answered, so that experiments that share settings ask once.
#[derive(Default)]
struct Answers(Mutex<Vec<Answer>>);

struct Answer {
    policy: &'static str,
    problem: Problem,
    options: PlanningOptions,
    plan: Plan,
    solve_ms: f64,
}

impl Answers {
    /// A policy's plan and how many milliseconds it took.
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a policy takes is part of the result"
    )]
    fn ask(
        &self,
        name: &'static str,
        problem: Problem,
        options: PlanningOptions,
    ) -> anyhow::Result<(Plan, f64)> {
        let known = || {
            let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let same = |answer: &&Answer| {
                answer.policy == name && answer.problem == problem && answer.options == options
            };
            let answer = answers.iter().find(same)?;
            Some((answer.plan.clone(), answer.solve_ms))
        };
        if let Some(answer) = known() {
            return Ok(answer);
        }
        let start = Instant::now();
        let plan = policy(name)?.place_with(&problem, &options, &mut Budget::unlimited())?;
        let solve_ms = start.elapsed().as_secs_f64() * 1e3;
        let answer = Answer {
            policy: name,
            problem,
            options,
            plan: plan.clone(),
            solve_ms,
        };
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(answer);
        Ok((plan, solve_ms))
    }
}

/// What counts of a plan that is read.
#[derive(Deserialize)]
struct PlanFile {
    replicas: Vec<ReplicaReport>,
}

#[derive(Clone)]
struct Planned {
    replicas: Vec<PlannedReplica>,
    report: PlanReport,
}

/// What an experiment works with.
pub(crate) struct Lab {
    pub(crate) seeds: Vec<u64>,
    pub(crate) worlds: Vec<World>,
    answers: Answers,
}

impl Lab {
    pub(crate) fn new(quick: bool) -> Self {
        Self {
            seeds: if quick { vec![1] } else { (1..=5).collect() },
            worlds: World::ALL
                .into_iter()
                .take(if quick { 1 } else { 2 })
                .collect(),
            answers: Answers::default(),
        }
    }

    /// Tries every planner in every setting, with every discipline, world and seed.
    pub(crate) fn sweep(
        &self,
        settings: &[Setting],
        planners: &[Planner],
    ) -> anyhow::Result<Sweep> {
        self.sweep_with(settings, planners, &DISCIPLINES)
    }

    /// Tries every planner in every setting, with these disciplines, in every world and with every seed.
    pub(crate) fn sweep_with(
        &self,
        settings: &[Setting],
        planners: &[Planner],
        disciplines: &[Discipline],
    ) -> anyhow::Result<Sweep> {
        let dispatches = disciplines.iter().copied().map(Dispatch::from).collect();
        let sweeps = self.sweeps_in(&self.worlds, settings, planners, &[dispatches])?;
        Ok(sweeps.into_iter().next().expect("one for one list"))
    }

    /// Tries every planner in every setting, with every seed, in these worlds, once for each list of dispatchers; of a list all have
    /// another discipline.
    pub(crate) fn sweeps_in(
        &self,
        worlds: &[World],
        settings: &[Setting],
        planners: &[Planner],
        lists: &[Vec<Dispatch>],
    ) -> anyhow::Result<Vec<Sweep>> {
        let mut scenarios = BTreeMap::new();
        for (i, setting) in settings.iter().enumerate() {
            for &world in worlds {
                scenarios.insert((i, world), setting.scenario(world)?);
            }
        }
        let mut not_run = Vec::new();
        let mut keys = Vec::new();
        for (i, planner) in planners.iter().enumerate() {
            if let Some(why) = scenarios
                .values()
                .find_map(|scenario| planner.cannot(scenario))
            {
                not_run.push((planner.label.clone(), why.to_owned()));
                continue;
            }
            let disciplines = DISCIPLINES.into_iter().filter(|&discipline| {
                lists
                    .iter()
                    .flatten()
                    .any(|dispatch| dispatch.discipline == discipline)
            });
            for discipline in disciplines {
                keys.extend(scenarios.keys().map(|&(setting, world)| TrialKey {
                    setting,
                    world,
                    planner: i,
                    discipline,
                }));
            }
        }
        let plans = self.plans(planners, &scenarios, &keys)?;
        let tried = lists.iter().map(|dispatches| {
            let mut sweep = Sweep::new(settings, planners, worlds, &self.seeds);
            sweep.not_run.clone_from(&not_run);
            sweep.trials = self.trials(planners, &scenarios, &plans, &keys, dispatches)?;
            sweep.scenarios.clone_from(&scenarios);
            Ok(sweep)
        });
        tried.collect()
    }

    fn trials(
        &self,
        planners: &[Planner],
        scenarios: &BTreeMap<(usize, World), Scenario>,
        plans: &BTreeMap<TrialKey, Planned>,
        keys: &[TrialKey],
        dispatches: &[Dispatch],
    ) -> anyhow::Result<BTreeMap<TrialKey, Trial>> {
        let wanted = keys.iter().filter_map(|&key| {
            let mut dispatches = dispatches.iter();
            Some((
                key,
                *dispatches.find(|dispatch| dispatch.discipline == key.discipline)?,
            ))
        });
        let wanted: Vec<(TrialKey, Dispatch)> = wanted.collect();
        let bar = progress("trying", wanted.len() * self.seeds.len());
        let tried = wanted.into_par_iter().map(|(key, dispatch)| {
            let scenario = &scenarios[&(key.setting, key.world)];
            let asked = &planners[key.planner];
            let planned = &plans[&self.plan_key(asked, key)];
            Ok((key, self.try_out(scenario, asked, planned, dispatch, &bar)?))
        });
        let trials = tried.collect::<anyhow::Result<_>>();
        bar.finish_and_clear();
        trials
    }

    /// The trial whose plan serves this one as well.
    fn plan_key(&self, planner: &Planner, key: TrialKey) -> TrialKey {
        if planner.reads_the_world() {
            return key;
        }
        TrialKey {
            world: self.worlds[0],
            discipline: Discipline::FixedWait,
            ..key
        }
    }

    fn plans(
        &self,
        planners: &[Planner],
        scenarios: &BTreeMap<(usize, World), Scenario>,
        keys: &[TrialKey],
    ) -> anyhow::Result<BTreeMap<TrialKey, Planned>> {
        let mut wanted: Vec<TrialKey> = keys
            .iter()
            .map(|&key| self.plan_key(&planners[key.planner], key))
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let bar = progress("planning", wanted.len());
        let plans = wanted.into_par_iter().map(|key| {
            let scenario = &scenarios[&(key.setting, key.world)];
            let asked = &planners[key.planner];
            let planned = asked.plan(scenario, key.discipline, &self.answers);
            bar.inc(1);
            let about = || format!("{} in {}", asked.label, scenario.name);
            Ok((key, planned.with_context(about)?))
        });
        let plans = plans.collect::<anyhow::Result<_>>();
        bar.finish_and_clear();
        plans
    }

    fn try_out(
        &self,
        scenario: &Scenario,
        asked: &Planner,
        planned: &Planned,
        dispatch: Dispatch,
        bar: &ProgressBar,
    ) -> anyhow::Result<Trial> {
        let mut reports: Vec<Report> = Vec::new();
        for &seed in &self.seeds {
            let mut report = asked.run(scenario, planned, dispatch, seed)?;
            if !reports.is_empty() {
                // Pictures show the first seed's; all of them would take too much memory.
                for model in &mut report.models {
                    model.curves = Curves::default();
                }
            }
            reports.push(report);
            bar.inc(1);
        }
        Ok(Trial {
            plan: planned.report.clone(),
            reports,
        })
    }
}

fn progress(what: &'static str, length: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("  {msg} {wide_bar} {pos}/{len} {elapsed}")
        .expect("a template that is fixed here");
    ProgressBar::new(length as u64)
        .with_style(style)
        .with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_says_the_same_every_time_and_names_who_did_not_run() {
        let sweep = || {
            let planners = ["first-fit", "igniter"].map(Planner::policy);
            let settings = vec![Setting::gpus("6.1", 1), Setting::gpus("6.1", 2)];
            Lab::new(true)
                .sweep(&settings, &planners)
                .expect("files of the repository")
        };
        let (first, second) = (sweep(), sweep());
        assert_eq!(first.csv(), second.csv());
        let figure = |sweep: &Sweep| sweep.goodput_figure("goodput", Discipline::Deadline).svg();
        assert_eq!(figure(&first), figure(&second));
        // A row per setting and discipline, below the header.
        assert_eq!(first.csv().lines().count(), 5);
        assert_eq!(first.run().collect::<Vec<_>>(), ["first-fit"]);
        assert_eq!(first.not_run[0].0, "igniter");
    }
}

//! Where settings are tried: plans are made and run, on all cores.

use std::{collections::BTreeMap, fs, time::Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use packhorse_cluster::{Discipline, PlannedReplica, Time};
use packhorse_placement::{Budget, IgniterCoefficients, POLICIES, PolicyOptions, policy};
use packhorse_simulator::{
    Curves, Dispatch, PlanReport, ReplicaReport, Report, Scenario, simulate,
};
use rayon::prelude::*;
use serde::Deserialize;

use crate::{
    setting::{Setting, World, root},
    sweep::{DISCIPLINES, Sweep, Trial, TrialKey},
};

/// Policies whose plan depends on the world and the discipline; the others are asked once per setting.
const READ_THE_WORLD: [&str; 1] = ["goodput"];

/// Where a plan comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planner {
    /// Its name in tables and figures.
    pub(crate) label: String,
    source: Source,
    /// Nobody limits the multiprocessors of a replica, whatever the plan says.
    without_shares: bool,
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
            without_shares: false,
        }
    }

    pub(crate) fn file(label: impl Into<String>, file: &'static str) -> Self {
        Self {
            label: label.into(),
            source: Source::File(file),
            without_shares: false,
        }
    }

    pub(crate) fn without_shares(self) -> Self {
        Self {
            label: format!("{}, no shares", self.label),
            without_shares: true,
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

    #[expect(
        clippy::disallowed_methods,
        reason = "how long a policy takes is part of the result"
    )]
    fn plan(&self, scenario: &Scenario, discipline: Discipline) -> anyhow::Result<Planned> {
        let (mut replicas, mut report) = match self.source {
            Source::Policy(name) => {
                let mut problem = scenario.problem.clone();
                problem.discipline = discipline;
                let coefficients = scenario.igniter_coefficients.as_deref();
                let options = PolicyOptions {
                    igniter_coefficients: coefficients
                        .map(IgniterCoefficients::from_csv)
                        .transpose()?,
                    ..PolicyOptions::default()
                };
                let start = Instant::now();
                let plan =
                    policy(name)?.place_with(&problem, &options, &mut Budget::unlimited())?;
                let solve_ms = start.elapsed().as_secs_f64() * 1e3;
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
        Ok(Planned { replicas, report })
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
}

impl Lab {
    pub(crate) fn new(quick: bool) -> Self {
        Self {
            seeds: if quick { vec![1] } else { (1..=5).collect() },
            worlds: World::ALL
                .into_iter()
                .take(if quick { 1 } else { 2 })
                .collect(),
        }
    }

    /// Tries every planner in every setting, with every discipline, world and seed.
    pub(crate) fn sweep(
        &self,
        settings: &[Setting],
        planners: &[Planner],
    ) -> anyhow::Result<Sweep> {
        let dispatches = DISCIPLINES.map(Dispatch::from).to_vec();
        let sweeps = self.sweeps(settings, planners, &[dispatches])?;
        Ok(sweeps.into_iter().next().expect("one for one list"))
    }

    /// Tries every planner in every setting, world and seed, once for each list of dispatchers; of a list all have another
    /// discipline.
    pub(crate) fn sweeps(
        &self,
        settings: &[Setting],
        planners: &[Planner],
        lists: &[Vec<Dispatch>],
    ) -> anyhow::Result<Vec<Sweep>> {
        let mut scenarios = BTreeMap::new();
        for (i, setting) in settings.iter().enumerate() {
            for &world in &self.worlds {
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
            let mut sweep = Sweep::new(settings, planners, self);
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
            let planned = &plans[&self.plan_key(&planners[key.planner], key)];
            Ok((key, self.try_out(scenario, planned, dispatch, &bar)?))
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
            let planned = asked.plan(scenario, key.discipline);
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
        planned: &Planned,
        dispatch: Dispatch,
        bar: &ProgressBar,
    ) -> anyhow::Result<Trial> {
        let mut reports: Vec<Report> = Vec::new();
        for &seed in &self.seeds {
            let plan = planned.report.clone();
            let mut report = simulate(
                scenario,
                plan,
                &planned.replicas,
                dispatch,
                seed,
                &mut |_: Time| {},
            )?;
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

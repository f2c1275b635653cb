//! The runner, which makes plans and simulates them on all cores.

use std::collections::BTreeMap;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use packhorse_cluster::{Discipline, PlannedReplica};
use packhorse_simulator::{
    Curves, DispatchOptions, PlanReport, Report, Scenario, SimulateError, simulate,
};
use rayon::prelude::*;

use crate::{
    cell_limit::CellLimit,
    plan_cache::PlanCache,
    planner::{Planned, Planner},
    setting::{Calibration, Setting},
    sweep::{DISCIPLINES, Sweep, Trial, TrialKey},
};

/// Simulates a plan with one seed, dispatched by `deadline`.
pub(crate) fn simulate_plan(
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

/// The runner of the experiments' simulations.
pub(crate) struct Runner {
    /// The seeds of every trial.
    pub(crate) seeds: Vec<u64>,
    /// The calibrations of every sweep.
    pub(crate) calibrations: Vec<Calibration>,
    plans: PlanCache,
}

impl Runner {
    pub(crate) fn new(quick: bool) -> Self {
        Self {
            seeds: if quick { vec![1] } else { (1..=5).collect() },
            calibrations: Calibration::ALL
                .into_iter()
                .take(if quick { 1 } else { 2 })
                .collect(),
            plans: PlanCache::default(),
        }
    }

    /// Returns true if there is one seed, and one calibration.
    pub(crate) fn is_quick(&self) -> bool {
        self.seeds.len() == 1
    }

    /// Simulates every planner in every setting, with every discipline, calibration and seed.
    pub(crate) fn sweep(
        &self,
        settings: &[Setting],
        planners: &[Planner],
    ) -> anyhow::Result<Sweep> {
        self.sweep_with(settings, planners, &DISCIPLINES)
    }

    /// Simulates every planner in every setting, with the given disciplines and every calibration and seed.
    pub(crate) fn sweep_with(
        &self,
        settings: &[Setting],
        planners: &[Planner],
        disciplines: &[Discipline],
    ) -> anyhow::Result<Sweep> {
        let dispatches = disciplines
            .iter()
            .copied()
            .map(DispatchOptions::from)
            .collect();
        let sweeps = self.sweeps_in(&self.calibrations, settings, planners, &[dispatches])?;
        Ok(sweeps.into_iter().next().expect("one for one list"))
    }

    /// Simulates every planner in every setting, with every seed and the given calibrations, once for each list of dispatchers. The
    /// dispatchers of a list have different disciplines.
    pub(crate) fn sweeps_in(
        &self,
        calibrations: &[Calibration],
        settings: &[Setting],
        planners: &[Planner],
        lists: &[Vec<DispatchOptions>],
    ) -> anyhow::Result<Vec<Sweep>> {
        self.sweeps_within(calibrations, settings, planners, lists, CellLimit::NONE)
    }

    /// Simulates as [`Self::sweeps_in`] does, and gives up the trials whose planning, or one of whose runs, takes longer than the limit.
    pub(crate) fn sweeps_within(
        &self,
        calibrations: &[Calibration],
        settings: &[Setting],
        planners: &[Planner],
        lists: &[Vec<DispatchOptions>],
        limit: CellLimit,
    ) -> anyhow::Result<Vec<Sweep>> {
        let mut scenarios = BTreeMap::new();
        for (i, setting) in settings.iter().enumerate() {
            for &calibration in calibrations {
                scenarios.insert((i, calibration), setting.scenario(calibration)?);
            }
        }
        let mut not_run = Vec::new();
        let mut keys = Vec::new();
        for (i, planner) in planners.iter().enumerate() {
            if let Some(reason) = scenarios
                .values()
                .find_map(|scenario| planner.unavailable_reason(scenario))
            {
                not_run.push((planner.label.clone(), reason.to_owned()));
                continue;
            }
            let disciplines = Discipline::ALL.into_iter().filter(|&discipline| {
                lists
                    .iter()
                    .flatten()
                    .any(|dispatch| dispatch.discipline == discipline)
            });
            for discipline in disciplines {
                keys.extend(scenarios.keys().map(|&(setting, calibration)| TrialKey {
                    setting,
                    calibration,
                    planner: i,
                    discipline,
                }));
            }
        }
        let plans = self.plans(planners, &scenarios, &keys, limit)?;
        let tried = lists.iter().map(|dispatches| {
            let mut sweep = Sweep::new(settings, planners, calibrations, &self.seeds);
            sweep.not_run.clone_from(&not_run);
            let trials = self.trials(planners, &scenarios, &plans, &keys, dispatches, limit)?;
            for (key, trial) in trials {
                match trial {
                    Ok(trial) => _ = sweep.trials.insert(key, trial),
                    Err(reason) => _ = sweep.given_up.insert(key, reason),
                }
            }
            sweep.scenarios.clone_from(&scenarios);
            Ok(sweep)
        });
        tried.collect()
    }

    fn trials(
        &self,
        planners: &[Planner],
        scenarios: &BTreeMap<(usize, Calibration), Scenario>,
        plans: &BTreeMap<TrialKey, Option<Planned>>,
        keys: &[TrialKey],
        dispatches: &[DispatchOptions],
        limit: CellLimit,
    ) -> anyhow::Result<BTreeMap<TrialKey, Result<Trial, &'static str>>> {
        let wanted = keys.iter().filter_map(|&key| {
            let mut dispatches = dispatches.iter();
            Some((
                key,
                *dispatches.find(|dispatch| dispatch.discipline == key.discipline)?,
            ))
        });
        let wanted: Vec<(TrialKey, DispatchOptions)> = wanted.collect();
        let first = first_calibration(scenarios);
        let bar = progress_bar("simulating", wanted.len() * self.seeds.len());
        let tried = wanted.into_par_iter().map(|(key, dispatch)| {
            let scenario = &scenarios[&(key.setting, key.calibration)];
            let planner = &planners[key.planner];
            let Some(plan) = &plans[&Self::plan_key(planner, key, first)] else {
                bar.inc(self.seeds.len() as u64);
                return Ok((key, Err("planning")));
            };
            let trial = self.run_trial(scenario, planner, plan, (dispatch, limit), &bar)?;
            Ok((key, trial.ok_or("simulating")))
        });
        let trials = tried.collect::<anyhow::Result<_>>();
        bar.finish_and_clear();
        trials
    }

    /// Returns the key of the trial with the same plan, which is that of the first calibration if the planner knows none.
    fn plan_key(planner: &Planner, key: TrialKey, first: Calibration) -> TrialKey {
        if planner.depends_on_conditions() {
            return key;
        }
        TrialKey {
            calibration: first,
            discipline: Discipline::FixedWait,
            ..key
        }
    }

    fn plans(
        &self,
        planners: &[Planner],
        scenarios: &BTreeMap<(usize, Calibration), Scenario>,
        keys: &[TrialKey],
        limit: CellLimit,
    ) -> anyhow::Result<BTreeMap<TrialKey, Option<Planned>>> {
        let first = first_calibration(scenarios);
        let mut wanted: Vec<TrialKey> = keys
            .iter()
            .map(|&key| Self::plan_key(&planners[key.planner], key, first))
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let bar = progress_bar("planning", wanted.len());
        let plans = wanted.into_par_iter().map(|key| {
            let scenario = &scenarios[&(key.setting, key.calibration)];
            let planner = &planners[key.planner];
            let plan = planner.plan_within(scenario, key.discipline, &self.plans, limit);
            bar.inc(1);
            let context = || format!("{} in {}", planner.label, scenario.name);
            Ok((key, plan.with_context(context)?))
        });
        let plans = plans.collect::<anyhow::Result<_>>();
        bar.finish_and_clear();
        plans
    }

    fn run_trial(
        &self,
        scenario: &Scenario,
        planner: &Planner,
        plan: &Planned,
        (dispatch, limit): (DispatchOptions, CellLimit),
        bar: &ProgressBar,
    ) -> anyhow::Result<Option<Trial>> {
        let mut reports: Vec<Report> = Vec::new();
        for &seed in &self.seeds {
            let report = planner.run_within(scenario, plan, dispatch, seed, limit)?;
            let Some(mut report) = report else {
                return Ok(None);
            };
            if !reports.is_empty() {
                // Figures show the curves of the first seed only; those of all seeds would need too much memory.
                for model in &mut report.models {
                    model.curves = Curves::default();
                }
            }
            reports.push(report);
            bar.inc(1);
        }
        Ok(Some(Trial {
            plan: plan.report.clone(),
            reports,
        }))
    }
}

/// Returns the first calibration of the scenarios, for which the planners that know none plan.
fn first_calibration(scenarios: &BTreeMap<(usize, Calibration), Scenario>) -> Calibration {
    let calibrations = scenarios.keys().map(|key| key.1);
    calibrations.min().unwrap_or(Calibration::Nominal)
}

fn progress_bar(what: &'static str, length: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("  {msg} {wide_bar} {pos}/{len} {elapsed}")
        .expect("the template is valid");
    ProgressBar::new(length as u64)
        .with_style(style)
        .with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_deterministic_and_names_planners_that_were_not_run() {
        let sweep = || {
            let planners = ["first-fit", "igniter"].map(Planner::from_policy);
            let settings = vec![Setting::with_gpus("6.1", 1), Setting::with_gpus("6.1", 2)];
            Runner::new(true)
                .sweep(&settings, &planners)
                .expect("files of the repository")
        };
        let (first, second) = (sweep(), sweep());
        assert_eq!(first.csv(), second.csv());
        let figure = |sweep: &Sweep| {
            sweep
                .goodput_figure("goodput", Discipline::Deadline)
                .to_svg()
        };
        assert_eq!(figure(&first), figure(&second));
        // The header, and a row per setting and discipline.
        assert_eq!(first.csv().lines().count(), 5);
        assert_eq!(first.run_planners().collect::<Vec<_>>(), ["first-fit"]);
        assert_eq!(first.not_run[0].0, "igniter");
    }
}

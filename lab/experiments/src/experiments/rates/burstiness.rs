//! Plans with the measured burstiness of arrivals beside plans that take them for Poisson, simulated.

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::{Discipline, Time};
use packhorse_control::rates::RateEstimator;
use packhorse_simulator::{ArrivalSchedule, DispatchOptions, Scenario};
use rayon::prelude::*;

use crate::{
    plan_cache::PlanCache,
    planner::Planner,
    setting::{Calibration, Setting},
    thesis::{GOODPUT, vision_settings},
};

/// The coefficients of variation of the gaps between arrivals.
const VARIATIONS: [f64; 3] = [1.0, 2.0, 4.0];
/// The time for which arrivals are measured before the plan, in seconds.
const MEASURED_S: u64 = 300;
/// The length of a period, in seconds.
const PERIOD_S: u64 = 5;
/// The seed of the measured arrivals. The plans serve others.
const MEASURED_SEED: u64 = 1_000;
/// The counted time of a run, in seconds.
const WINDOW_S: f64 = 60.0;

/// The largest loss by planning with the measured burstiness that counts as none, as a share of the requests: what seeds differ by.
pub(super) const MAX_LOSS: f64 = 0.005;

/// The shares of requests in time of the plans for a setting.
pub(super) struct Trial {
    name: String,
    variation: f64,
    /// The burstiness that was measured.
    measured: f64,
    /// With the plan for Poisson arrivals.
    poisson_share: f64,
    /// With the plan for the measured burstiness.
    pub(super) measured_share: f64,
    /// With the plan for the true coefficient of variation.
    true_share: f64,
}

impl Trial {
    /// Returns what is gained by planning with the measured burstiness, as a share of the requests.
    pub(super) fn gain(&self) -> f64 {
        self.measured_share - self.poisson_share
    }

    pub(super) fn name(&self) -> String {
        format!("{}, CV {}", self.name, self.variation)
    }
}

/// Returns the burstiness of a scenario's arrivals: the root of the mean dispersion of its models by their rates.
fn measured_burstiness(scenario: &Scenario) -> anyhow::Result<f64> {
    let mut measured = scenario.clone();
    for workload in &mut measured.workloads {
        workload.requests = None;
    }
    measured.simulation.warmup = Duration::ZERO;
    measured.simulation.window = Duration::from_secs(MEASURED_S);
    let models = &scenario.problem.models;
    let mut counts = vec![vec![0; (MEASURED_S / PERIOD_S) as usize]; models.len()];
    for (moment, model) in ArrivalSchedule::new(&measured, MEASURED_SEED)?.requests() {
        let period = moment.as_secs_f64() / PERIOD_S as f64;
        counts[model.0][period as usize] += 1;
    }
    let (mut dispersion, mut rate) = (0.0, 0.0);
    for (model, counts) in models.iter().zip(counts) {
        let mut estimator = RateEstimator::new(Time::ZERO, model.rate);
        let mut now = Time::ZERO;
        for arrivals in counts {
            now += Duration::from_secs(PERIOD_S);
            estimator.observe(now, arrivals);
        }
        let of_model = estimator.measured().rate.get();
        dispersion += of_model * estimator.burstiness().powi(2);
        rate += of_model;
    }
    Ok((dispersion / rate).sqrt())
}

/// Returns the share of requests in time with the plan for a burstiness.
fn share(scenario: &Scenario, burstiness: f64, seeds: &[u64]) -> anyhow::Result<f64> {
    let mut assumed = scenario.clone();
    assumed.problem.conditions.burstiness = burstiness;
    let planner = Planner::from_policy(GOODPUT);
    let plan = planner.plan(&assumed, Discipline::Deadline, &PlanCache::default())?;
    let (mut good, mut offered) = (0.0, 0.0);
    for &seed in seeds {
        let dispatch = DispatchOptions::from(Discipline::Deadline);
        let report = planner.run(scenario, &plan, dispatch, seed)?;
        for model in &report.models {
            good += model.goodput_rps;
            offered += model.offered_rps;
        }
    }
    Ok(good / offered)
}

/// Plans and simulates the settings of figure 6.1 with bursts.
pub(super) fn trials(seeds: &[u64]) -> anyhow::Result<Vec<Trial>> {
    let settings = VARIATIONS.into_iter().flat_map(|variation| {
        let arrivals = toml::Table::from_iter([("gamma_cv".to_owned(), variation.into())]);
        let settings = vision_settings("", "arrivals", &arrivals.into());
        settings
            .into_iter()
            .map(move |setting| (variation, setting))
    });
    let settings: Vec<(f64, Setting)> = settings.collect();
    let trials = settings.into_par_iter().map(|(variation, setting)| {
        let setting = setting.with_simulation("window_s", WINDOW_S);
        let scenario = setting.scenario(Calibration::Nominal)?;
        let measured = measured_burstiness(&scenario)?;
        Ok(Trial {
            name: setting.name(),
            variation,
            measured,
            poisson_share: share(&scenario, 1.0, seeds)?,
            measured_share: share(&scenario, measured, seeds)?,
            true_share: share(&scenario, variation, seeds)?,
        })
    });
    trials.collect()
}

/// Returns a table of trials.
pub(super) fn table(trials: &[Trial]) -> String {
    let mut text =
        "| setting of figure 6.1 | CV of gaps | measured | planned for Poisson | for the measured | for the true CV |\n\
         |---|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for trial in trials {
        writeln!(
            text,
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} |",
            trial.name,
            trial.variation,
            trial.measured,
            100.0 * trial.poisson_share,
            100.0 * trial.measured_share,
            100.0 * trial.true_share
        )
        .expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planning_with_the_measured_burstiness_is_not_worse_than_with_that_of_poisson_arrivals() {
        for trial in trials(&[1]).expect("files of the repository") {
            let name = trial.name();
            assert!(
                (trial.measured / trial.variation - 1.0).abs() < 0.3,
                "{name}: {:.2}",
                trial.measured
            );
            assert!(trial.gain() > -MAX_LOSS, "{name}: {:+.4}", trial.gain());
        }
    }
}

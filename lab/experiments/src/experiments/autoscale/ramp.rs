//! The runs of a ramp: an autoscaler by each rule, and the smallest clusters that clairvoyance would have needed.

use std::time::Duration;

use packhorse_cluster::{Discipline, ModelIndex, Problem, RateMode, RequestsPerSecond, Time};
use packhorse_control::DevicesNeeded;
use packhorse_placement::{Budget, PlanningOptions, PolicyEntry, devices_needed, policy};
use packhorse_simulator::{
    DeviceCounts, DevicesByKind, DispatchOptions, PlanReport, Replanning, Report, RunOptions,
    ScalingRule, Scenario, simulate_with,
};
use rayon::prelude::*;

use crate::{
    setting::{Calibration, Setting, root},
    thesis::GOODPUT,
};

/// The policies, the one of the figure first.
const POLICIES: [&str; 2] = [GOODPUT, "first-fit"];
/// The steps of the policy for a plan, and of a search for the smallest cluster: for `goodput` about as many as the gateway's time limits allow.
const STEPS: [u64; 2] = [50_000, 200_000];
/// The utilisation of the devices at which Kubernetes' controller aims.
pub(super) const UTILIZATION: f64 = 0.7;
/// The time for which it holds a need, its default.
pub(super) const STABILIZATION: Duration = Duration::from_mins(5);
/// The difference from the true minimum that counts as none, in devices.
pub(super) const TOLERANCE: usize = 1;

/// The devices of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scaling {
    /// Those that the metric tells.
    Needed,
    /// Those that the utilisation asks for.
    Utilization,
    /// The largest true minimum, all the time.
    Peak,
}

impl Scaling {
    pub(super) const ALL: [Self; 3] = [Self::Needed, Self::Utilization, Self::Peak];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Needed => "`packhorse_devices_needed`",
            Self::Utilization => "utilisation",
            Self::Peak => "size for the peak",
        }
    }
}

/// The true minima of a policy: at every step, the devices of the smallest cluster for the true rates until the next step.
pub(super) struct Minima(pub(super) Vec<usize>);

/// The seconds of the steps, each of which is a decision of the autoscaler.
pub(super) fn steps(scenario: &Scenario) -> impl Iterator<Item = Time> {
    let steps = scenario.simulation.window.as_secs() / DevicesNeeded::SEARCH_PERIOD.as_secs();
    (0..steps as u32).map(|step| Time::ZERO + DevicesNeeded::SEARCH_PERIOD * step)
}

fn search(
    policy: &PolicyEntry,
    problem: &Problem,
    near: &DevicesByKind,
) -> Result<DevicesByKind, packhorse_placement::SmallestClusterError> {
    let mut budget = Budget::new(STEPS[1], &|| false);
    let options = PlanningOptions::default();
    devices_needed(policy, problem, near, &options, &mut budget)
}

impl Minima {
    fn new(scenario: &Scenario, policy: &PolicyEntry) -> anyhow::Result<Self> {
        let mut problem = scenario.problem_at_start();
        let mut searched: Option<Vec<RequestsPerSecond>> = None;
        let mut last = DevicesByKind::new();
        let minima = steps(scenario).map(|now| {
            let until = now + DevicesNeeded::SEARCH_PERIOD;
            let rates = (0..problem.models.len()).map(|index| {
                RequestsPerSecond::new(scenario.mean_rate(ModelIndex(index), now, until))
            });
            let rates: Vec<_> = rates.collect::<Result<_, _>>()?;
            // The rates of a recorded ramp stay for minutes, and with them the minimum.
            if searched.as_ref() != Some(&rates) {
                for (model, rate) in problem.models.iter_mut().zip(&rates) {
                    model.rate = *rate;
                }
                last = search(policy, &problem, &last)?;
                searched = Some(rates);
            }
            Ok(last.values().sum())
        });
        Ok(Self(minima.collect::<anyhow::Result<_>>()?))
    }

    /// Returns at every step the largest minimum from `before` it until `after` it.
    pub(super) fn largest(&self, before: Duration, after: Duration) -> Vec<usize> {
        let steps = |time: Duration| {
            let period = DevicesNeeded::SEARCH_PERIOD.as_secs();
            time.as_secs().div_ceil(period) as usize
        };
        let (before, after) = (steps(before), steps(after));
        let count = self.0.len();
        let around = |step: usize| step.saturating_sub(before)..count.min(step + after + 1);
        (0..count)
            .map(|step| self.0[around(step)].iter().copied().max())
            .map(Option::unwrap_or_default)
            .collect()
    }
}

/// The runs of one policy.
pub(super) struct Case {
    pub(super) policy: &'static str,
    pub(super) minima: Minima,
    /// One report for each of [`Scaling::ALL`] and each seed.
    pub(super) reports: Vec<Vec<Report>>,
}

impl Case {
    fn new(scenario: &Scenario, policy_name: &'static str, seeds: &[u64]) -> anyhow::Result<Self> {
        let policy = policy(policy_name)?;
        let minima = Minima::new(scenario, policy)?;
        let peak = minima.0.iter().copied().max().unwrap_or_default();
        let of_scaling = |scaling: &Scaling| {
            let runs = seeds.par_iter();
            let runs = runs.map(|&seed| run(scenario, policy, *scaling, peak, seed));
            runs.collect::<anyhow::Result<Vec<Report>>>()
        };
        let reports = Scaling::ALL.par_iter().map(of_scaling);
        Ok(Self {
            policy: policy_name,
            reports: reports.collect::<anyhow::Result<_>>()?,
            minima,
        })
    }

    pub(super) fn peak(&self) -> usize {
        self.minima.0.iter().copied().max().unwrap_or_default()
    }

    /// Returns a number of the devices of a run at every step.
    pub(super) fn devices(
        &self,
        scenario: &Scenario,
        scaling: Scaling,
        seed: usize,
        number: impl Fn(&DeviceCounts) -> Option<usize>,
    ) -> Vec<Option<usize>> {
        let autoscale = self.reports[scaling as usize][seed].autoscale.as_ref();
        let Some(autoscale) = autoscale else {
            return vec![Some(self.peak()); self.minima.0.len()];
        };
        let over_time = &autoscale.over_time;
        steps(scenario)
            .map(|now| {
                let known = over_time.partition_point(|counts| counts.t_s <= now.as_secs_f64());
                number(&over_time[known.checked_sub(1)?])
            })
            .collect()
    }

    /// Returns the mean share of the steps, in percent, at which the metric is within the tolerance of these true minima. The steps
    /// before it is known do not count.
    pub(super) fn within(&self, scenario: &Scenario, minima: &[usize]) -> f64 {
        let (mut within, mut all) = (0, 0);
        for seed in 0..self.reports[Scaling::Needed as usize].len() {
            let needed = self.devices(scenario, Scaling::Needed, seed, |counts| counts.needed);
            for (needed, minimum) in needed.iter().zip(minima) {
                let Some(needed) = needed else { continue };
                all += 1;
                within += usize::from(needed.abs_diff(*minimum) <= TOLERANCE);
            }
        }
        100.0 * f64::from(within as u32) / f64::from(all.max(1))
    }

    /// Returns the mean share of the requests in time, in percent.
    pub(super) fn in_time(&self, scaling: Scaling) -> f64 {
        let totals = self.reports[scaling as usize].iter();
        let shares = totals.map(|report| report.totals.goodput_rps / report.totals.offered_rps);
        100.0 * mean(shares)
    }

    /// Returns the mean device-hours.
    pub(super) fn hours(&self, scenario: &Scenario, scaling: Scaling) -> f64 {
        let hours = self.reports[scaling as usize].iter().map(|report| {
            let autoscale = report.autoscale.as_ref();
            autoscale.map_or_else(
                || self.peak() as f64 * window_hours(scenario),
                |autoscale| autoscale.device_hours,
            )
        });
        mean(hours)
    }

    /// Returns the device-hours saved against the size for the peak, in percent.
    pub(super) fn saved(&self, scenario: &Scenario, scaling: Scaling) -> f64 {
        100.0 * (1.0 - self.hours(scenario, scaling) / self.hours(scenario, Scaling::Peak))
    }
}

/// The runs of all policies on one ramp.
pub(super) struct Ramp {
    /// The speed, as the page says it.
    pub(super) speed: &'static str,
    pub(super) scenario: Scenario,
    pub(super) cases: Vec<Case>,
}

impl Ramp {
    pub(super) fn new(speed: &'static str, file: &str, seeds: &[u64]) -> anyhow::Result<Self> {
        let scenario = Setting::file(root().join(file)).scenario(Calibration::Nominal)?;
        let cases = POLICIES
            .par_iter()
            .map(|policy| Case::new(&scenario, policy, seeds));
        Ok(Self {
            speed,
            cases: cases.collect::<anyhow::Result<_>>()?,
            scenario,
        })
    }
}

/// Returns the length of a run in hours.
pub(super) fn window_hours(scenario: &Scenario) -> f64 {
    scenario.simulation.window.as_secs_f64() / 3600.0
}

pub(super) fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// Runs a scenario with the control plane of the gateway.
fn run(
    scenario: &Scenario,
    policy: &PolicyEntry,
    scaling: Scaling,
    peak: usize,
    seed: u64,
) -> anyhow::Result<Report> {
    let mut scenario = scenario.clone();
    if scaling == Scaling::Peak {
        scenario.problem.devices.truncate(peak);
        scenario.autoscale = None;
    }
    let mut replan = |problem: &Problem| {
        let mut budget = Budget::new(STEPS[0], &|| false);
        policy
            .place_with(problem, &PlanningOptions::default(), &mut budget)
            .ok()
    };
    let first = replan(&scenario.problem_at_start());
    let first = first.ok_or_else(|| anyhow::anyhow!("{}: no first plan", policy.name))?;
    let plan = PlanReport::new(&scenario, &first, 0.0);
    let replanning = Replanning::at_changes(packhorse_placement::estimate, &mut replan);
    let mut find = |problem: &Problem, near: &DevicesByKind| search(policy, problem, near).ok();
    let replanning = match scaling {
        Scaling::Needed => replanning.autoscaling(ScalingRule::DevicesNeeded(&mut find)),
        Scaling::Utilization => {
            replanning.autoscaling(ScalingRule::Utilization(UTILIZATION, STABILIZATION))
        }
        Scaling::Peak => Replanning {
            rate_mode: RateMode::Measured,
            ..replanning
        },
    };
    let options = RunOptions {
        dispatch: DispatchOptions::from(Discipline::Deadline),
        replanning: Some(replanning),
        ..RunOptions::default()
    };
    Ok(simulate_with(
        &scenario,
        plan,
        &first.replicas,
        seed,
        options,
        &mut |_| {},
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_minimum_is_that_of_the_steps_around() {
        let minima = Minima(vec![1, 4, 2, 3, 1, 1]);
        let (none, step) = (Duration::ZERO, Duration::from_secs(15));
        assert_eq!(minima.largest(none, none), [1, 4, 2, 3, 1, 1]);
        assert_eq!(minima.largest(step * 2, none), [1, 4, 4, 4, 3, 3]);
        assert_eq!(minima.largest(none, step), [4, 4, 3, 3, 1, 1]);
        assert_eq!(minima.largest(step, step), [4, 4, 4, 3, 3, 1]);
    }
}

//! An autoscaler that follows `packhorse_devices_needed`, beside the smallest cluster that clairvoyance would have needed, the size for the peak,
//! and an autoscaler that follows the utilisation of the devices.

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::{Discipline, ModelIndex, Problem, RateMode, RequestsPerSecond, Time};
use packhorse_control::DevicesNeeded;
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_placement::{Budget, PlanningOptions, PolicyEntry, devices_needed, policy};
use packhorse_simulator::{
    DevicesByKind, DispatchOptions, PlanReport, Replanning, Report, RunOptions, ScalingRule,
    Scenario, simulate_with,
};
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    runner::Runner,
    setting::{Calibration, Setting, root},
    sweep::Sweep,
    thesis::GOODPUT,
};

pub(crate) struct Autoscale;

/// The policies, the one of the figure first.
const POLICIES: [&str; 2] = [GOODPUT, "first-fit"];
/// The steps of the policy for a plan, and of a search for the smallest cluster: for `goodput` about as many as the gateway's time limits allow.
const STEPS: [u64; 2] = [50_000, 200_000];
/// The time for which the metric holds a need.
const HELD: Duration = Duration::from_mins(15);
/// The utilisation of the devices at which Kubernetes' controller aims.
const UTILIZATION: f64 = 0.7;
/// The time for which it holds a need, its default.
const STABILIZATION: Duration = Duration::from_mins(5);
/// The difference from the true minimum that counts as none, in devices.
const TOLERANCE: usize = 1;
/// The share of the time within that tolerance, in percent.
const WITHIN: f64 = 95.0;
/// The share of the requests in time, in percent.
const IN_TIME: f64 = 99.0;
/// The device-hours saved against the size for the peak, in percent.
const SAVED: f64 = 30.0;

/// The devices of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    /// Those that the metric tells.
    Needed,
    /// Those that the utilisation asks for.
    Utilization,
    /// The largest true minimum, all the time.
    Peak,
}

impl Scaling {
    const ALL: [Self; 3] = [Self::Needed, Self::Utilization, Self::Peak];

    fn label(self) -> &'static str {
        match self {
            Self::Needed => "`packhorse_devices_needed`",
            Self::Utilization => "utilisation",
            Self::Peak => "size for the peak",
        }
    }
}

/// The true minima of a policy: at every step, the devices of the smallest cluster for the true rates until the next step.
struct Minima(Vec<usize>);

/// The seconds of the steps, each of which is a decision of the autoscaler.
fn steps(scenario: &Scenario) -> impl Iterator<Item = Time> {
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
        let mut last = DevicesByKind::new();
        let minima = steps(scenario).map(|now| {
            for (index, model) in problem.models.iter_mut().enumerate() {
                let until = now + DevicesNeeded::SEARCH_PERIOD;
                let rate = scenario.mean_rate(ModelIndex(index), now, until);
                model.rate = RequestsPerSecond::new(rate)?;
            }
            last = search(policy, &problem, &last)?;
            Ok(last.values().sum())
        });
        Ok(Self(minima.collect::<anyhow::Result<_>>()?))
    }

    /// Returns at every step the largest minimum from `before` it until `after` it.
    fn largest(&self, before: Duration, after: Duration) -> Vec<usize> {
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
struct Case {
    policy: &'static str,
    minima: Minima,
    /// One report for each of [`Scaling::ALL`] and each seed.
    reports: Vec<Vec<Report>>,
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

    fn peak(&self) -> usize {
        self.minima.0.iter().copied().max().unwrap_or_default()
    }

    /// Returns a number of the devices of a run at every step.
    fn devices(
        &self,
        scenario: &Scenario,
        scaling: Scaling,
        seed: usize,
        number: impl Fn(&packhorse_simulator::DeviceCounts) -> Option<usize>,
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
    fn within(&self, scenario: &Scenario, minima: &[usize]) -> f64 {
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
    fn in_time(&self, scaling: Scaling) -> f64 {
        let totals = self.reports[scaling as usize].iter();
        let shares = totals.map(|report| report.totals.goodput_rps / report.totals.offered_rps);
        100.0 * mean(shares)
    }

    /// Returns the mean device-hours.
    fn hours(&self, scenario: &Scenario, scaling: Scaling) -> f64 {
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
    fn saved(&self, scenario: &Scenario, scaling: Scaling) -> f64 {
        100.0 * (1.0 - self.hours(scenario, scaling) / self.hours(scenario, Scaling::Peak))
    }
}

/// Returns the length of a run in hours.
fn window_hours(scenario: &Scenario) -> f64 {
    scenario.simulation.window.as_secs_f64() / 3600.0
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
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

impl Experiment for Autoscale {
    fn name(&self) -> &'static str {
        "autoscale"
    }

    fn title(&self) -> &'static str {
        "An autoscaler that follows `packhorse_devices_needed`"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let file = root().join("scenarios/azure/ramp.toml");
        let scenario = Setting::file(file).scenario(Calibration::Nominal)?;
        let seeds: Vec<u64> = runner.seeds.iter().copied().take(SEEDS).collect();
        let cases = POLICIES
            .par_iter()
            .map(|policy| Case::new(&scenario, policy, &seeds));
        let cases: Vec<Case> = cases.collect::<anyhow::Result<_>>()?;
        let mut page = new_page(self);
        describe(&mut page, &scenario, &seeds);
        page.targets(&targets(&scenario, &cases));
        page.figure("devices", &figure(&scenario, &cases[0]));
        page.heading("Runs");
        page.paragraph(
            "*In time*: the percentage of the offered requests that are answered within their SLO. *Lost*: requests that were accepted and lost with a \
             worker. *Device-hours*: of each device from when it is asked for until it is removed. *Saved*: against the size for the peak. The \
             last row of a policy is what a metric would ask for that knows the future: no metric that holds a need for 15 minutes saves more and suffices.",
        );
        page.table(&run_table(&scenario, &cases)?);
        page.paragraph(
            "Less can be saved with `goodput`: its peak needs fewer devices, and its rest about as many. The load rises and falls six times as fast as recorded, \
             so that a hold of 15 minutes is one of an hour and a half of the recorded day.",
        );
        page.heading("The metric and the true minimum");
        page.paragraph(&format!(
            "The percentage of the decisions at which the metric is within ±{TOLERANCE} of the true minimum, by definition of the latter: of the moment, or the \
             largest of the time ahead for which the metric forecasts, a node's start and two searches; each as it is, or the largest of the last 15 minutes, as the metric holds it. \
             A metric that holds cannot follow a minimum that does not."
        ));
        page.table(&within_table(&scenario, &cases)?);
        page.csv(csv(&scenario, &cases)?);
        Ok((page, None))
    }
}

/// The number of seeds. The runs are long: twenty million requests each.
const SEEDS: usize = 1;

fn describe(page: &mut Page, scenario: &Scenario, seeds: &[u64]) {
    let Some(autoscale) = &scenario.autoscale else {
        return;
    };
    page.paragraph(&format!(
        "Twelve hours of the Azure Functions trace around midnight in two hours, as the load of twelve models (`scenarios/azure/ramp.toml`; sources: `scenarios/azure/README.md`), \
         on {} to {} devices whose nodes take {} s to start. The control plane is that of the gateway, with measured rates; nominal, dispatched by `deadline`. Seeds {seeds:?}. One of these runs: \
         `packhorse simulate --scenario scenarios/azure/ramp.toml --replan --policy first-fit`.",
        autoscale.min,
        autoscale.max,
        autoscale.node_start.as_secs()
    ));
    page.paragraph(&format!(
        "* *`packhorse_devices_needed`*: every 15 s the autoscaler reads what the gateway exports: the devices of the smallest cluster on which the policy serves the rates that are forecast for the time at \
         which a node that is asked for now serves, the largest number of 15 minutes that two successive searches found. It asks for what is missing, and drains and removes what is not needed.\n\
         * *utilisation*: the rule of Kubernetes' Horizontal Pod Autoscaler, ⌈devices × utilisation / {UTILIZATION}⌉, with its tolerance of 10 % and its stabilization window of {} minutes. The \
         utilisation of a device is the part of the last 15 s in which it computed, as NVIDIA's tools report it.\n\
         * *size for the peak*: the largest true minimum, all the time.\n\
         * *true minimum*: the devices of the smallest cluster by the same search for the true rates, those of the arrival processes of each 15 s. The policy's prediction decides what is served, as it does for the \
         metric: compared is what is known of the rates, not the policy.",
        STABILIZATION.as_secs() / 60
    ));
}

/// Returns the true minimum that the targets mean: ahead, and held.
fn held_ahead(scenario: &Scenario, case: &Case) -> Vec<usize> {
    case.minima.largest(HELD, ahead(scenario))
}

/// The time from a search until a node serves that is asked for when the search after the next has found the need too.
fn ahead(scenario: &Scenario) -> Duration {
    let autoscale = scenario.autoscale.as_ref();
    let node_start = autoscale.map_or(Duration::ZERO, |autoscale| autoscale.node_start);
    node_start + 2 * DevicesNeeded::SEARCH_PERIOD
}

fn targets(scenario: &Scenario, cases: &[Case]) -> Vec<Claim> {
    let of_case = |case: &Case| {
        let within = case.within(scenario, &held_ahead(scenario, case));
        let in_time = case.in_time(Scaling::Needed);
        let saved = case.saved(scenario, Scaling::Needed);
        let policy = case.policy;
        [
            Claim::new(
                format!(
                    "`{policy}`: within ±{TOLERANCE} of the true minimum {WITHIN} % of the time"
                ),
                format!("{within:.1} %"),
                within >= WITHIN,
            ),
            Claim::new(
                format!("`{policy}`: {IN_TIME} % of the requests in time"),
                format!("{in_time:.2} %"),
                in_time >= IN_TIME,
            ),
            Claim::new(
                format!("`{policy}`: {SAVED} % fewer device-hours than the size for the peak"),
                format!("{saved:.1} %"),
                saved >= SAVED,
            ),
        ]
    };
    cases.iter().flat_map(of_case).collect()
}

fn run_table(scenario: &Scenario, cases: &[Case]) -> anyhow::Result<String> {
    let mut table = String::from(
        "| policy | devices | in time | lost | device-hours | saved | largest number |\n|---|---|---:|---:|---:|---:|---:|\n",
    );
    for case in cases {
        for scaling in Scaling::ALL {
            let lost: u64 = case.reports[scaling as usize]
                .iter()
                .map(|report| report.totals.lost)
                .sum();
            let most = case.devices(scenario, scaling, 0, |counts| Some(counts.have));
            writeln!(
                table,
                "| `{}` | {} | {:.2} % | {lost} | {:.2} | {:.1} % | {} |",
                case.policy,
                scaling.label(),
                case.in_time(scaling),
                case.hours(scenario, scaling),
                case.saved(scenario, scaling),
                most.into_iter().flatten().max().unwrap_or_default()
            )?;
        }
        let held = held_ahead(scenario, case);
        let hours = window_hours(scenario) * mean(held.iter().map(|&count| count as f64));
        writeln!(
            table,
            "| `{}` | true minimum, ahead, held | – | – | {hours:.2} | {:.1} % | {} |",
            case.policy,
            100.0 * (1.0 - hours / case.hours(scenario, Scaling::Peak)),
            held.iter().max().copied().unwrap_or_default()
        )?;
    }
    Ok(table)
}

fn within_table(scenario: &Scenario, cases: &[Case]) -> anyhow::Result<String> {
    let mut table = String::from(
        "| policy | ahead, held | of the moment, held | ahead | of the moment |\n|---|---:|---:|---:|---:|\n",
    );
    let (none, ahead) = (Duration::ZERO, ahead(scenario));
    for case in cases {
        let shares = [(HELD, ahead), (HELD, none), (none, ahead), (none, none)];
        let shares = shares.map(|(before, after)| {
            let minima = case.minima.largest(before, after);
            format!("{:.1} %", case.within(scenario, &minima))
        });
        writeln!(table, "| `{}` | {} |", case.policy, shares.join(" | "))?;
    }
    Ok(table)
}

fn csv(scenario: &Scenario, cases: &[Case]) -> anyhow::Result<String> {
    let mut csv = String::from(
        "policy,t_s,offered_rps,devices_needed,have,have_by_utilization,true_minimum,true_minimum_ahead_held\n",
    );
    for case in cases {
        let needed = case.devices(scenario, Scaling::Needed, 0, |counts| counts.needed);
        let have = case.devices(scenario, Scaling::Needed, 0, |counts| Some(counts.have));
        let by_utilization = case.devices(scenario, Scaling::Utilization, 0, |counts| {
            Some(counts.have)
        });
        let held = held_ahead(scenario, case);
        let text = |count: Option<usize>| count.map_or_else(String::new, |count| count.to_string());
        for (step, now) in steps(scenario).enumerate() {
            writeln!(
                csv,
                "{},{},{:.1},{},{},{},{},{}",
                case.policy,
                now.as_secs_f64(),
                offered(scenario, now),
                text(needed[step]),
                text(have[step]),
                text(by_utilization[step]),
                case.minima.0[step],
                held[step]
            )?;
        }
    }
    Ok(csv)
}

/// Returns the true rate of all models until the next step, in requests/s.
fn offered(scenario: &Scenario, now: Time) -> f64 {
    let until = now + DevicesNeeded::SEARCH_PERIOD;
    let models = 0..scenario.problem.models.len();
    models
        .map(|model| scenario.mean_rate(ModelIndex(model), now, until))
        .sum()
}

fn figure(scenario: &Scenario, case: &Case) -> Figure {
    let minutes: Vec<f64> = steps(scenario)
        .map(|now| now.as_secs_f64() / 60.0)
        .collect();
    let stairs = |series: usize, values: &[Option<usize>]| {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (minute, value) in minutes.iter().zip(values) {
            let Some(value) = value.map(|value| value as f64) else {
                continue;
            };
            // A step needs a point on either side.
            let before = points.last().map(|last| (*minute, last.1));
            points.extend(before.filter(|before| (before.1 - value).abs() > 0.0));
            points.push((*minute, value));
        }
        Curve {
            series,
            stroke: Stroke::Line,
            points,
        }
    };
    let known = |counts: Vec<usize>| counts.into_iter().map(Some).collect::<Vec<_>>();
    let of_run = |scaling, number: fn(&packhorse_simulator::DeviceCounts) -> Option<usize>| {
        case.devices(scenario, scaling, 0, number)
    };
    let devices = LineChart {
        title: format!("devices, {}", case.policy),
        x_axis: "minute".to_owned(),
        y_axis: "devices".to_owned(),
        series: Series::from_labels(["true minimum", "needed", "have", "have, by utilisation"]),
        curves: vec![
            stairs(3, &of_run(Scaling::Utilization, |counts| Some(counts.have))),
            stairs(0, &known(case.minima.0.clone())),
            stairs(2, &of_run(Scaling::Needed, |counts| Some(counts.have))),
            stairs(1, &of_run(Scaling::Needed, |counts| counts.needed)),
        ],
        ..LineChart::default()
    };
    let rate = steps(scenario)
        .zip(&minutes)
        .map(|(now, minute)| (*minute, offered(scenario, now)));
    let load = LineChart {
        title: "offered load".to_owned(),
        x_axis: "minute".to_owned(),
        y_axis: "requests/s".to_owned(),
        series: Series::from_labels(["offered"]),
        curves: vec![Curve {
            series: 0,
            stroke: Stroke::Line,
            points: rate.collect(),
        }],
        ..LineChart::default()
    };
    Figure {
        title: "An autoscaler on the Azure ramp".to_owned(),
        notes: Vec::new(),
        columns: 1,
        panels: vec![Panel::Lines(load), Panel::Lines(devices)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::columns;

    #[test]
    fn the_largest_minimum_is_that_of_the_steps_around() {
        let minima = Minima(vec![1, 4, 2, 3, 1, 1]);
        let (none, step) = (Duration::ZERO, Duration::from_secs(15));
        assert_eq!(minima.largest(none, none), [1, 4, 2, 3, 1, 1]);
        assert_eq!(minima.largest(step * 2, none), [1, 4, 4, 4, 3, 3]);
        assert_eq!(minima.largest(none, step), [4, 4, 3, 3, 1, 1]);
        assert_eq!(minima.largest(step, step), [4, 4, 4, 3, 3, 1]);
    }

    /// Each model has a stripe of the trace: the mean of the half hour around every half hour, in five minutes, and between them a ramp.
    #[test]
    fn the_ramp_is_the_recorded_day_around_midnight() {
        let file = root().join("scenarios/azure/ramp.toml");
        let scenario = Setting::file(file).scenario(Calibration::Nominal).unwrap();
        let stripes = columns("functions2019-day.csv").unwrap();
        assert_eq!(scenario.problem.models.len(), stripes.len());
        for ((_, counts), workload) in stripes.iter().zip(&scenario.workloads) {
            let around = |half_hour: usize| -> f64 {
                let middle = 18 * 60 + 30 * half_hour;
                let minutes = middle - 15..middle + 15;
                minutes
                    .map(|minute| counts[minute % counts.len()] as f64)
                    .sum()
            };
            let scale = workload.rate.initial().get() / around(0);
            for half_hour in 0..25 {
                let at = Time::ZERO + Duration::from_mins(5) * half_hour;
                let expected = scale * around(half_hour as usize);
                let error = (workload.rate.at(at) / expected - 1.0).abs();
                // Rates have a digit behind the point.
                assert!(error < 0.06, "{at:?}: {} {expected}", workload.rate.at(at));
            }
        }
    }
}

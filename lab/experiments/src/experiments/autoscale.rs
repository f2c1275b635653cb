//! An autoscaler that follows `packhorse_devices_needed`, beside the smallest cluster that clairvoyance would have needed, the size for the peak,
//! and an autoscaler that follows the utilisation of the devices.

mod ramp;

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::{ModelIndex, Time};
use packhorse_control::DevicesNeeded;
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_simulator::{DeviceCounts, Scenario};
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    runner::Runner,
    sweep::Sweep,
};
use ramp::{Case, Ramp, STABILIZATION, Scaling, TOLERANCE, UTILIZATION, mean, steps, window_hours};

pub(crate) struct Autoscale;

/// The ramps with their speeds. The targets are of the first one.
const RAMPS: [(&str, &str); 2] = [
    ("as recorded", "scenarios/azure/ramp-as-recorded.toml"),
    ("six times as fast", "scenarios/azure/ramp.toml"),
];
/// The time for which the metric holds a need.
const HELD: Duration = Duration::from_mins(15);
/// The share of the time within that tolerance, in percent.
const WITHIN: f64 = 95.0;
/// The share of the requests in time, in percent.
const IN_TIME: f64 = 99.0;
/// The device-hours saved against the size for the peak, in percent.
const SAVED: f64 = 30.0;

impl Experiment for Autoscale {
    fn name(&self) -> &'static str {
        "autoscale"
    }

    fn title(&self) -> &'static str {
        "An autoscaler that follows `packhorse_devices_needed`"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let seeds: Vec<u64> = runner.seeds.iter().copied().take(SEEDS).collect();
        let ramps = RAMPS
            .par_iter()
            .map(|(speed, file)| Ramp::new(speed, file, &seeds));
        let ramps: Vec<Ramp> = ramps.collect::<anyhow::Result<_>>()?;
        let mut page = new_page(self);
        describe(&mut page, &ramps[0].scenario, &seeds);
        page.targets(&targets(&ramps[0]));
        page.figure("devices", &figure(&ramps[0].scenario, &ramps[0].cases[0]));
        page.heading("Runs");
        page.paragraph(
            "*In time*: the percentage of the offered requests that are answered within their SLO. *Lost*: requests that were accepted and lost with a \
             worker. *Device-hours*: of each device from when it is asked for until it is removed. *Saved*: against the size for the peak. The \
             last row of a policy is what a metric would ask for that knows the future: no metric that holds a need for 15 minutes saves more and suffices.",
        );
        page.table(&run_table(&ramps)?);
        page.paragraph(
            "Less can be saved where the load rises and falls six times as fast as recorded: a hold of 15 minutes is one of an hour and a half of the recorded day. Less can be saved \
             with `goodput` than with `first-fit`: its peak needs fewer devices, and its rest about as many.",
        );
        page.heading("The metric and the true minimum");
        page.paragraph(&format!(
            "The percentage of the decisions at which the metric is within ±{TOLERANCE} of the true minimum, by definition of the latter: of the moment, or the \
             largest of the time ahead for which the metric forecasts, a node's start and two searches; each as it is, or the largest of the last 15 minutes, as the metric holds it. \
             A metric that holds cannot follow a minimum that does not."
        ));
        page.table(&within_table(&ramps)?);
        page.csv(csv(&ramps)?);
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
        "Twelve hours of the Azure Functions trace around midnight, as the load of twelve models, on {} to {} devices whose nodes take {} s to start. *As recorded*: `scenarios/azure/ramp-as-recorded.toml`, \
         on devices that take six times as long as the V100 of the thesis, for a sixth of the requests/s with six times the SLOs, so that the load is that of as many devices and the simulation is not too long. *Six times as fast*: `scenarios/azure/ramp.toml`, \
         on the V100, in two hours. Sources: `scenarios/azure/README.md`. The control plane is that of the gateway, with measured rates; nominal, dispatched by `deadline`. Seeds {seeds:?}. One of these runs: \
         `packhorse-lab simulate --scenario scenarios/azure/ramp-as-recorded.toml --replan --policy first-fit`.",
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

fn targets(ramp: &Ramp) -> Vec<Claim> {
    let scenario = &ramp.scenario;
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
    ramp.cases.iter().flat_map(of_case).collect()
}

/// Returns the cases of all ramps, each with the ramp's speed and scenario.
fn all_cases(ramps: &[Ramp]) -> impl Iterator<Item = (&'static str, &Scenario, &Case)> {
    ramps.iter().flat_map(|ramp| {
        let cases = ramp.cases.iter();
        cases.map(|case| (ramp.speed, &ramp.scenario, case))
    })
}

fn run_table(ramps: &[Ramp]) -> anyhow::Result<String> {
    let mut table = String::from(
        "| ramp | policy | devices | in time | lost | device-hours | saved | largest number |\n|---|---|---|---:|---:|---:|---:|---:|\n",
    );
    for (speed, scenario, case) in all_cases(ramps) {
        for scaling in Scaling::ALL {
            let lost: u64 = case.reports[scaling as usize]
                .iter()
                .map(|report| report.totals.lost)
                .sum();
            let most = case.devices(scenario, scaling, 0, |counts| Some(counts.have));
            writeln!(
                table,
                "| {speed} | `{}` | {} | {:.2} % | {lost} | {:.2} | {:.1} % | {} |",
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
            "| {speed} | `{}` | true minimum, ahead, held | – | – | {hours:.2} | {:.1} % | {} |",
            case.policy,
            100.0 * (1.0 - hours / case.hours(scenario, Scaling::Peak)),
            held.iter().max().copied().unwrap_or_default()
        )?;
    }
    Ok(table)
}

fn within_table(ramps: &[Ramp]) -> anyhow::Result<String> {
    let mut table = String::from(
        "| ramp | policy | ahead, held | of the moment, held | ahead | of the moment |\n|---|---|---:|---:|---:|---:|\n",
    );
    for (speed, scenario, case) in all_cases(ramps) {
        let (none, ahead) = (Duration::ZERO, ahead(scenario));
        let shares = [(HELD, ahead), (HELD, none), (none, ahead), (none, none)];
        let shares = shares.map(|(before, after)| {
            let minima = case.minima.largest(before, after);
            format!("{:.1} %", case.within(scenario, &minima))
        });
        let (policy, shares) = (case.policy, shares.join(" | "));
        writeln!(table, "| {speed} | `{policy}` | {shares} |")?;
    }
    Ok(table)
}

fn csv(ramps: &[Ramp]) -> anyhow::Result<String> {
    let mut csv = String::from(
        "ramp,policy,t_s,offered_rps,devices_needed,have,have_by_utilization,true_minimum,true_minimum_ahead_held\n",
    );
    for (speed, scenario, case) in all_cases(ramps) {
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
                "{speed},{},{},{:.1},{},{},{},{},{}",
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
    let of_run = |scaling, number: fn(&DeviceCounts) -> Option<usize>| {
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
    use crate::{
        recorded::columns,
        setting::{Calibration, Setting, root},
    };

    /// Each model has a stripe of the trace: the mean of the half hour around every half hour, and between two of them a ramp.
    #[test]
    fn the_ramps_are_the_recorded_day_around_midnight() {
        let stripes = columns("functions2019-day.csv").unwrap();
        for ((_, file), (step, error)) in RAMPS.into_iter().zip([(30, 0.08), (5, 0.06)]) {
            let file = Setting::file(root().join(file));
            let scenario = file.scenario(Calibration::Nominal).unwrap();
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
                    let at = Time::ZERO + Duration::from_mins(step) * half_hour;
                    let expected = scale * around(half_hour as usize);
                    let relative = (workload.rate.at(at) / expected - 1.0).abs();
                    // Rates are rounded.
                    assert!(
                        relative < error,
                        "{at:?}: {} {expected}",
                        workload.rate.at(at)
                    );
                }
            }
        }
    }
}

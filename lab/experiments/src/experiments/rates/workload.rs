//! The arrivals on which estimators of the rate are compared: counts per second, with the rate behind them.

use std::{fs, time::Duration};

use anyhow::Context as _;
use packhorse_cluster::{RequestsPerSecond, Time};
use packhorse_simulator::{ArrivalSchedule, Arrivals, Rate, Scenario};
use rayon::prelude::*;

use crate::{recorded::columns, setting::root};

/// The group of a workload in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// The mean rate never changes.
    Stationary,
    /// The rate changes as said.
    Changing,
    /// The rate, or every arrival, was recorded.
    Recorded,
}

/// Arrivals with the rate behind them.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) group: Group,
    /// The true rate in the middle of each second, in requests/s.
    pub(super) truth: Vec<f64>,
    /// The arrivals of each second.
    pub(super) arrivals: Vec<u64>,
}

impl Workload {
    /// Returns the mean of the true rate, which is what an admin would declare.
    pub(super) fn mean(&self) -> f64 {
        self.truth.iter().sum::<f64>() / self.truth.len() as f64
    }
}

/// The seconds of a minute, an hour, and a day.
pub(super) const MINUTE: u64 = 60;
pub(super) const HOUR: u64 = 3_600;
pub(super) const DAY: u64 = 86_400;

/// The time around a second over which a recorded workload's true rate is averaged, on either side, in seconds.
const SMOOTHING: usize = 30;

/// A linear congruential generator for rates, with which the workloads are the same in every run.
struct Random(u64);

impl Random {
    /// Draws from the exponential distribution with mean 1.
    fn exponential(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        -(((self.0 >> 11) + 1) as f64 / (1_u64 << 53) as f64).ln()
    }
}

fn rps(rate: f64) -> RequestsPerSecond {
    RequestsPerSecond::new(rate).expect("workloads have valid rates")
}

fn at(second: f64) -> Time {
    Time::ZERO + Duration::from_secs_f64(second)
}

/// Returns a rate that begins with `first`. Each change has its second, the new rate, and its duration in seconds.
fn changing(first: f64, changes: impl IntoIterator<Item = (f64, f64, f64)>) -> Rate {
    let mut rate = Rate::constant(rps(first));
    for (from, to, over) in changes {
        let appended = rate.append_change(at(from), Duration::from_secs_f64(over), rps(to));
        assert!(appended, "changes of a workload are in order");
    }
    rate
}

/// Returns a rate that alternates between two values, each for an exponential time: with Poisson arrivals, an MMPP of two states.
fn alternating(low: f64, high: f64, mean_seconds: f64, length: u64, seed: u64) -> Rate {
    let mut random = Random(seed);
    random.exponential();
    let mut changes = Vec::new();
    let mut now = 0.0;
    for to in [high, low].into_iter().cycle() {
        now += mean_seconds * random.exponential() + 1e-3;
        if now >= length as f64 {
            break;
        }
        changes.push((now, to, 0.0));
    }
    changing(low, changes)
}

/// Returns the arrivals of a rate over time.
fn generate(
    name: &str,
    group: Group,
    rate: Rate,
    arrivals: Arrivals,
    length: u64,
    seed: u64,
) -> anyhow::Result<Workload> {
    let text = "name = \"rates\"\nprofiles = [\"v100-thesis.csv\"]\n[[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = 1\n\
                [[models]]\nname = \"resnet50\"\nrate_rps = 1\nslo_ms = 200\n";
    let mut load = |name: &str| {
        fs::read_to_string(root().join("profiles").join(name)).map_err(|e| e.to_string())
    };
    let mut scenario = Scenario::parse(text, &mut load).context("the scenario of a workload")?;
    let truth = (0..length).map(|second| rate.at(at(second as f64 + 0.5)));
    let truth = truth.collect();
    scenario.workloads[0].rate = rate;
    scenario.simulation.arrivals = arrivals;
    scenario.simulation.warmup = Duration::ZERO;
    scenario.simulation.window = Duration::from_secs(length);
    let mut counts = vec![0; length as usize];
    for (moment, _) in ArrivalSchedule::new(&scenario, seed)?.requests() {
        counts[moment.as_secs_f64() as usize] += 1;
    }
    Ok(Workload {
        name: name.to_owned(),
        group,
        truth,
        arrivals: counts,
    })
}

/// The Azure Functions trace: the counts of each minute are recorded, the arrivals within a minute are Poisson.
fn functions(seed: u64) -> anyhow::Result<Vec<Workload>> {
    let columns = columns("functions2019-day.csv")?;
    let workloads = columns.par_iter().map(|(name, counts)| {
        let rate = |count: u64| count as f64 / MINUTE as f64;
        let changes = (1_u32..)
            .zip(&counts[1..])
            .map(|(minute, &count)| (f64::from(minute) * MINUTE as f64, rate(count), 0.0));
        let rate = changing(rate(counts[0]), changes);
        let name = format!("functions {}", name.trim_start_matches("stripe_"));
        generate(&name, Group::Recorded, rate, Arrivals::Poisson, DAY, seed)
    });
    workloads.collect()
}

/// The traces of two language models: every arrival is recorded. The true rate is the mean over a minute around each second.
fn language_models() -> anyhow::Result<Vec<Workload>> {
    let workload = |(name, arrivals): (String, Vec<u64>)| {
        let mean_around = |i: usize| {
            let around = &arrivals[i.saturating_sub(SMOOTHING)..arrivals.len().min(i + SMOOTHING)];
            around.iter().sum::<u64>() as f64 / around.len() as f64
        };
        Workload {
            name: format!("LLM {name}"),
            group: Group::Recorded,
            truth: (0..arrivals.len()).map(mean_around).collect(),
            arrivals,
        }
    };
    Ok(columns("llm2023-hour.csv")?
        .into_iter()
        .map(workload)
        .collect())
}

/// Returns a day between `low` and `high`, as a polygon that follows a cosine by quarters of an hour.
fn day(low: f64, high: f64) -> Rate {
    let value = |quarter: u32| {
        let angle = f64::from(quarter) / 96.0 * std::f64::consts::TAU;
        low + (high - low) * (1.0 - angle.cos()) / 2.0
    };
    let changes = (0..96).map(|quarter| (f64::from(quarter) * 900.0, value(quarter + 1), 900.0));
    changing(value(0), changes)
}

/// The parameters of generated arrivals: name, rate, pattern, and length in seconds.
type Generated = (&'static str, Rate, Arrivals, u64);

/// The arrivals whose rate does not change. The MMPP is faster than any plan, and counts as one rate.
fn stationary(seed: u64) -> Vec<Generated> {
    let poisson = |name, rate, length| (name, changing(rate, []), Arrivals::Poisson, length);
    let gamma = |name, variation| {
        let arrivals = Arrivals::Gamma(variation);
        (name, changing(30.0, []), arrivals, DAY)
    };
    let fast = alternating(10.0, 50.0, 5.0, DAY, seed);
    vec![
        poisson("Poisson 0.1/s", 0.1, DAY),
        poisson("Poisson 1/s", 1.0, DAY),
        poisson("Poisson 30/s", 30.0, DAY),
        poisson("Poisson 1000/s", 1_000.0, 4 * HOUR),
        gamma("gamma CV 2, 30/s", 2.0),
        gamma("gamma CV 4, 30/s", 4.0),
        ("MMPP 10/50, 5 s", fast, Arrivals::Poisson, DAY),
    ]
}

/// The arrivals whose rate changes.
fn moving(seed: u64) -> Vec<Generated> {
    let steps = |low: f64| {
        let steps = [1.5, 1.0, 2.0, 1.0, 0.5, 1.0];
        let steps = steps.iter().cycle().zip(1_u32..36);
        let steps = steps.map(|(factor, i)| (f64::from(i) * 1_200.0, factor * low, 0.0));
        changing(low, steps.collect::<Vec<_>>())
    };
    let ramps = (0_u32..12).flat_map(|i| {
        let start = f64::from(i) * 3_600.0;
        [(start + 900.0, 90.0, 600.0), (start + 2_700.0, 30.0, 600.0)]
    });
    let evenings = (0_u32..12).flat_map(|i| {
        let start = f64::from(i) * 600.0;
        [(start + 120.0, 1_400.0, 20.0), (start + 420.0, 100.0, 0.0)]
    });
    let slow = alternating(10.0, 50.0, 120.0, DAY, seed);
    let poisson = |name, rate, length| (name, rate, Arrivals::Poisson, length);
    let bursty = Arrivals::Gamma(4.0);
    vec![
        poisson("MMPP 10/50, 2 min", slow, DAY),
        poisson("steps, 30/s", steps(30.0), DAY / 2),
        poisson("steps, 1/s", steps(1.0), DAY / 2),
        ("steps, 30/s, CV 4", steps(30.0), bursty, DAY / 2),
        poisson("ramps 30 to 90/s, 10 min", changing(30.0, ramps), DAY / 2),
        poisson("evening, 20 s ramps", changing(100.0, evenings), 2 * HOUR),
        poisson("a day, 20 to 120/s", day(20.0, 120.0), DAY),
    ]
}

/// Returns all workloads of a seed.
pub(super) fn workloads(seed: u64) -> anyhow::Result<Vec<Workload>> {
    let in_group = |group| move |generated: Generated| (group, generated);
    let listed = stationary(seed)
        .into_iter()
        .map(in_group(Group::Stationary));
    let listed = listed.chain(moving(seed).into_iter().map(in_group(Group::Changing)));
    let listed: Vec<(Group, Generated)> = listed.collect();
    let generated = listed.into_par_iter();
    let generated = generated.map(|(group, (name, rate, arrivals, length))| {
        let mut workload = generate(name, group, rate, arrivals, length, seed)?;
        if group == Group::Stationary {
            let mean = workload.mean();
            workload.truth.fill(mean);
        }
        Ok(workload)
    });
    let mut workloads = generated.collect::<anyhow::Result<Vec<_>>>()?;
    workloads.extend(functions(seed)?);
    workloads.extend(language_models()?);
    Ok(workloads)
}

/// Returns an hour at a rate and then ten minutes at a higher one.
pub(super) fn step(rate: f64, to: f64, variation: f64, seed: u64) -> anyhow::Result<Workload> {
    let steps = changing(rate, [(HOUR as f64, to, 0.0)]);
    let arrivals = if variation > 1.0 {
        Arrivals::Gamma(variation)
    } else {
        Arrivals::Poisson
    };
    generate(
        "step",
        Group::Changing,
        steps,
        arrivals,
        HOUR + 30 * MINUTE,
        seed,
    )
}

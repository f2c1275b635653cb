//! The expected times of batches: the profile's, corrected by the last observations of the model.

use std::{collections::VecDeque, time::Duration};

use packhorse_cluster::{DeviceIndex, DeviceKind, Time};

use super::ExitPoints;
use crate::Scenario;

/// The number of observations of a model that count. Source: Clockwork's released code takes the 99th percentile of the last ten, which is the largest.
const OBSERVATIONS: usize = 10;

/// The times of all batches by the profiles.
#[derive(Clone, Debug)]
pub(super) struct ProfiledTimes {
    /// The number of each device's kind.
    kinds: Vec<usize>,
    /// By model and kind the times of batches of 1, 2, … rows; none where the model has no profile.
    times: Vec<Vec<Vec<Duration>>>,
}

impl ProfiledTimes {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let problem = &scenario.problem;
        let mut names: Vec<(&DeviceKind, usize)> = Vec::new();
        let mut kinds = Vec::new();
        for (index, device) in problem.devices() {
            let known = names.iter().position(|known| *known.0 == device.kind);
            kinds.push(known.unwrap_or(names.len()));
            if known.is_none() {
                names.push((&device.kind, index.0));
            }
        }
        let times = problem.models().map(|(model, demanded)| {
            let on_kind = |&(_, device): &(&DeviceKind, usize)| {
                let profile = problem.profile(model, DeviceIndex(device));
                profile.map_or_else(Vec::new, |profile| {
                    let sizes = 1..=demanded.max_batch_size;
                    sizes.map(|rows| profile.latency(rows)).collect()
                })
            };
            names.iter().map(on_kind).collect()
        });
        Self {
            times: times.collect(),
            kinds,
        }
    }

    /// Returns the most rows of a batch; 0 if the model has no profile on the device.
    pub(super) fn most_rows(&self, model: usize, device: usize) -> u32 {
        let times = &self.times[model][self.kinds[device]];
        u32::try_from(times.len()).unwrap_or(u32::MAX)
    }

    /// Returns the time of a batch of at most [`Self::most_rows`] rows.
    pub(super) fn compute(&self, model: usize, device: usize, rows: u32) -> Duration {
        self.times[model][self.kinds[device]][rows as usize - 1]
    }
}

/// The expected times of batches.
#[derive(Debug)]
pub(super) struct Estimates {
    profiled: ProfiledTimes,
    exit_points: Option<ExitPoints>,
    /// The observed over the profiled time of the last batches of each model.
    observed: Vec<VecDeque<f64>>,
    /// The largest of each model's; `None` where the profile holds, and before the first one.
    factors: Vec<Option<f64>>,
    /// The time on the way to a device, of a batch without bytes.
    base: Duration,
    /// The time on the way to a device, of each row of each model.
    per_row: Vec<Duration>,
    /// The time from a device back to the client.
    return_time: Duration,
}

impl Estimates {
    pub(super) fn new(scenario: &Scenario, exit_points: Option<ExitPoints>) -> Self {
        let problem = &scenario.problem;
        let per_row = problem.models.iter().map(|model| {
            let bytes = model.payload.as_u64() as f64;
            Duration::from_secs_f64(bytes / problem.network.bytes_per_second)
        });
        Self {
            profiled: ProfiledTimes::new(scenario),
            exit_points,
            observed: vec![VecDeque::new(); problem.models.len()],
            factors: vec![None; problem.models.len()],
            base: problem.conditions.router_overhead + problem.network.base,
            per_row: per_row.collect(),
            return_time: problem.conditions.return_time,
        }
    }

    pub(super) fn most_rows(&self, model: usize, device: usize) -> u32 {
        self.profiled.most_rows(model, device)
    }

    /// Returns the expected time of the computation of a batch.
    pub(super) fn compute(&self, model: usize, device: usize, rows: u32) -> Duration {
        let compute = self.profiled.compute(model, device, rows);
        let compute = match self.exit_points {
            Some(exit_points) => exit_points.stretched(compute),
            None => compute,
        };
        match self.factors[model] {
            Some(factor) => compute.mul_f64(factor),
            None => compute,
        }
    }

    /// Returns the time on the way to a device.
    pub(super) fn overhead(&self, model: usize, rows: u32) -> Duration {
        self.base + self.per_row[model] * rows
    }

    /// Returns the time at which the answer of a batch is with the client that is sent now to a device that is free at `free`.
    pub(super) fn finish(
        &self,
        now: Time,
        free: Time,
        (model, device): (usize, usize),
        rows: u32,
    ) -> Time {
        let there = now + self.overhead(model, rows);
        free.max(there) + self.compute(model, device, rows) + self.return_time
    }

    /// Returns the first one of each kind of these devices. Devices of a kind have equal times.
    pub(super) fn first_of_each_kind(&self, devices: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for device in devices {
            let kind = |device: usize| self.profiled.kinds[device];
            if found.iter().all(|&known| kind(known) != kind(device)) {
                found.push(device);
            }
        }
        found
    }

    /// Returns the least time from sending a request of a model alone to one of these devices, idle, until its answer is with the client.
    pub(super) fn least(&self, model: usize, devices: &[usize]) -> Option<Duration> {
        let alone = devices.iter().map(|device| self.alone(model, *device));
        alone.min()
    }

    /// Returns the time from sending a request alone to an idle device until its answer is with the client.
    pub(super) fn alone(&self, model: usize, device: usize) -> Duration {
        let least = self.finish(Time::ZERO, Time::ZERO, (model, device), 1);
        least.saturating_since(Time::ZERO)
    }

    /// Takes note of the time of a computation.
    pub(super) fn observe(&mut self, model: usize, device: usize, rows: u32, compute: Duration) {
        let mut profiled = self.profiled.compute(model, device, rows);
        if let Some(exit_points) = self.exit_points {
            profiled = exit_points.stretched(profiled);
        }
        let observed = &mut self.observed[model];
        if observed.len() == OBSERVATIONS {
            observed.pop_front();
        }
        observed.push_back(compute.as_secs_f64() / profiled.as_secs_f64());
        let largest = observed.iter().copied().fold(0.0, f64::max);
        // What differs by rounding only is equal.
        self.factors[model] = Some(largest).filter(|factor| (factor - 1.0).abs() >= 1e-6);
    }
}

//! The arrivals of a scenario as a list, which a benchmark sends to a live gateway.

use packhorse_cluster::{ModelIndex, Time};

use crate::{Scenario, arrivals::arrival_processes};

/// The largest number of requests in a schedule.
const MAX_REQUESTS: usize = 20_000_000;

/// The arrivals of all models of a scenario, as in a simulation with the same seed.
///
/// A model with a number of `requests` in the scenario has that many arrivals, however long they take; the other models have those
/// before the end of the window.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrivalSchedule {
    requests: Vec<(Time, ModelIndex)>,
    windows: Vec<(Time, Time)>,
}

/// The reason why a scenario has no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrivalScheduleError {
    /// There are too many requests.
    #[error(
        "a benchmark sends at most {MAX_REQUESTS} requests: lower models[].requests, rate_rps or simulation.window_s"
    )]
    TooMany,
    /// The requests of a model end before the window begins.
    #[error(
        "models[{model}].requests: all {requests} are sent before the warm-up of {warmup_s} s has ended"
    )]
    NothingCounts {
        /// The index of the model in the scenario.
        model: usize,
        /// The number of its requests.
        requests: u64,
        /// The seconds of `simulation.warmup_s`.
        warmup_s: String,
    },
}

impl ArrivalSchedule {
    /// Returns the arrivals of a scenario.
    ///
    /// # Errors
    /// Returns an error if they are too many, or if those of a model end before the window begins.
    pub fn new(scenario: &Scenario, seed: u64) -> Result<Self, ArrivalScheduleError> {
        let simulation = &scenario.simulation;
        let start = Time::ZERO + simulation.warmup;
        let end = start + simulation.window;
        let mut requests = Vec::new();
        let mut windows = Vec::new();
        let processes = arrival_processes(scenario, seed);
        let workloads = scenario.workloads.iter().zip(processes);
        for (i, (workload, mut arrivals)) in workloads.enumerate() {
            let first = requests.len();
            let limit = workload.requests.unwrap_or(u64::MAX);
            while let Some(at) = arrivals.next() {
                let count = (requests.len() - first) as u64;
                if count == limit || workload.requests.is_none() && at >= end {
                    break;
                }
                if requests.len() == MAX_REQUESTS {
                    return Err(ArrivalScheduleError::TooMany);
                }
                requests.push((at, ModelIndex(i)));
            }
            let last = requests[first..].last().map_or(end, |request| request.0);
            windows.push(match workload.requests {
                None => (start, end),
                Some(requests) if last <= start => {
                    return Err(ArrivalScheduleError::NothingCounts {
                        model: i,
                        requests,
                        warmup_s: simulation.warmup.as_secs_f64().to_string(),
                    });
                }
                // The last request is in the window.
                Some(_) => (start, last + std::time::Duration::from_nanos(1)),
            });
        }
        requests.sort_by_key(|request| *request);
        Ok(Self { requests, windows })
    }

    /// The time and model of each request, ascending.
    pub fn requests(&self) -> &[(Time, ModelIndex)] {
        &self.requests
    }

    /// The start and end of the window in which a model's requests count: from the end of the warm-up to the end of the scenario's
    /// window, or, for a model with a number of `requests`, until the last of them.
    pub fn window(&self, model: ModelIndex) -> (Time, Time) {
        self.windows[model.0]
    }
}

//! A scenario's arrivals as a list: what a benchmark sends to a live gateway.

use packhorse_cluster::{ModelIndex, Time};

use crate::{Scenario, arrivals::sources};

/// The most requests of a schedule.
const MAX_REQUESTS: usize = 20_000_000;

/// When which model is asked, as a simulation of the same seed has it.
///
/// A model of which the scenario says how many `requests` a benchmark sends has its first so many, however long that takes; the
/// others have those before the window's end.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    requests: Vec<(Time, ModelIndex)>,
    windows: Vec<(Time, Time)>,
}

/// Why a scenario has no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// It would be too long.
    #[error("a benchmark sends at most {MAX_REQUESTS} requests")]
    TooMany,
    /// A model's requests end before any counts.
    #[error(
        "models[{model}].requests: all {requests} are sent before the warm-up of {warmup_s} s has ended"
    )]
    NothingCounts {
        /// The model's place in the scenario.
        model: usize,
        /// How many it has.
        requests: u64,
        /// The seconds of `simulation.warmup_s`.
        warmup_s: String,
    },
}

impl Schedule {
    /// The arrivals of a scenario.
    ///
    /// # Errors
    /// If they are too many, or a model's end before any counts.
    pub fn new(scenario: &Scenario, seed: u64) -> Result<Self, ScheduleError> {
        let simulation = &scenario.simulation;
        let start = Time::ZERO + simulation.warmup;
        let end = start + simulation.window;
        let mut requests = Vec::new();
        let mut windows = Vec::new();
        let loads = scenario.workloads.iter().zip(sources(scenario, seed));
        for (i, (load, mut source)) in loads.enumerate() {
            let before = requests.len();
            let limit = load.requests.unwrap_or(u64::MAX);
            while let Some(at) = source.next() {
                let sent = (requests.len() - before) as u64;
                if sent == limit || load.requests.is_none() && at >= end {
                    break;
                }
                if requests.len() == MAX_REQUESTS {
                    return Err(ScheduleError::TooMany);
                }
                requests.push((at, ModelIndex(i)));
            }
            let last = requests[before..].last().map_or(end, |request| request.0);
            windows.push(match load.requests {
                None => (start, end),
                Some(requests) if last <= start => {
                    return Err(ScheduleError::NothingCounts {
                        model: i,
                        requests,
                        warmup_s: simulation.warmup.as_secs_f64().to_string(),
                    });
                }
                // The last one counts, too.
                Some(_) => (start, last + std::time::Duration::from_nanos(1)),
            });
        }
        requests.sort_by_key(|request| *request);
        Ok(Self { requests, windows })
    }

    /// When which model is asked, ascending.
    pub fn requests(&self) -> &[(Time, ModelIndex)] {
        &self.requests
    }

    /// From when until when a model's requests count: from the end of the warm-up to the end of the scenario's window, or until
    /// the last of the model's `requests`.
    pub fn window(&self, model: ModelIndex) -> (Time, Time) {
        self.windows[model.0]
    }
}

//! The requests and batches of a run over time, in the same form as a gateway's.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use packhorse_cluster::{DeviceId, DeviceIndex, Time};
use packhorse_serving::RequestOutcome;
use packhorse_trace::{Batch, Course, Names, Request, Trace};
use serde_json::json;

use crate::{Scenario, counters::Stages};

/// A trace of the requests that arrive in a part of a run, and of the batches in it.
#[derive(Clone, Debug)]
pub struct RunTrace {
    from: Time,
    to: Time,
    trace: Trace,
    /// The devices of the replicas that computed batches.
    devices: BTreeMap<u32, DeviceIndex>,
}

/// A batch that was answered.
pub(crate) struct AnsweredBatch {
    pub(crate) key: u64,
    pub(crate) model: usize,
    pub(crate) replica: usize,
    pub(crate) device: usize,
    pub(crate) dispatched: Time,
    pub(crate) answered: Time,
    pub(crate) stages: Stages,
    /// The requests' numbers, with the times of their arrivals.
    pub(crate) requests: Vec<(u64, Time)>,
}

impl RunTrace {
    /// Creates a trace of the requests that arrive between two times of a run.
    pub fn new(from: Time, to: Time) -> Self {
        Self {
            from,
            to,
            trace: Trace::default(),
            devices: BTreeMap::new(),
        }
    }

    fn contains(&self, time: Time) -> bool {
        (self.from..self.to).contains(&time)
    }

    /// Counts a request that has ended, with its way through its batch if it was answered.
    pub(crate) fn request_ended(
        &mut self,
        number: u64,
        model: usize,
        (arrived, ended): (Time, Time),
        outcome: RequestOutcome,
        course: Option<Course>,
        scenario: &Scenario,
    ) {
        if !self.contains(arrived) {
            return;
        }
        let latency = ended.saturating_since(arrived);
        let slo = scenario.problem.models[model].slo;
        self.trace.requests.push(Request {
            number,
            model: index(model),
            arrived,
            latency,
            slo,
            rows: 1,
            outcome: match outcome {
                RequestOutcome::Answered if latency <= slo => "answered",
                RequestOutcome::Answered => "late",
                RequestOutcome::Refused(_) => "refused",
                RequestOutcome::Expired => "expired",
                RequestOutcome::Lost => "lost",
                RequestOutcome::Failed => "failed",
                RequestOutcome::Cancelled => "cancelled",
            },
            reason: match outcome {
                RequestOutcome::Refused(refusal) => Some(refusal.to_string()),
                _ => None,
            },
            receive: Duration::ZERO,
            course,
        });
    }

    /// Counts a batch that was answered, and its requests.
    pub(crate) fn batch_answered(&mut self, batch: &AnsweredBatch, scenario: &Scenario) {
        let round_trip = batch.answered.saturating_since(batch.dispatched);
        let arrivals = batch.requests.iter().map(|(_, arrived)| *arrived);
        let last = arrivals.max().unwrap_or(batch.dispatched);
        for &(request, arrived) in &batch.requests {
            let course = Course {
                batch: batch.key,
                load: Duration::ZERO,
                batch_wait: last.saturating_since(arrived),
                queue: batch.dispatched.saturating_since(last),
                in_batch: round_trip,
            };
            self.request_ended(
                request,
                batch.model,
                (arrived, batch.answered),
                RequestOutcome::Answered,
                Some(course),
                scenario,
            );
        }
        let rows = index(batch.requests.len());
        let traced = Batch {
            key: batch.key,
            model: index(batch.model),
            replica: index(batch.replica),
            dispatched: batch.dispatched,
            round_trip,
            requests: rows,
            rows,
            stages: Some(packhorse_trace::Stages {
                network: batch.stages.network,
                worker_queue: batch.stages.worker_queue,
                compute: batch.stages.compute,
                ..packhorse_trace::Stages::default()
            }),
        };
        self.batch_ended(traced, batch.device);
    }

    /// Counts a batch that has ended.
    pub(crate) fn batch_ended(&mut self, batch: Batch, device: usize) {
        if self.contains(batch.dispatched) {
            self.devices.insert(batch.replica, DeviceIndex(device));
            self.trace.batches.push(batch);
        }
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> usize {
        self.trace.requests.len()
    }

    /// Writes the trace in Chrome's trace event format piece by piece, until `send` returns false.
    pub fn write(self, scenario: &Scenario, send: impl FnMut(Bytes) -> bool) {
        let names = RunNames {
            scenario,
            devices: &self.devices,
        };
        let other = json!({"scenario": scenario.name});
        self.trace.write(&names, self.from, &other, send);
    }
}

struct RunNames<'a> {
    scenario: &'a Scenario,
    devices: &'a BTreeMap<u32, DeviceIndex>,
}

impl Names for RunNames<'_> {
    fn model(&self, model: u32) -> String {
        let models = &self.scenario.problem.models;
        models[model as usize].id.name.to_string()
    }

    fn replica(&self, replica: u32) -> String {
        replica.to_string()
    }

    fn device(&self, replica: u32) -> String {
        let index = self.devices[&replica];
        let device = &self.scenario.problem.devices[index.0];
        match DeviceId::new(device.node.clone(), &index.0.to_string()) {
            Ok(id) => format!("{id} ({})", device.kind),
            Err(_) => index.0.to_string(),
        }
    }
}

/// Returns an index as a number of the trace.
pub(crate) fn index(index: usize) -> u32 {
    u32::try_from(index).expect("scenarios and plans are limited")
}

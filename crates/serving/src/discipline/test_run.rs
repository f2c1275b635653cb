//! An engine with one model, for tests of disciplines.

use std::time::Duration;

use packhorse_cluster::{Discipline as Name, Priority, Time};
use packhorse_contention::ServiceTimes;

use crate::{
    Action, BatchKey, DeviceKey, DeviceSharing, Engine, EngineConfig, Event, ModelKey, ModelLimits,
    ReplicaKey, ReplicaParameters, Request, RequestKey, RequestOutcome, ShapeClass, TenantKey,
};

const MODEL: ModelKey = ModelKey(0);

/// Returns the time of a millisecond.
pub(super) fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// An engine with one model, whose replicas take 10, 12, 14 and 16 ms for 1 to 4 rows and stand on devices in reverse order.
pub(super) struct Run {
    pub(super) engine: Engine,
    requests: u64,
    /// The requests that were dropped.
    pub(super) dropped: Vec<u64>,
}

impl Run {
    pub(super) fn new(discipline: Name, replicas: u32) -> Self {
        let mut engine = Engine::new(EngineConfig {
            discipline,
            ..EngineConfig::default()
        });
        let limits = ModelLimits {
            max_batch_rows: 4,
            max_batch_bytes: u64::MAX,
            queue_limit: 20,
        };
        engine.handle(
            at(0),
            Event::ModelUpdated {
                model: MODEL,
                limits,
                priority: Priority::default(),
            },
        );
        for key in 0..replicas {
            let times = [10, 12, 14, 16].map(Duration::from_millis).to_vec();
            let parameters = ReplicaParameters {
                model: MODEL,
                batch_size: 4,
                in_flight: 2,
                service: ServiceTimes::from_times(times),
                device: DeviceKey(9 - key),
                sharing: DeviceSharing::Concurrent,
                shares_memory: false,
            };
            let replica = ReplicaKey(key);
            engine.handle(
                at(0),
                Event::ReplicaReady {
                    replica,
                    parameters,
                },
            );
        }
        Self {
            engine,
            requests: 0,
            dropped: Vec::new(),
        }
    }

    /// Returns the replica and the requests of each batch.
    pub(super) fn actions(&mut self, now: u64) -> Vec<(u32, Vec<u64>)> {
        let mut batches = Vec::new();
        while let Some(action) = self.engine.poll(at(now)) {
            match action {
                Action::Dispatch {
                    replica, requests, ..
                } => batches.push((replica.0, requests.iter().map(|r| r.0).collect())),
                Action::Finish { request, outcome } => {
                    assert_eq!(outcome, RequestOutcome::Expired);
                    self.dropped.push(request.0);
                }
                Action::ReplicaDrained { .. }
                | Action::ReplicaEjected { .. }
                | Action::ReplicaRestored { .. }
                | Action::Load { .. }
                | Action::Unload { .. }
                | Action::TenantPaused { .. } => panic!("nothing drains, fails or moves"),
            }
        }
        batches
    }

    /// Returns the millisecond in which the next batch is sent, without further events, and the batch.
    pub(super) fn next_sent(&mut self) -> (u64, Vec<(u32, Vec<u64>)>) {
        loop {
            let at = self.engine.poll_timeout().expect("a batch waits");
            let now = at.as_nanos().div_ceil(1_000_000);
            let batches = self.actions(now);
            if !batches.is_empty() {
                return (now, batches);
            }
        }
    }

    pub(super) fn arrive(&mut self, now: u64, deadline: u64) -> Vec<(u32, Vec<u64>)> {
        let request = Request {
            id: RequestKey(self.requests),
            model: MODEL,
            tenant: TenantKey(0),
            rows: 1,
            bytes: 1,
            class: ShapeClass(0),
            priority: 0,
            may_fall_back: false,
            deadline: at(deadline),
            load_by: at(deadline),
        };
        self.requests += 1;
        self.engine.handle(at(now), Event::RequestArrived(request));
        self.actions(now)
    }

    pub(super) fn done(&mut self, now: u64, batch: u64, millis: u64) {
        self.engine.handle(
            at(now),
            Event::BatchCompleted {
                batch: BatchKey(batch),
                queue_wait: Duration::ZERO,
                compute: Duration::from_millis(millis),
            },
        );
    }
}

//! `symphony` and `accscale`: a batch waits until one more request could not join it in time.
//!
//! The candidate batch of a model holds its requests by deadline, as many as are back before the earliest deadline `d` among them. With `b` rows
//! it may start between `d − l(b + 1)`, from which on a further row would make it late, and `d − l(b)`, after which it is late itself; `l` is
//! the time of a batch on the replica. It is dispatched in this window and not before, so that batches become as large as deadlines
//! allow, at the price of latency. A request that no replica can answer in time any more is dropped.
//!
//! `symphony` sends the batch to the idle replica on the lowest-numbered device: the others stay idle, which shows how many are
//! needed. `accscale` sends it to the next idle replica in turn.
//!
//! Source: Chen et al., "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling", 2023, the schedulable window of section 3; and
//! Ahmad et al., "Proteus: A High-Throughput Inference-Serving System with Accuracy Scaling", ASPLOS 2024, the batching of section 5, which waits
//! for at most `T_exp(1) − T_process(q + 1)` with `q` requests queued: the same moment.
//!
//! Deviations:
//! - Symphony matches the candidates of all models with all devices, and starts nothing on a device that computes for another model. A
//!   discipline here sees one model: a batch starts beside those of other models, and the observed slowdown of its replica is a part of
//!   `l`. The two are the same where a device has one model.
//! - Proteus queues requests at the workers. Here they wait at the gateway until a replica is idle, and the earliest deadline goes first.
//! - A replica counts as idle when the batch would arrive just as the one before it is done. The sources, too, send inputs ahead of the
//!   computation; a batch that waited behind another one at the worker could not grow any more.

use std::time::Duration;

use packhorse_cluster::Time;

use super::{
    decision::Decision,
    interface::Discipline,
    model_view::{CandidateBatch, ModelView},
};
use crate::{DeviceKey, Refusal, ReplicaKey, Request, queue::QueuedRequest, replica::Replica};

/// The choice among several idle replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleChoice {
    /// That on the lowest-numbered device.
    LowestNumbered,
    /// The next one in turn.
    RoundRobin,
}

#[derive(Debug)]
pub(super) struct Deferred {
    pub(super) choice: IdleChoice,
}

impl Discipline for Deferred {
    fn binds_late(&self) -> bool {
        true
    }

    fn rank(&self, request: &Request) -> u64 {
        request.deadline.as_nanos()
    }

    fn admit(&self, view: ModelView<'_>, request: &Request, _: u64) -> Result<(), Refusal> {
        let takes = |(_, replica): (ReplicaKey, &Replica)| takes(view, replica, request.rows);
        if view.pool.serving().any(takes) {
            Ok(())
        } else {
            Err(Refusal::CannotMeetDeadline)
        }
    }

    fn decide(&self, view: ModelView<'_>) -> Decision {
        let (Some((due, earliest)), Some(leader)) =
            (view.queue.earliest_deadline(), view.queue.iter().next())
        else {
            return Decision::Wait(None);
        };
        if due <= view.now {
            return Decision::Expire(earliest);
        }
        if view.pool.serving().next().is_none() {
            return Decision::Wait(Some(due));
        }
        if !view
            .pool
            .serving()
            .any(|(key, replica)| leader.may_go_to(key) && in_time(view, replica, leader))
        {
            return Decision::Expire(leader.ticket);
        }
        let possible = possible_batches(view, leader);
        let next_idle = possible.iter().map(|possible| possible.idle_at).min();
        let idle = possible
            .into_iter()
            .filter(|possible| possible.idle_at <= view.now);
        let Some(chosen) = self.choose(idle) else {
            return Decision::Wait(Some(next_idle.map_or(due, |idle| idle.min(due))));
        };
        if chosen.until <= view.now {
            return view.dispatch(chosen.replica, leader, chosen.batch);
        }
        Decision::Wait(Some(chosen.until.min(due)))
    }
}

/// The candidate batch of the leader on one replica.
struct PossibleBatch {
    replica: ReplicaKey,
    device: DeviceKey,
    batch: CandidateBatch,
    /// The time from which on no further row could join it in time.
    until: Time,
    /// The time from which on it would not wait at the worker.
    idle_at: Time,
}

impl Deferred {
    /// Returns the batch that is next, out of those on idle replicas in turn.
    fn choose(&self, mut idle: impl Iterator<Item = PossibleBatch>) -> Option<PossibleBatch> {
        match self.choice {
            IdleChoice::LowestNumbered => idle.min_by_key(|idle| (idle.device, idle.replica)),
            IdleChoice::RoundRobin => idle.next(),
        }
    }
}

/// Returns the candidate batch on each replica with a free credit that can answer the leader in time, in turn.
fn possible_batches(view: ModelView<'_>, leader: &QueuedRequest) -> Vec<PossibleBatch> {
    let able = view.pool.round_robin().filter(|(key, replica)| {
        leader.may_go_to(*key) && replica.has_credit() && in_time(view, replica, leader)
    });
    let possible = able.map(|(key, replica)| {
        let (batch, until) = candidate(view, replica, leader);
        let busy = replica.busy_until_and_overhead(view.now, batch.rows);
        PossibleBatch {
            replica: key,
            device: replica.device(),
            batch,
            until,
            idle_at: busy.map_or(view.now, |(free, overhead)| time_before(free, overhead)),
        }
    });
    possible.collect()
}

fn time_before(time: Time, by: Duration) -> Time {
    Time::ZERO + time.saturating_since(Time::ZERO + by)
}

fn takes(view: ModelView<'_>, replica: &Replica, rows: u32) -> bool {
    rows <= replica.rows_limit().min(view.limits.max_batch_rows)
}

fn in_time(view: ModelView<'_>, replica: &Replica, waiting: &QueuedRequest) -> bool {
    let Request { rows, deadline, .. } = waiting.request;
    takes(view, replica, rows) && replica.forecast(view.now).finish(rows) <= deadline
}

/// Returns the candidate batch of the leader, and the time from which on no further row could join it in time.
fn candidate(
    view: ModelView<'_>,
    replica: &Replica,
    leader: &QueuedRequest,
) -> (CandidateBatch, Time) {
    let forecast = replica.forecast(view.now);
    let (mut due, mut blocked) = (leader.request.deadline, false);
    let batch = view.batch(
        leader,
        view.batch_limit(replica, leader),
        |waiting, rows| {
            let earliest = due.min(waiting.request.deadline);
            blocked = forecast.finish(rows) > earliest;
            if !blocked {
                due = earliest;
            }
            !blocked
        },
    );
    if batch.full || blocked {
        return (batch, view.now);
    }
    let slack = due.saturating_since(forecast.finish(batch.rows + 1));
    (batch, view.now + slack)
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Discipline as Name;
    use packhorse_contention::ServiceTimes;

    use super::*;
    use crate::{
        Action, BatchKey, Engine, EngineConfig, Event, ModelKey, ModelLimits, ReplicaParameters,
        RequestKey, RequestOutcome, ShapeClass, TenantKey,
    };

    const MODEL: ModelKey = ModelKey(0);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    /// An engine with one model, whose replicas take 10, 12, 14 and 16 ms for 1 to 4 rows and stand on devices in reverse order.
    struct Run {
        engine: Engine,
        requests: u64,
        /// The requests that were dropped.
        dropped: Vec<u64>,
    }

    impl Run {
        fn new(discipline: Name, replicas: u32) -> Self {
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
                },
            );
            for key in 0..replicas {
                let times = [10, 12, 14, 16].map(Duration::from_millis).to_vec();
                let parameters = ReplicaParameters {
                    model: MODEL,
                    batch_size: 4,
                    credits: 2,
                    service: ServiceTimes::from_times(times),
                    device: DeviceKey(9 - key),
                    time_shared: false,
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
        fn actions(&mut self, now: u64) -> Vec<(u32, Vec<u64>)> {
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
                    | Action::ReplicaRestored { .. } => panic!("nothing drains or fails"),
                }
            }
            batches
        }

        /// Returns the millisecond in which the next batch is sent, without further events, and the batch.
        fn next_sent(&mut self) -> (u64, Vec<(u32, Vec<u64>)>) {
            loop {
                let at = self.engine.poll_timeout().expect("a batch waits");
                let now = at.as_nanos().div_ceil(1_000_000);
                let batches = self.actions(now);
                if !batches.is_empty() {
                    return (now, batches);
                }
            }
        }

        fn arrive(&mut self, now: u64, deadline: u64) -> Vec<(u32, Vec<u64>)> {
            let request = Request {
                id: RequestKey(self.requests),
                model: MODEL,
                tenant: TenantKey(0),
                rows: 1,
                bytes: 1,
                class: ShapeClass(0),
                priority: 0,
                deadline: at(deadline),
            };
            self.requests += 1;
            self.engine.handle(at(now), Event::RequestArrived(request));
            self.actions(now)
        }

        fn done(&mut self, now: u64, batch: u64, millis: u64) {
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

    #[test]
    fn a_batch_waits_until_one_more_row_would_make_it_late() {
        for discipline in [Name::Symphony, Name::Accscale] {
            let mut run = Run::new(discipline, 1);
            assert_eq!(run.arrive(0, 100), []);
            // One row must leave before two would be back too late: at 100 − 12.
            assert_eq!(run.engine.poll_timeout(), Some(at(88)));
            assert_eq!(run.arrive(5, 105), []);
            assert_eq!(run.engine.poll_timeout(), Some(at(86)));
            assert_eq!(run.actions(86), [(0, vec![0, 1])]);
        }
    }

    #[test]
    fn a_full_batch_and_one_that_cannot_grow_leave_at_once() {
        let mut run = Run::new(Name::Symphony, 1);
        for _ in 0..3 {
            assert_eq!(run.arrive(0, 100), []);
        }
        assert_eq!(run.arrive(1, 100), [(0, vec![0, 1, 2, 3])]);
        let mut tight = Run::new(Name::Symphony, 1);
        // Two rows take 12 ms: a second one could never join.
        assert_eq!(tight.arrive(0, 11), [(0, vec![0])]);
    }

    #[test]
    fn symphony_takes_the_lowest_device_and_accscale_the_next_in_turn() {
        let mut lowest = Run::new(Name::Symphony, 3);
        let mut in_turn = Run::new(Name::Accscale, 3);
        for run in [&mut lowest, &mut in_turn] {
            run.arrive(0, 11);
            run.done(11, 0, 10);
        }
        // Replica 2 stands on device 7, the lowest; replicas take turns in the order of their keys.
        assert_eq!(lowest.arrive(20, 31), [(2, vec![1])]);
        assert_eq!(in_turn.arrive(20, 31), [(1, vec![1])]);
    }

    #[test]
    fn a_batch_is_sent_so_that_it_arrives_when_the_one_before_it_is_done() {
        let mut run = Run::new(Name::Symphony, 1);
        // The way takes 5 ms, which the engine learns.
        for round in 0..20 {
            let start = 100 * round;
            run.arrive(start, start + 40);
            let (sent, batches) = run.next_sent();
            assert_eq!(batches, [(0, vec![round])]);
            run.done(sent + 15, round, 10);
        }
        // This one must leave at once, and is computed until 2015.
        assert_eq!(run.arrive(2_000, 2_017), [(0, vec![20])]);
        assert_eq!(run.arrive(2_001, 2_028), []);
        // Two rows would be late from 2028 − 17 on; the replica takes a batch that leaves from 2010 on.
        let (sent, batches) = run.next_sent();
        assert!((2_010..=2_012).contains(&sent), "{sent}");
        assert_eq!(batches, [(0, vec![21])]);
    }

    #[test]
    fn a_busy_replica_gets_nothing_and_what_is_late_is_dropped() {
        let mut run = Run::new(Name::Symphony, 1);
        assert_eq!(run.arrive(0, 11), [(0, vec![0])]);
        // The replica has a second credit, but a batch behind the first could not grow.
        assert_eq!(run.arrive(1, 25), []);
        run.done(10, 0, 10);
        assert_eq!(run.actions(10), []);
        assert_eq!(run.engine.poll_timeout(), Some(at(13)));
        assert_eq!(run.actions(13), [(0, vec![1])]);
        // Not even an idle replica answers this one in time.
        let mut late = Run::new(Name::Symphony, 1);
        late.arrive(0, 11);
        late.arrive(1, 15);
        assert_eq!(late.dropped, [1]);
    }
}

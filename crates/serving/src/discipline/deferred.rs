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

use std::collections::VecDeque;

use packhorse_cluster::Time;

use super::{
    decision::Decision,
    interface::Discipline,
    model_view::{CandidateBatch, ModelView},
};
use crate::{Refusal, ReplicaKey, Request, queue::QueuedRequest, replica::Replica};

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
        view.admit_if_taken(request)
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
            .any(|(key, replica)| view.may_go_to(leader, key) && in_time(view, replica, leader))
        {
            return Decision::Expire(leader.ticket);
        }
        let mut next_idle = None;
        let Some(chosen) = self.batch_on_idle(view, leader, &mut next_idle) else {
            return Decision::Wait(Some(next_idle.map_or(due, |idle: Time| idle.min(due))));
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
    batch: CandidateBatch,
    /// The time from which on no further row could join it in time.
    until: Time,
}

impl Deferred {
    /// Returns the candidate batch on the chosen one of the idle replicas with a free credit that can answer the leader in time. Without one, sets
    /// the time at which the next replica is idle. Of many replicas, most need only a look at their clock.
    fn batch_on_idle(
        &self,
        view: ModelView<'_>,
        leader: &QueuedRequest,
        next_idle: &mut Option<Time>,
    ) -> Option<PossibleBatch> {
        let mut wait_until = |time: Time| {
            *next_idle = Some(next_idle.map_or(time, |next: Time| next.min(time)));
        };
        let able = view.pool.round_robin().filter(|(key, replica)| {
            view.may_go_to(leader, *key)
                && replica.has_credit()
                && view.takes(replica, leader.request.rows)
        });
        let mut nearly_idle: VecDeque<(ReplicaKey, &Replica)> = VecDeque::new();
        for (key, replica) in able {
            // A larger batch takes longer on its way, so that none is sent before this.
            let first = idle_at(view, replica, view.batch_limit(replica, leader));
            if first <= view.now {
                nearly_idle.push_back((key, replica));
            } else {
                wait_until(first);
            }
        }
        while let Some((key, replica)) = self.take_next(&mut nearly_idle) {
            if !in_time(view, replica, leader) {
                continue;
            }
            let (batch, until) = candidate(view, replica, leader);
            let idle_at = idle_at(view, replica, batch.rows);
            if idle_at <= view.now {
                return Some(PossibleBatch {
                    replica: key,
                    batch,
                    until,
                });
            }
            wait_until(idle_at);
        }
        None
    }

    /// Removes the replica that is asked next out of those in turn.
    fn take_next<'a>(
        &self,
        replicas: &mut VecDeque<(ReplicaKey, &'a Replica)>,
    ) -> Option<(ReplicaKey, &'a Replica)> {
        match self.choice {
            IdleChoice::LowestNumbered => {
                let numbered = replicas.iter().enumerate();
                let lowest = numbered.min_by_key(|(_, (key, replica))| (replica.device(), *key));
                let place = lowest?.0;
                replicas.swap_remove_back(place)
            }
            IdleChoice::RoundRobin => replicas.pop_front(),
        }
    }
}

/// Returns the time from which on a batch of so many rows would not wait at the worker.
fn idle_at(view: ModelView<'_>, replica: &Replica, rows: u32) -> Time {
    let busy = replica.busy_until_and_overhead(view.now, rows);
    busy.map_or(view.now, |(free, overhead)| free.saturating_sub(overhead))
}

fn in_time(view: ModelView<'_>, replica: &Replica, waiting: &QueuedRequest) -> bool {
    let Request { rows, deadline, .. } = waiting.request;
    view.takes(replica, rows) && replica.forecast(view.now).finish(rows) <= deadline
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
    let rows = batch.rows + 1;
    if forecast.finish(rows) >= due {
        return (batch, view.now);
    }
    // Not the slack from now on: while the replica is busy it stays the same, and the engine would wake again and again.
    (batch, forecast.latest_dispatch(due, rows))
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Discipline as Name;

    use crate::discipline::test_run::{Run, at};

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
    fn a_batch_that_waits_for_a_busy_replica_wakes_the_engine_a_few_times() {
        let mut run = Run::new(Name::Symphony, 1);
        assert_eq!(run.arrive(0, 11), [(0, vec![0])]);
        // Two rows would be back at 22, one nanosecond before they are due.
        run.arrive(1, 22);
        let mut wakes = 0;
        while let Some(at) = run.engine.poll_timeout() {
            while run.engine.poll(at).is_some() {}
            wakes += 1;
            assert!(wakes < 10, "the engine wakes again and again");
        }
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

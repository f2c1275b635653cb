//! `aimd`: the largest batch that a replica answers within the objective is learnt from its answers.
//!
//! Each replica has a batch size, which begins with one row, grows by one after a batch of that size that was back within the objective, and shrinks by a tenth
//! after a late one: [`crate::adaptive_batch`]. No profile is used. An idle replica takes a batch of its size at once; fewer
//! requests wait a moment for others, [`BATCH_DELAY`] from the arrival of the first one on. A request is dropped at its deadline, and not before.
//!
//! Source: Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017, sections 4.3.1 (adaptive batch sizes)
//! and 4.3.2 (delayed batching).
//!
//! Deviations:
//! - The plan's batch size, for which the memory was reserved, is the limit of a replica's.
//! - The latency that is compared with the objective is that of the batch, as in the paper, without its wait behind the batch before it:
//!   requests that waited longer than the objective leaves are late all the same.
//! - A replica counts as idle when the batch would arrive just as the one before it is done, as in [`super::deferred`]. Clipper's containers ask for
//!   a batch when they have answered the one before.
//! - The paper queues requests in front of each container; its released code has one queue for a model, by deadline. So it is here.

use std::time::Duration;

use packhorse_cluster::Time;

use super::{decision::Decision, interface::Discipline, model_view::ModelView};
use crate::{Refusal, Request, replica::Replica};

/// The longest time for which fewer requests than a replica's batch size wait for others. Source: section 4.3.2 finds most of the gain
/// at 2 ms.
const BATCH_DELAY: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Aimd;

impl Discipline for Aimd {
    fn binds_late(&self) -> bool {
        true
    }

    fn adapts_batches(&self) -> bool {
        true
    }

    fn rank(&self, request: &Request) -> u64 {
        request.deadline.as_nanos()
    }

    fn admit(&self, view: ModelView<'_>, request: &Request, _: u64) -> Result<(), Refusal> {
        view.admit_if_taken(request)
    }

    fn decide(&self, view: ModelView<'_>) -> Decision {
        let (Some((due, earliest)), Some(first)) =
            (view.queue.earliest_deadline(), view.queue.iter().next())
        else {
            return Decision::Wait(None);
        };
        if due <= view.now {
            return Decision::Expire(earliest);
        }
        let able = view.pool.round_robin().filter(|(key, replica)| {
            view.may_go_to(first, *key)
                && replica.has_credit()
                && view.takes(replica, first.request.rows)
        });
        let mut next = due;
        for (key, replica) in able {
            let limit = view
                .batch_limit(replica, first)
                .min(replica.adaptive_rows());
            let idle_at = idle_at(view, replica, limit);
            if idle_at > view.now {
                next = next.min(idle_at);
                continue;
            }
            let batch = view.batch(first, limit, |_, _| true);
            let until = first.arrived + BATCH_DELAY;
            if batch.full || until <= view.now {
                return view.dispatch(key, first, batch);
            }
            return Decision::Wait(Some(until.min(due)));
        }
        Decision::Wait(Some(next))
    }
}

/// Returns the time from which on a batch of so many rows would not wait at the worker.
fn idle_at(view: ModelView<'_>, replica: &Replica, rows: u32) -> Time {
    let busy = replica.busy_until_and_overhead(view.now, rows);
    busy.map_or(view.now, |(free, overhead)| free.saturating_sub(overhead))
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Discipline as Name;

    use crate::discipline::test_run::{Run, at};

    #[test]
    fn a_replica_takes_one_row_more_after_each_full_batch_in_time() {
        let mut run = Run::new(Name::Aimd, 1);
        // A size of 1: the first request leaves at once, the others wait for the answer.
        assert_eq!(run.arrive(0, 100), [(0, vec![0])]);
        for _ in 0..5 {
            assert_eq!(run.arrive(1, 100), []);
        }
        run.done(10, 0, 10);
        assert_eq!(run.actions(10), [(0, vec![1, 2])]);
        run.done(22, 1, 12);
        // Three fit now, and three wait.
        assert_eq!(run.actions(22), [(0, vec![3, 4, 5])]);
    }

    #[test]
    fn a_late_batch_makes_the_next_one_smaller() {
        let mut run = Run::new(Name::Aimd, 1);
        let mut now = 0;
        for batch in 0..2 {
            for _ in 0..=batch {
                run.arrive(now, now + 100);
            }
            run.done(now + 20, batch, 10);
            now += 100;
        }
        // The size is 3. A batch of 3 takes 30 ms, its objective is 25 ms: the next one has 2 rows.
        for _ in 0..3 {
            run.arrive(now, now + 25);
        }
        run.done(now + 30, 2, 30);
        for _ in 0..3 {
            run.arrive(now + 100, now + 200);
        }
        assert_eq!(run.arrive(now + 100, now + 200), []);
        run.done(now + 130, 3, 30);
        assert_eq!(run.actions(now + 130), [(0, vec![8, 9])]);
    }

    #[test]
    fn fewer_requests_wait_2_ms_for_others() {
        let mut run = Run::new(Name::Aimd, 1);
        run.arrive(0, 100);
        run.done(10, 0, 10);
        // The size is 2.
        assert_eq!(run.arrive(20, 120), []);
        assert_eq!(run.engine.poll_timeout(), Some(at(22)));
        assert_eq!(run.actions(22), [(0, vec![1])]);
    }

    #[test]
    fn a_request_is_dropped_at_its_deadline_and_not_before() {
        let mut run = Run::new(Name::Aimd, 1);
        run.arrive(0, 100);
        // Nothing can answer it in time, and it waits all the same.
        assert_eq!(run.arrive(1, 8), []);
        assert_eq!(run.actions(7), []);
        assert!(run.dropped.is_empty(), "{:?}", run.dropped);
        run.actions(8);
        assert_eq!(run.dropped, [1]);
    }
}

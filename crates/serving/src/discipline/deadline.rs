//! `deadline`: earliest deadline first, late binding, early drop.
//!
//! - **Order.** Requests stand by deadline, shifted by priority. The first request that a replica with a free credit can answer
//!   in time leads a batch. Requests of its shape class behind it join as long as the batch fits the replica and, by the
//!   estimate, still meets the earliest deadline in it.
//! - **Drop.** A leader that no replica can answer in time any more is dropped, and its client gets an error at once.
//! - **Look ahead.** Once requests wait until they are nearly due, serving the earliest one first makes every batch as small as
//!   its leader's deadline requires, and a replica that gets less done with small batches never recovers. So a replica takes
//!   another batch than the leader's if a window of the requests behind the leader gets more rows per second done there, and
//!   would not be in time behind the leader's batch. The leader then waits for another replica that can still answer it; where
//!   there is none, the leader is dropped, unless another replica can answer the window. That way each of several replicas
//!   computes the batches that it is best at: a slow one those that have time left, a fast one those that are nearly due.
//!   A request further behind that is due earlier than the batch, for its rank is not its deadline's alone, is dropped if it would be late behind
//!   the batch: it would keep this one small, and those that follow.
//! - **Holding.** An idle replica takes work at once. A busy one is sent a partial batch when it is nearly free, not when it has
//!   a credit: until then the batch could not start, and may grow. So is a full one of an overloaded model that tenants share: the request of a tenant
//!   that has had less than the others may still come, and goes before. Where another model is overloaded on the same device (it drops
//!   requests, or has so many waiting that their deadlines are endangered), even an idle replica waits for a partial batch to grow as long as the
//!   batch's deadline allows, a quarter of a second at most: the other model lacks the device's time that a small batch wastes.
//! - **Slow links.** A replica that computes batches faster than its link transmits them gets small ones, of [`LINK_BATCH`]: larger ones get no more
//!   done, but the first row would wait for the last, and the worker would compute what has left its caches.
//!
//! Estimates are the profile's times corrected by the replica's observed times and, for a busy replica, with a margin for the
//! estimate's error: a batch that is late has only cost time.
//!
//! Source: earliest deadline first, Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time
//! Environment", 1973, section 7; early drop as in Nexus (Shen et al., SOSP 2019, section 6.3), whose window has the planned
//! batch size, while ours has the size that gets most done: a planned size that takes most of the objective is never in time once
//! requests wait.

use std::time::Duration;

use packhorse_cluster::Time;

use super::{
    decision::Decision,
    interface::Discipline,
    model_view::{CandidateBatch, ModelView},
};
use crate::{
    DeadlineOptions, Refusal, ReplicaKey, Request,
    queue::{QueuedRequest, Ticket},
    replica::Replica,
    replica_pool::CountedCapacity,
};

/// The effective priority of a request that names none, which is sent as 0.
const DEFAULT_PRIORITY: u32 = 3;

/// The lowest priority; larger numbers count as this one.
const LOWEST_PRIORITY: u32 = 8;

/// The time by which one step in priority shifts a deadline. Among requests with usual objectives the priority decides; but a
/// request that has waited longer than that goes before a fresh one of the next higher priority, so that none starves.
const PRIORITY_STEP: Duration = Duration::from_secs(1);

/// The number of batches of a model of which one is led by the lowest priority that waits: a flood of a higher priority would
/// otherwise starve requests that are due sooner than after a step.
const FAIRNESS_INTERVAL: u64 = 16;

/// The most requests that are examined for one that a free replica can answer in time, while those before it are only in time for
/// a busy replica. Bounds a decision.
const LOOK_AHEAD: usize = 64;

/// The most requests that are passed over because each waits for one replica, which has no free credit. Bounds a decision.
const PASSED_OVER: usize = 1024;

/// A held batch is sent this many times its overhead before the replica is free: the second credit hides that overhead.
const LEAD_OVERHEAD: u32 = 2;

/// A held batch is sent before the replica is free by the error of its estimates, but at most by the batch's compute time divided by the second of these,
/// and at least divided by the first: an idle replica costs more than a fuller batch gains.
const LEAST_LEAD: u32 = 16;
const MOST_LEAD: u32 = 4;

/// The multiple of its needed time that a partial batch must have left to be held, where its device is shared with an overloaded
/// model.
const SPARE_FACTOR: u32 = 2;

/// The least time that a held batch keeps in reserve, however little it needs: clocks and schedulers have delays of their own.
const MIN_SPARE_TIME: Duration = Duration::from_millis(10);

/// The longest time for which a batch is held because of an overloaded neighbour: a request with a deadline of seconds shall not
/// take seconds.
const MAX_HOLD: Duration = Duration::from_millis(250);

/// The most requests that are examined for the start of a window of some number of rows. Bounds a decision.
const WINDOW_STARTS: usize = 16;

/// The bytes of a batch for a replica that waits for its link: enough that a link spends little of its time between batches, and little enough for a
/// processor's caches. On two cores with 1 MiB of second-level cache each, batches of 1.2 and 1.8 MB get a quarter more done than such of 19 MB.
const LINK_BATCH: u64 = 2_000_000;

/// The most replicas with a free credit that are compared, beginning with the one that is done first. Bounds a decision.
const CANDIDATES: usize = 16;

#[derive(Debug)]
pub(super) struct Deadline {
    pub(super) options: DeadlineOptions,
}

impl Discipline for Deadline {
    fn binds_late(&self) -> bool {
        true
    }

    fn rank(&self, request: &Request) -> u64 {
        (request.deadline + PRIORITY_STEP * effective_priority(request)).as_nanos()
    }

    /// Refuses a request that cannot be answered in time under the best conditions: not even if it were dispatched next, or if
    /// every replica worked at its best rate on the requests before it. A request that is admitted and turns out too late is
    /// dropped later.
    fn admit(&self, view: ModelView<'_>, request: &Request, rank: u64) -> Result<(), Refusal> {
        let in_time = |replica: &Replica| {
            request.rows <= rows_limit(view, replica)
                && (!self.options.drop
                    || replica.forecast(view.now).finish(request.rows) <= request.deadline)
        };
        let can_be_in_time = view.pool.soonest().any(|(_, replica)| in_time(replica));
        if can_be_in_time
            && !(self.options.drop && exceeds_capacity_before_deadline(view, request, rank))
        {
            Ok(())
        } else {
            Err(Refusal::CannotMeetDeadline)
        }
    }

    fn decide(&self, view: ModelView<'_>) -> Decision {
        let Some((due, first)) = view.queue.earliest_deadline() else {
            return Decision::Wait(None);
        };
        let drop = self.options.drop || view.pool.serving().next().is_none();
        if drop && due <= view.now {
            return Decision::Expire(first);
        }
        let due = drop.then_some(due);
        if view.pool.with_free_credit().next().is_none() {
            return Decision::Wait(due);
        }
        let leaders = lowest_priority_leader(view)
            .into_iter()
            .chain(view.queue.iter());
        let (mut with_credit, mut of_all) = (FirstToFinish::default(), FirstToFinish::default());
        // Those that wait for their replica keep nobody behind them from another.
        let if_it_goes_now = |leader| {
            let kept = view.kept_on(leader);
            let goes = kept.is_none_or(|(_, replica)| replica.has_credit());
            goes.then_some((leader, kept))
        };
        let leaders = leaders
            .take(LOOK_AHEAD + PASSED_OVER)
            .filter_map(if_it_goes_now);
        for (leader, kept) in leaders.take(LOOK_AHEAD) {
            let in_time = |finish: Time| !drop || finish <= leader.request.deadline;
            if let Some((key, replica)) = kept {
                // It need not be among the candidates.
                let finish = finish(view, replica, leader.request.rows);
                if finish.is_some_and(in_time) {
                    return self.decide_for_leader(view, key, leader, due);
                }
                return Decision::Expire(leader.ticket);
            }
            let able = |(_, replica): &(ReplicaKey, &Replica)| {
                leader.request.rows <= rows_limit(view, replica)
            };
            let free = || view.pool.with_free_credit().filter(able).take(CANDIDATES);
            if let Some((finish, key)) = with_credit.of(view, leader, free)
                && in_time(finish)
            {
                return self.decide_for_leader(view, key, leader, due);
            }
            let first = of_all.of(view, leader, || view.pool.soonest());
            if !first.is_some_and(|(finish, _)| in_time(finish)) {
                return Decision::Expire(leader.ticket);
            }
        }
        Decision::Wait(due)
    }
}

impl Deadline {
    /// Decides about a request that a replica can answer in time.
    fn decide_for_leader(
        &self,
        view: ModelView<'_>,
        key: ReplicaKey,
        leader: &QueuedRequest,
        due: Option<Time>,
    ) -> Decision {
        let replica = view.pool.get(key).expect("chosen from this pool");
        let (mut first, mut batch) = (leader, self.batch(view, replica, leader));
        // If there are several shape classes, or more requests than the deadlines allow, a part stays behind.
        let takes_all = batch.requests == view.queue.len();
        let look_ahead = self.options.drop && self.options.look_ahead;
        if look_ahead
            && !takes_all
            && let Some(window) = better_window(view, replica, leader, batch.rows)
        {
            let Request { rows, deadline, .. } = leader.request;
            if in_time_elsewhere(view, key, rows, deadline) {
                (first, batch) = (window.first, self.batch(view, replica, window.first));
            } else if !in_time_elsewhere(view, key, window.rows, window.first.request.deadline) {
                return Decision::Expire(leader.ticket);
            }
        }
        if look_ahead
            && !batch.full
            && let Some(hopeless) = hopeless_behind(view, key, replica, first, batch)
        {
            return Decision::Expire(hopeless);
        }
        if self.options.holding {
            let until = if !batch.full {
                hold_until(view, replica, first, batch)
            } else if view.shared_fairly {
                nearly_free(view, replica, batch.rows)
            } else {
                view.now
            };
            if until > view.now {
                return Decision::Wait(Some(due.map_or(until, |due| due.min(until))));
            }
        }
        view.dispatch(key, first, batch)
    }

    /// Returns the batch of the leader and the requests of its class behind it that are in time together. A request that is late
    /// anyway, where nothing is dropped, sets no limit.
    fn batch(
        &self,
        view: ModelView<'_>,
        replica: &Replica,
        leader: &QueuedRequest,
    ) -> CandidateBatch {
        let forecast = replica.forecast(view.now);
        let bound = |waiting: &QueuedRequest| {
            let due = waiting.request.deadline;
            let late = !self.options.drop && forecast.finish(waiting.request.rows) > due;
            if late { Time::MAX } else { due }
        };
        let mut due = bound(leader);
        view.batch(
            leader,
            batch_limit(view, replica, leader),
            |waiting, rows| {
                due = due.min(bound(waiting));
                forecast.finish(rows) <= due
            },
        )
    }
}

/// Returns true if more rows stand before a request of this rank than can be computed before its deadline. Counts no further than the
/// answer needs.
fn exceeds_capacity_before_deadline(view: ModelView<'_>, request: &Request, rank: u64) -> bool {
    if view.queue.rows() == 0 {
        return false;
    }
    let capacity = capacity_before_deadline(view, request);
    if capacity >= view.queue.rows() {
        return false;
    }
    let (mut all, peer) = (view.queue.iter(), |waiting: &QueuedRequest| {
        waiting.ticket.rank <= rank
            && effective_priority(&waiting.request) == effective_priority(request)
    });
    if all.next().is_some_and(peer) && all.next_back().is_none_or(peer) {
        return view.queue.rows() > capacity;
    }
    // One batch in `FAIRNESS_INTERVAL` may serve its priority, whatever else waits.
    let (mut rows, mut equals) = (0, 0_u64);
    let mut before = view
        .queue
        .iter()
        .take_while(|waiting| waiting.ticket.rank <= rank);
    before.any(|waiting| {
        let more = u64::from(waiting.request.rows);
        rows += more;
        if effective_priority(&waiting.request) >= effective_priority(request) {
            equals += more;
        }
        rows > capacity && equals.saturating_mul(FAIRNESS_INTERVAL) >= capacity
    })
}

/// Returns the effective priority; 1 is the highest.
fn effective_priority(request: &Request) -> u32 {
    match u32::try_from(request.priority) {
        Ok(0) => DEFAULT_PRIORITY,
        Ok(priority) => priority.min(LOWEST_PRIORITY),
        Err(_) => LOWEST_PRIORITY,
    }
}

/// Returns the first request of the lowest priority if it leads the next batch: see [`FAIRNESS_INTERVAL`].
fn lowest_priority_leader(view: ModelView<'_>) -> Option<&QueuedRequest> {
    if !(view.pool.dispatched_batches() + 1).is_multiple_of(FAIRNESS_INTERVAL) {
        return None;
    }
    let first = view.queue.iter().next()?;
    let lowest = effective_priority(&view.queue.iter().next_back()?.request);
    let lowest_requests = view.queue.iter().rev().take(LOOK_AHEAD);
    let lowest_requests =
        lowest_requests.take_while(|waiting| effective_priority(&waiting.request) == lowest);
    lowest_requests
        .last()
        .filter(|_| lowest > effective_priority(&first.request))
}

/// Returns the time at which a replica would finish a batch of `rows` rows, or `None` if it does not take so many.
fn finish(view: ModelView<'_>, replica: &Replica, rows: u32) -> Option<Time> {
    (rows <= rows_limit(view, replica)).then(|| replica.forecast(view.now).finish(rows))
}

/// The replica that would finish a batch of one request first, remembered: it is the same for most requests of a queue.
#[derive(Default)]
struct FirstToFinish {
    /// The rows of the request, which no replica keeps, and the replica that it must not go to; `None` before the first question.
    asked: Option<(u32, Option<ReplicaKey>)>,
    found: Option<(Time, ReplicaKey)>,
}

impl FirstToFinish {
    /// Returns the first of these replicas and the time at which it would be done.
    fn of<'a, I: Iterator<Item = (ReplicaKey, &'a Replica)>>(
        &mut self,
        view: ModelView<'_>,
        request: &QueuedRequest,
        replicas: impl FnOnce() -> I,
    ) -> Option<(Time, ReplicaKey)> {
        let rows = request.request.rows;
        let asked = Some((rows, request.failed_on));
        if self.asked == asked {
            return self.found;
        }
        let able = |(key, replica)| {
            let finish = finish(view, replica, rows).filter(|_| view.may_go_to(request, key));
            finish.map(|finish| (finish, key))
        };
        (self.asked, self.found) = (asked, replicas().filter_map(able).min());
        self.found
    }
}

fn rows_limit(view: ModelView<'_>, replica: &Replica) -> u32 {
    replica.rows_limit().min(view.limits.max_batch_rows)
}

/// Returns the most rows of a batch with a request: fewer than the replica takes if it waits for its link.
fn batch_limit(view: ModelView<'_>, replica: &Replica, leader: &QueuedRequest) -> u32 {
    let limit = view.batch_limit(replica, leader);
    let bytes_per_row = leader.request.bytes_per_row().max(1);
    let rows = u32::try_from(LINK_BATCH / bytes_per_row).map_or(u32::MAX, |rows| rows.max(1));
    if rows < limit && replica.waits_for_link(view.now, rows) {
        rows
    } else {
        limit
    }
}

/// Returns the most rows that can go before the request without making it late, or at least as many as wait, rounded up generously:
/// every replica works at its best rate until the latest moment at which the request's batch must start, is then in the middle of
/// another batch of the largest size, and the request's own batch is as large. Of many replicas, they are not counted for every
/// request: see [`CountedCapacity`].
fn capacity_before_deadline(view: ModelView<'_>, request: &Request) -> u64 {
    let counted = view.pool.counted_capacity();
    if let Some(capacity) = counted.and_then(|counted| counted.at(view.now, request.deadline)) {
        return capacity;
    }
    let is_counted = view.pool.is_capacity_counted();
    let (mut capacity, mut rate) = (0_u64, 0.0);
    for (_, replica) in view.pool.serving() {
        let forecast = replica.forecast(view.now);
        let limit = rows_limit(view, replica);
        let last = forecast.finish(request.rows.min(limit));
        let slack = request.deadline.saturating_since(last).as_secs_f64();
        let more = (slack * forecast.best_rate()).ceil() as u64 + 2 * u64::from(limit);
        capacity = capacity.saturating_add(more);
        rate += forecast.best_rate();
        if !is_counted && capacity >= view.queue.rows() {
            return capacity;
        }
    }
    if is_counted {
        let counted = CountedCapacity::new(view.now, request.deadline, capacity, rate);
        view.pool.set_counted_capacity(counted);
    }
    capacity
}

/// Returns the time from which on a batch of `rows` rows should be sent for the replica not to wait for it: now, if it is idle.
fn nearly_free(view: ModelView<'_>, replica: &Replica, rows: u32) -> Time {
    let Some((free, overhead)) = replica.busy_until_and_overhead(view.now, rows) else {
        return view.now;
    };
    let compute = replica.forecast(view.now).compute(rows);
    let error = replica.known_margin(view.now).unwrap_or(compute);
    let part = error.clamp(compute / LEAST_LEAD, compute / MOST_LEAD);
    free.saturating_sub((overhead * LEAD_OVERHEAD).max(part))
}

/// Returns the time from which on a partial batch should be sent: when a busy replica is nearly free and, where an overloaded
/// model shares the device and nothing else waits, when no more than [`SPARE_FACTOR`] times the needed time is left.
fn hold_until(
    view: ModelView<'_>,
    replica: &Replica,
    first: &QueuedRequest,
    batch: CandidateBatch,
) -> Time {
    let until = nearly_free(view, replica, batch.rows);
    let Request {
        model, deadline, ..
    } = first.request;
    let takes_all = batch.requests == view.queue.len();
    if !takes_all
        || !view
            .overloaded
            .shares_device_with_overloaded(view.now, model, replica.device())
    {
        return until;
    }
    let needed = { replica.forecast(view.now) }
        .finish(batch.rows)
        .saturating_since(view.now);
    let spare = needed.saturating_mul(SPARE_FACTOR).max(MIN_SPARE_TIME);
    until.max(deadline.saturating_sub(spare).min(first.arrived + MAX_HOLD))
}

/// Returns true if another replica would finish a batch of `rows` rows by `due`.
fn in_time_elsewhere(view: ModelView<'_>, key: ReplicaKey, rows: u32, due: Time) -> bool {
    let mut others = view.pool.soonest().filter(|(other, _)| *other != key);
    others.any(|(_, replica)| finish(view, replica, rows).is_some_and(|finish| finish <= due))
}

/// Returns the first request behind a batch if it is due before those of the batch, and late if the batch goes first: one of a lower
/// priority, or of a tenant that has its fair share. It would keep the batch small, and every one after it.
fn hopeless_behind(
    view: ModelView<'_>,
    key: ReplicaKey,
    replica: &Replica,
    first: &QueuedRequest,
    batch: CandidateBatch,
) -> Option<Ticket> {
    let mut class = view
        .queue
        .requests_in_class(first.request.class, first.ticket);
    let next = class.nth(batch.requests)?;
    let Request { rows, deadline, .. } = next.request;
    let behind = replica.forecast(view.now).finish_behind(batch.rows, rows);
    let is_hopeless = deadline < first.request.deadline
        && behind > deadline
        && !in_time_elsewhere(view, key, rows, deadline);
    is_hopeless.then_some(next.ticket)
}

/// A possible batch that starts at some request in the queue.
#[derive(Clone, Copy)]
struct Window<'a> {
    first: &'a QueuedRequest,
    rows: u32,
}

/// Returns the best window behind the leader if the leader's batch of `rows` rows would make it late: see the module's
/// documentation.
fn better_window<'a>(
    view: ModelView<'a>,
    replica: &Replica,
    leader: &QueuedRequest,
    rows: u32,
) -> Option<Window<'a>> {
    if rows >= batch_limit(view, replica, leader) {
        return None;
    }
    let forecast = replica.forecast(view.now);
    let window = best_window(view, replica, leader, forecast.rate(rows))?;
    let behind = forecast.finish_behind(rows, window.rows);
    (behind > window.first.request.deadline).then_some(window)
}

/// Returns the window behind the leader that gets most done, of those that would be in time if the replica took them now and that
/// get more than `rate` rows per second done. For each number of rows it examines the first requests that are due late enough, of
/// those with the leader's priority: they stand in the order of their deadlines.
fn best_window<'a>(
    view: ModelView<'a>,
    replica: &Replica,
    leader: &QueuedRequest,
    rate: f64,
) -> Option<Window<'a>> {
    let forecast = replica.forecast(view.now);
    let limit = batch_limit(view, replica, leader);
    let class = leader.request.class;
    // The time by which the leader's rank, and that of its equals, lies behind its deadline.
    let shift = leader
        .ticket
        .rank
        .saturating_sub(leader.request.deadline.as_nanos());
    let waiting = view
        .queue
        .count_in_class(class, leader.ticket, limit as usize);
    let sizes = replica.sizes_by_rate().iter().copied();
    for rows in sizes.filter(|rows| *rows as usize <= waiting && *rows <= limit) {
        if forecast.rate(rows) <= rate {
            break;
        }
        let finish = forecast.finish(rows);
        let from = leader.ticket.max(Ticket {
            rank: finish.as_nanos().saturating_add(shift),
            arrival: 0,
        });
        let starts = view.queue.requests_in_class(class, from);
        let mut starts = starts.take(WINDOW_STARTS);
        let fits = |first: &&QueuedRequest| {
            let Request {
                rows: own,
                deadline,
                ..
            } = first.request;
            own <= rows && finish <= deadline
        };
        if let Some(first) = starts.find(fits)
            && view
                .queue
                .count_in_class(class, first.ticket, rows as usize)
                >= rows as usize
        {
            return Some(Window { first, rows });
        }
    }
    None
}

//! `deadline`: earliest deadline first, late binding, early drop.
//!
//! - **Order.** Requests stand by deadline, shifted by priority. The first that a replica with a free credit can answer in time
//!   leads a batch, and those of its shape class behind it join as long as the batch fits the replica and, by the estimate, still
//!   meets the earliest deadline in it.
//! - **Drop.** A leader that no replica can answer in time any more is dropped, and said so.
//! - **Look ahead.** Once requests wait until they are nearly due, serving the earliest one first makes every batch as small as
//!   its leader's deadline, and a replica that gets less done with small batches never recovers. So a replica takes another
//!   batch than the leader's if a window of those behind it gets more rows per second done there, and would not be in time behind the
//!   leader's. The leader waits for another replica that can still answer it; where there is none, it is dropped, unless
//!   another one can answer the window. That way each of several replicas has the batches that it is best at: one that is slow
//!   those that have time left, one that is fast those that are nearly due.
//! - **Holding.** An idle replica takes work at once. A busy one is sent a partial batch when it is nearly free, not when it has a
//!   credit: until then the batch could not start, and may grow. Where another model is short on the same device (it drops
//!   requests, or leaves as many waiting as it serves), even an idle replica waits for a partial batch to grow as long as its
//!   deadline lets it, a quarter of a second at most: the device's time that a small batch wastes is what the other model lacks.
//!
//! Estimates are the profile's times corrected by what the replica was observed to need, and, of a busy replica, with a margin for
//! how far they were wrong: a batch that is late has only cost time.
//!
//! Source: earliest deadline first, Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time
//! Environment", 1973, section 7; early drop as in Nexus (Shen et al., SOSP 2019, section 6.3), whose window has the planned
//! batch size, while ours has whatever size gets most done: a planned size that takes most of the objective is never in time
//! once requests wait.

use std::time::Duration;

use packhorse_cluster::Time;

use super::{Batch, Decision, Discipline, View};
use crate::{Refusal, ReplicaKey, Request, fleet::Replica, queue::Waiting};

/// Priority 0, which says nothing, counts as this.
const DEFAULT_PRIORITY: u32 = 3;

/// Priorities beyond this one count as this one.
const LOWEST_PRIORITY: u32 = 8;

/// A step in priority is worth this much of a deadline. Among requests with usual objectives the priority decides; but a request
/// that has waited longer than that goes before a fresh one of the next higher priority, so that none starves.
const PRIORITY_STEP: Duration = Duration::from_secs(1);

/// Of so many batches of a model one is led by the lowest priority that waits: a flood of a higher priority would otherwise
/// starve requests that are due sooner than after a step.
const FAIR_TURN: u64 = 16;

/// How many requests are looked at for one that a free replica can answer in time, while those before it are only in time for
/// a replica that is busy. Bounds a decision.
const LOOK_AHEAD: usize = 64;

/// The second credit hides what a batch needs besides computing. It is used this many times that before the replica is free …
const LEAD_OVERHEAD: u32 = 2;

/// … and no later than this part of the batch's own time: estimates err, and an idle replica costs more than a fuller batch gains.
const LEAD_COMPUTE: u32 = 4;

/// Which parts of `deadline` are in use: all of them, but for an ablation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineOptions {
    /// Whether requests are refused or dropped that cannot be in time. If not, they are served late, and nobody looks ahead.
    pub drop: bool,
    /// Whether a request is dropped whose deadline keeps batches small for those behind it.
    pub look_ahead: bool,
    /// Whether partial batches are held for a busy replica.
    pub holding: bool,
}

impl Default for DeadlineOptions {
    fn default() -> Self {
        Self {
            drop: true,
            look_ahead: true,
            holding: true,
        }
    }
}

/// Beside a model that is short, a partial batch is held while so many times the time is left that it needs.
const SPARE: u32 = 2;

/// … and at least this much, however little it needs: clocks and schedulers have their own.
const LEAST_SPARE: Duration = Duration::from_millis(10);

/// And it is held no longer than this: a request that has seconds shall not take seconds because a neighbour is short.
const HELD_AT_MOST: Duration = Duration::from_millis(250);

/// How many replicas with a free credit are compared, beginning with the one that is done first. Bounds a decision.
const CANDIDATES: usize = 16;

#[derive(Debug)]
pub(super) struct Deadline {
    pub(super) options: DeadlineOptions,
}

impl Discipline for Deadline {
    fn rank(&self, request: &Request) -> u64 {
        (request.deadline + PRIORITY_STEP * level(request)).as_nanos()
    }

    /// Refuses what cannot be answered in time however well things go: not even if it were dispatched next, or if every replica
    /// worked at its best rate on what stands before it. What is admitted and turns out too late is dropped later.
    fn admit(&self, view: View<'_>, request: &Request) -> Result<(), Refusal> {
        let in_time = |replica: &Replica| {
            request.rows <= rows_limit(view, replica)
                && (!self.options.drop
                    || replica.forecast(view.now).finish(request.rows) <= request.deadline)
        };
        let alone = view.fleet.serving().any(|(_, replica)| in_time(replica));
        if alone && !(self.options.drop && self.is_crowded_out(view, request)) {
            Ok(())
        } else {
            Err(Refusal::Hopeless)
        }
    }

    fn decide(&self, view: View<'_>) -> Decision {
        let Some((due, first)) = view.queue.first_due() else {
            return Decision::Wait(None);
        };
        let drop = self.options.drop || view.fleet.serving().next().is_none();
        if drop && due <= view.now {
            return Decision::Expire(first);
        }
        let due = drop.then_some(due);
        if view.fleet.open().next().is_none() {
            return Decision::Wait(due);
        }
        let leaders = fair_leader(view).into_iter().chain(view.queue.iter());
        for leader in leaders.take(LOOK_AHEAD) {
            let in_time = |finish: Time| !drop || finish <= leader.request.deadline;
            if let Some((key, finish)) = earliest(view, leader.request.rows)
                && in_time(finish)
            {
                return self.lead(view, key, leader, due);
            }
            let hopes = |(_, replica): (ReplicaKey, &Replica)| {
                finish(view, replica, leader.request.rows).is_some_and(in_time)
            };
            if !view.fleet.serving().any(hopes) {
                return Decision::Expire(leader.ticket);
            }
        }
        Decision::Wait(due)
    }
}

impl Deadline {
    /// What to do with a request that a replica can answer in time.
    fn lead(
        &self,
        view: View<'_>,
        key: ReplicaKey,
        leader: &Waiting,
        due: Option<Time>,
    ) -> Decision {
        let replica = view.fleet.get(key).expect("chosen from this fleet");
        let (mut first, mut batch) = (leader, self.batch(view, replica, leader));
        // Of several shape classes, or of more than the deadlines allow, a part stays behind.
        let whole = batch.requests == view.queue.len();
        let look_ahead = self.options.drop && self.options.look_ahead;
        if look_ahead
            && !whole
            && let Some(window) = spoilt_window(view, replica, leader, batch.rows)
        {
            let Request { rows, deadline, .. } = leader.request;
            if in_time_elsewhere(view, key, rows, deadline) {
                (first, batch) = (window.first, self.batch(view, replica, window.first));
            } else if !in_time_elsewhere(view, key, window.rows, window.first.request.deadline) {
                return Decision::Expire(leader.ticket);
            }
        }
        if self.options.holding && !batch.full {
            let until = hold_until(view, replica, first, batch);
            if until > view.now {
                return Decision::Wait(Some(due.map_or(until, |due| due.min(until))));
            }
        }
        view.dispatch(key, first, batch)
    }

    /// The leader, and those of its class behind it that are in time together. One that is late anyway, where nothing is dropped,
    /// sets no limit.
    fn batch(&self, view: View<'_>, replica: &Replica, leader: &Waiting) -> Batch {
        let forecast = replica.forecast(view.now);
        let bound = |waiting: &Waiting| {
            let due = waiting.request.deadline;
            let late = !self.options.drop && forecast.finish(waiting.request.rows) > due;
            if late { Time::MAX } else { due }
        };
        let mut due = bound(leader);
        view.batch(leader, view.batch_limit(replica), |waiting, rows| {
            due = due.min(bound(waiting));
            forecast.finish(rows) <= due
        })
    }

    /// Whether more rows stand before the request than can go before it. Counts no further than to what settles the matter.
    fn is_crowded_out(&self, view: View<'_>, request: &Request) -> bool {
        let mut room = 0_u64;
        let roomy = |more| {
            room = room.saturating_add(more);
            room >= view.queue.rows()
        };
        if view.queue.rows() == 0 || rows_in_time(view, request).any(roomy) {
            return false;
        }
        let rank = self.rank(request);
        let (mut all, peer) = (view.queue.iter(), |waiting: &Waiting| {
            waiting.ticket.rank <= rank && level(&waiting.request) == level(request)
        });
        if all.next().is_some_and(peer) && all.next_back().is_none_or(peer) {
            return view.queue.rows() > room;
        }
        // Its turns are its priority's own.
        let (mut rows, mut equals) = (0, 0_u64);
        let mut before = view
            .queue
            .iter()
            .take_while(|waiting| waiting.ticket.rank <= rank);
        before.any(|waiting| {
            let more = u64::from(waiting.request.rows);
            rows += more;
            if level(&waiting.request) >= level(request) {
                equals += more;
            }
            rows > room && equals.saturating_mul(FAIR_TURN) >= room
        })
    }
}

/// The priority that counts: 1 is the highest.
fn level(request: &Request) -> u32 {
    match u32::try_from(request.priority) {
        Ok(0) => DEFAULT_PRIORITY,
        Ok(priority) => priority.min(LOWEST_PRIORITY),
        Err(_) => LOWEST_PRIORITY,
    }
}

/// Whose turn it is, if it is not that of the first in order: see [`FAIR_TURN`].
fn fair_leader(view: View<'_>) -> Option<&Waiting> {
    if !(view.fleet.batches() + 1).is_multiple_of(FAIR_TURN) {
        return None;
    }
    let first = view.queue.iter().next()?;
    let lowest = level(&view.queue.iter().next_back()?.request);
    let of_lowest = view.queue.iter().rev().take(LOOK_AHEAD);
    let of_lowest = of_lowest.take_while(|waiting| level(&waiting.request) == lowest);
    of_lowest.last().filter(|_| lowest > level(&first.request))
}

/// When a replica would be done with a batch of `rows` rows, if it takes so many.
fn finish(view: View<'_>, replica: &Replica, rows: u32) -> Option<Time> {
    (rows <= rows_limit(view, replica)).then(|| replica.forecast(view.now).finish(rows))
}

/// The replica, of those with a free credit, that would finish a batch of `rows` rows first, and when.
fn earliest(view: View<'_>, rows: u32) -> Option<(ReplicaKey, Time)> {
    let able = |(key, replica)| Some((key, finish(view, replica, rows)?));
    let candidates = view.fleet.open().filter_map(able).take(CANDIDATES);
    candidates.min_by_key(|&(key, finish)| (finish, key))
}

fn rows_limit(view: View<'_>, replica: &Replica) -> u32 {
    replica.rows_limit().min(view.limits.max_batch_rows)
}

/// The most rows that can go before the request without making it late, rounded up generously: every replica works at its best
/// rate until the latest moment at which the request's batch must start, is then in the middle of another batch as large as
/// there can be, and so is the request's own. One number per replica.
fn rows_in_time<'a>(view: View<'a>, request: &'a Request) -> impl Iterator<Item = u64> + 'a {
    view.fleet.serving().map(move |(_, replica)| {
        let forecast = replica.forecast(view.now);
        let limit = rows_limit(view, replica);
        let last = forecast.finish(request.rows.min(limit));
        let slack = request.deadline.saturating_since(last).as_secs_f64();
        (slack * forecast.best_rate()).ceil() as u64 + 2 * u64::from(limit)
    })
}

/// The moment from which a partial batch should be on its way: when a busy replica is nearly free and, beside a model that is
/// short, if nothing else waits, when no more than the [`SPARE`] time is left.
fn hold_until(view: View<'_>, replica: &Replica, first: &Waiting, batch: Batch) -> Time {
    let forecast = replica.forecast(view.now);
    let until = match replica.occupied(view.now, batch.rows) {
        Some((free, overhead)) => {
            let part = forecast.compute(batch.rows) / LEAD_COMPUTE;
            earlier(free, (overhead * LEAD_OVERHEAD).max(part))
        }
        None => view.now,
    };
    let Request {
        model, deadline, ..
    } = first.request;
    let whole = batch.requests == view.queue.len();
    if !whole || !view.shortages.beside(view.now, model, replica.device()) {
        return until;
    }
    let needed = forecast.finish(batch.rows).saturating_since(view.now);
    let spare = needed.saturating_mul(SPARE).max(LEAST_SPARE);
    until.max(earlier(deadline, spare).min(first.arrived + HELD_AT_MOST))
}

fn earlier(time: Time, by: Duration) -> Time {
    Time::ZERO + time.saturating_since(Time::ZERO + by)
}

/// Whether another replica would have a batch of `rows` rows done in time.
fn in_time_elsewhere(view: View<'_>, key: ReplicaKey, rows: u32, due: Time) -> bool {
    let mut others = view.fleet.serving().filter(|(other, _)| *other != key);
    others.any(|(_, replica)| finish(view, replica, rows).is_some_and(|finish| finish <= due))
}

/// A batch of requests from some place in the queue on.
#[derive(Clone, Copy)]
struct Window<'a> {
    first: &'a Waiting,
    rows: u32,
}

/// The best window behind the leader, if a batch of the leader's, of `rows` rows, would make it late: see the module.
fn spoilt_window<'a>(
    view: View<'a>,
    replica: &Replica,
    leader: &Waiting,
    rows: u32,
) -> Option<Window<'a>> {
    if rows >= view.batch_limit(replica) {
        return None;
    }
    let forecast = replica.forecast(view.now);
    let window = best_window(view, replica, leader, forecast.rate(rows))?;
    let behind = forecast.finish_behind(rows, window.rows);
    (behind > window.first.request.deadline).then_some(window)
}

/// Of the windows behind the leader that would be in time if the replica took them now, and get more than `rate` rows per
/// second done, the one that gets most done.
fn best_window<'a>(
    view: View<'a>,
    replica: &Replica,
    leader: &Waiting,
    rate: f64,
) -> Option<Window<'a>> {
    let forecast = replica.forecast(view.now);
    let limit = view.batch_limit(replica);
    let mut left = view.queue.rows_of(leader.request.class);
    let (mut best, mut rows) = ((rate, None), 1);
    for first in view.queue.of_class(leader.request.class, leader.ticket) {
        let most = u32::try_from(left).map_or(limit, |left| left.min(limit));
        if most < rows {
            break;
        }
        let due = first.request.deadline;
        while rows < most && forecast.finish(rows + 1) <= due {
            rows += 1;
        }
        let fits = rows >= first.request.rows && forecast.finish(rows) <= due;
        if fits && forecast.rate(rows) > best.0 {
            best = (forecast.rate(rows), Some(Window { first, rows }));
        }
        // Nothing behind can be larger.
        if rows == limit {
            break;
        }
        left -= u64::from(first.request.rows);
    }
    best.1
}

//! The batch of a model that a pool's device could compute next, and how it compares with those of other models.
//!
//! - **Batch.** The requests from a leader on that are in time together. Where the first one is nearly due and would keep the batch small, a later
//!   leader may get more done; those before it are left to other devices, or to the next batch.
//! - **Comparison.** Batches that would be late behind another one go first, and among them those of the models of the highest priority, and the one with
//!   the most rows per second of the device's time: where not all can be in time, that is what counts. If none is urgent, the batch goes first that
//!   comes nearest to the model's best rate: it would gain least by waiting.
//! - **Giving way.** A batch is not computed before those of models of a higher priority if one of them would be late behind it, urgent or not: all that waits
//!   for these models is computed one after the other, as if more were waiting than is.

use std::{cmp::Ordering, time::Duration};

use packhorse_cluster::{Priority, Time};

use super::{
    decision::Decision,
    model_view::{CandidateBatch, ModelView},
};
use crate::{
    ReplicaKey,
    device_pool::Room,
    queue::{QueuedRequest, Ticket},
    replica::{Forecast, Replica},
    waiting_members::{NextBatch, WaitingWork},
};

/// The time that an urgent batch has left at most: about as long as a batch of another model takes. With thirty models on four to six devices 15 to
/// 25 ms gave the same goodput within half a point, and 10 ms less.
const URGENT: Duration = Duration::from_millis(20);

/// The most requests that are examined for one that leads a batch. Bounds a decision.
const LOOK_AHEAD: usize = 64;

/// The most leaders whose batches are compared. Bounds a decision.
const LEADERS: usize = 8;

/// The shortest time that counts as the age of a batch, whose requests come at the rate of their number over its age.
const SHORTEST_AGE: Duration = Duration::from_micros(100);

/// The next thing that a device can do for a model.
#[derive(Debug)]
pub(crate) enum PooledChoice {
    /// Nothing.
    None,
    /// It can compute a batch.
    Batch(PooledBatch),
    /// A request cannot be answered in time any more, on no device.
    Hopeless(Ticket),
}

/// A batch that a device could compute next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PooledBatch {
    first: Ticket,
    batch: CandidateBatch,
    /// The time at which it should be sent, to be there when the device has room.
    pub(crate) send_at: Time,
    /// The same, if it grows until then as it has grown so far.
    pub(crate) send_grown_at: Time,
    pub(crate) priority: Priority,
    is_urgent: bool,
    /// The time at which it would be back, if it were sent now.
    pub(crate) end: Time,
    /// The part of the multiprocessors that it uses.
    utilization: f64,
    /// The time that is left when it is computed.
    slack: Duration,
    /// The rows per second of the device's time, with that in which the device would wait for the batch.
    rate: f64,
    /// The rate over the best rate of the model.
    efficiency: f64,
}

impl PooledBatch {
    /// Returns true if this batch goes before another one of the same device.
    pub(crate) fn goes_before(&self, other: &Self) -> bool {
        let merit = |batch: &Self| {
            if batch.is_urgent {
                batch.rate
            } else {
                batch.efficiency
            }
        };
        let by_urgency = self.is_urgent.cmp(&other.is_urgent);
        let by_urgency = if self.is_urgent {
            by_urgency.then(self.priority.cmp(&other.priority))
        } else {
            by_urgency
        };
        let by_merit = by_urgency.then(merit(self).total_cmp(&merit(other)));
        by_merit.then(other.slack.cmp(&self.slack)) == Ordering::Greater
    }

    /// Returns true if it begins no later where another one is computed first, for the device has room for both.
    pub(crate) fn fits_beside(&self, other: &Self, room: &Room) -> bool {
        let beside = room.beside(other.end, other.utilization);
        beside.from(self.utilization) <= room.from(self.utilization)
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Returns the decision to send it.
    pub(crate) fn dispatch(&self, view: ModelView<'_>, replica: ReplicaKey) -> Decision {
        let first = view.queue.get(self.first).expect("chosen from this queue");
        view.dispatch(replica, first, self.batch)
    }
}

/// Returns what is expected of the next batch of a replica, if as many of these rows as it takes are one, and the earliest deadline is `due`.
pub(crate) fn estimate_next(now: Time, replica: &Replica, due: Time, rows: u64) -> NextBatch {
    let most = replica.batch_size().min(replica.rows_limit());
    let rows = u32::try_from(rows).map_or(most, |rows| rows.clamp(1, most));
    let forecast = replica.expectation(now);
    let rate = forecast.rate(rows);
    NextBatch {
        urgent_at: due.saturating_sub(forecast.compute(rows) + URGENT),
        rate,
        efficiency: rate / forecast.best_rate(),
    }
}

/// Returns what is expected of all rows that wait for a model with so many replicas, of which this is one, and of those that come while another batch is
/// computed. The earliest deadline is `due`.
pub(crate) fn estimate_work(
    now: Time,
    replica: &Replica,
    due: Time,
    rows: u64,
    replicas: usize,
) -> WaitingWork {
    // An estimate stays until the rows have another magnitude.
    let rows = rows
        .checked_ilog2()
        .map_or(0, |order| u64::MAX >> (62_u32.saturating_sub(order)));
    let most = replica.batch_size().min(replica.rows_limit());
    let first = u32::try_from(rows).map_or(most, |rows| rows.clamp(1, most));
    let forecast = replica.expectation(now);
    let rate = forecast.best_rate() * replicas.max(1) as f64;
    let behind = rows.saturating_sub(first.into()) as f64 / rate;
    let behind = Duration::try_from_secs_f64(behind).unwrap_or(Duration::MAX);
    let time = forecast.compute(first).saturating_add(behind);
    WaitingWork {
        start_by: due.saturating_sub(time.saturating_add(replica.margin(now))),
        time,
    }
}

/// Returns what a device with this room can do for a model whose weights it has.
pub(crate) fn choose(
    view: ModelView<'_>,
    key: ReplicaKey,
    replica: &Replica,
    room: &Room,
) -> PooledChoice {
    let Some(member) = replica.pool_member() else {
        return PooledChoice::None;
    };
    let on_device = OnDevice {
        now: view.now,
        room,
        utilization: &|rows| member.utilization(rows),
        forecast: replica.expectation(view.now),
        margin: replica.margin(view.now),
        priority: view.priority,
    };
    let most_rows = replica.rows_limit().min(view.limits.max_batch_rows);
    let mut best: Option<PooledBatch> = None;
    let mut leaders = 0;
    for leader in view.queue.iter().take(LOOK_AHEAD) {
        let (rows, due) = (leader.request.rows, leader.request.deadline);
        if rows > most_rows || !view.may_go_to(leader, key) {
            continue;
        }
        if on_device.finish(rows) > due {
            if is_hopeless(view, leader) {
                return PooledChoice::Hopeless(leader.ticket);
            }
            continue;
        }
        let limit = view.batch_limit(replica, leader);
        let mut earliest = due;
        let batch = view.batch(leader, limit, |waiting, rows| {
            earliest = earliest.min(waiting.request.deadline);
            on_device.finish(rows) <= earliest
        });
        leaders += 1;
        let rate = on_device.rate(batch.rows);
        if best.is_none_or(|best| rate > best.rate) {
            best = Some(on_device.batch(leader, batch, limit, earliest));
        }
        let takes_rest = batch.requests + leaders > view.queue.len();
        if batch.full || takes_rest || leaders == LEADERS {
            break;
        }
    }
    best.map_or(PooledChoice::None, PooledChoice::Batch)
}

/// The times of a model's batches on a device.
struct OnDevice<'a> {
    now: Time,
    room: &'a Room,
    utilization: &'a dyn Fn(u32) -> f64,
    forecast: Forecast<'a>,
    margin: Duration,
    priority: Priority,
}

impl OnDevice<'_> {
    /// Returns the time from which on the device has room for a batch.
    fn free(&self, rows: u32) -> Time {
        self.room.from((self.utilization)(rows))
    }

    /// Returns the time at which a batch that is sent now would be back. If the device has to become free first, that is uncertain.
    fn finish(&self, rows: u32) -> Time {
        let free = self.free(rows);
        let margin = if free > self.now {
            self.margin
        } else {
            Duration::ZERO
        };
        self.forecast.finish_after(free + margin, rows)
    }

    /// Returns the rows of a batch per second of the device's time, with that in which the device would wait for it.
    fn rate(&self, rows: u32) -> f64 {
        let there = self.now + self.forecast.overhead(rows);
        let wait = there.saturating_since(self.free(rows));
        f64::from(rows) / (wait + self.forecast.compute(rows)).as_secs_f64()
    }

    /// Returns the batch, whose earliest deadline is `due`.
    fn batch(
        &self,
        leader: &QueuedRequest,
        batch: CandidateBatch,
        limit: u32,
        due: Time,
    ) -> PooledBatch {
        let rows = batch.rows;
        let utilization = (self.utilization)(rows);
        let free = self.room.from(utilization);
        let rate = self.rate(rows);
        let end = self.finish(rows);
        let slack = due.saturating_since(end);
        let sent_with = |rows| free.saturating_sub(self.forecast.overhead(rows));
        let age = self.now.saturating_since(leader.arrived).max(SHORTEST_AGE);
        let left = free.saturating_since(self.now);
        let growth = f64::from(rows) * left.as_secs_f64() / age.as_secs_f64();
        // A growth that is too large for a number of rows is too large for the limit.
        let grown = rows.saturating_add(growth.ceil() as u32).min(limit);
        let grown = if batch.full { rows } else { grown.max(rows) };
        PooledBatch {
            first: leader.ticket,
            batch,
            send_at: sent_with(rows),
            send_grown_at: sent_with(grown),
            priority: self.priority,
            is_urgent: slack < URGENT,
            end,
            utilization,
            slack,
            rate,
            efficiency: rate / self.forecast.best_rate(),
        }
    }
}

/// Returns true if no replica can answer a request in time, even if it were idle.
fn is_hopeless(view: ModelView<'_>, waiting: &QueuedRequest) -> bool {
    let (rows, due) = (waiting.request.rows, waiting.request.deadline);
    let able = |replica: &Replica| {
        let forecast = replica.expectation(view.now);
        rows <= replica.rows_limit() && forecast.finish_after(view.now, rows) <= due
    };
    !view.pool.soonest().any(|(_, replica)| able(replica))
}

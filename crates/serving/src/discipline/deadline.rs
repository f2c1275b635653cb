//! `deadline`: earliest deadline first, late binding, early drop.
//!
//! Work-conserving: a free credit takes work at once. Requests stand by deadline, shifted by priority; the first that a replica
//! with a free credit can answer in time leads a batch, and those of its shape class behind it join as long as the batch fits
//! the replica and, by the estimate, still meets the earliest deadline in it. A leader that no replica can answer in time any
//! more is dropped, and said so; so is one whose batch would make more requests late behind it than it answers. Estimates are the profile's times corrected by what the replica was observed to need.
//!
//! Source: earliest deadline first, Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time
//! Environment", 1973, section 7; early drop as in Nexus (Shen et al., SOSP 2019, section 6.3).

use std::time::Duration;

use packhorse_cluster::Time;

use super::{Decision, Discipline, View};
use crate::{
    Refusal, ReplicaKey, Request,
    fleet::Replica,
    queue::{Ticket, Waiting},
};

/// Priority 0, which says nothing, counts as this.
const DEFAULT_PRIORITY: u64 = 3;

/// Priorities beyond this one count as this one.
const LOWEST_PRIORITY: u64 = 8;

/// A step in priority is worth this much of a deadline. Among requests with usual objectives the priority decides; but a request
/// that has waited longer than that goes before a fresh one of the next higher priority, so that none starves.
const PRIORITY_STEP: Duration = Duration::from_secs(1);

/// How many requests are looked at for one that a free replica can answer in time, while those before it are only in time for
/// a replica that is busy. Bounds a decision.
const LOOK_AHEAD: usize = 64;

#[derive(Debug)]
pub(super) struct Deadline;

impl Discipline for Deadline {
    fn rank(&self, request: &Request) -> u64 {
        let level = if request.priority == 0 {
            DEFAULT_PRIORITY
        } else {
            request.priority.min(LOWEST_PRIORITY)
        };
        let steps = u32::try_from(level).expect("at most the lowest priority");
        (request.deadline + PRIORITY_STEP * steps).as_nanos()
    }

    /// Refuses what cannot be answered in time however well things go: not even if it were dispatched next, or if every replica
    /// worked at its best rate on what stands before it. What is admitted and turns out too late is dropped later.
    fn admit(&self, view: View<'_>, request: &Request) -> Result<(), Refusal> {
        let in_time = |replica: &Replica| {
            request.rows <= rows_limit(view, replica)
                && replica.forecast(view.now).finish(request.rows) <= request.deadline
        };
        let alone = view.fleet.serving().any(|(_, replica)| in_time(replica));
        if alone && !self.is_crowded_out(view, request) {
            Ok(())
        } else {
            Err(Refusal::Hopeless)
        }
    }

    fn decide(&self, view: View<'_>) -> Decision {
        let Some((due, first)) = view.queue.first_due() else {
            return Decision::Wait(None);
        };
        if due <= view.now {
            return Decision::Expire(first);
        }
        if view
            .fleet
            .serving()
            .any(|(_, replica)| replica.has_credit())
        {
            for leader in view.queue.iter().take(LOOK_AHEAD) {
                let in_time = |best: Option<(ReplicaKey, Time)>| {
                    best.filter(|best| best.1 <= leader.request.deadline)
                };
                if let Some((replica, _)) =
                    in_time(earliest(view, leader.request.rows, Replica::has_credit))
                {
                    let tickets = batch(view, replica, leader);
                    if spoils_those_behind(view, replica, leader, &tickets) {
                        return Decision::Expire(leader.ticket);
                    }
                    return Decision::Dispatch { replica, tickets };
                }
                if in_time(earliest(view, leader.request.rows, |_| true)).is_none() {
                    return Decision::Expire(leader.ticket);
                }
            }
        }
        Decision::Wait(Some(due))
    }
}

impl Deadline {
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
        let mut rows = 0;
        let mut before = view
            .queue
            .iter()
            .take_while(|waiting| waiting.ticket.rank <= rank);
        before.any(|waiting| {
            rows += u64::from(waiting.request.rows);
            rows > room
        })
    }
}

/// The replica, of those that `may` take it, that would finish a batch of `rows` rows first, and when.
fn earliest(
    view: View<'_>,
    rows: u32,
    may: impl Fn(&Replica) -> bool,
) -> Option<(ReplicaKey, Time)> {
    view.fleet
        .serving()
        .filter(|(_, replica)| rows <= rows_limit(view, replica) && may(replica))
        .map(|(key, replica)| (key, replica.forecast(view.now).finish(rows)))
        .min_by_key(|&(key, finish)| (finish, key))
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

/// Whether a batch that its leader's deadline keeps small would make more requests late than it answers: those behind it, as
/// many as one batch takes, are in time together if the replica takes them now, but not behind this batch, nor elsewhere.
///
/// Source: the early drop of Nexus (Shen et al., SOSP 2019, section 6.3), which looks at a window of one batch; we drop only
/// where that saves more than it costs.
fn spoils_those_behind(
    view: View<'_>,
    key: ReplicaKey,
    leader: &Waiting,
    tickets: &[Ticket],
) -> bool {
    if view.queue.len() < 2 * tickets.len() {
        return false;
    }
    let replica = view.fleet.get(key).expect("chosen from this fleet");
    let limit = replica.batch_size().min(view.limits.max_batch_rows);
    let (mut before, mut behind, mut due) = (0, 0, Time::MAX);
    let of_class = view.queue.of_class(leader.request.class, leader.ticket);
    for (place, waiting) in of_class.enumerate() {
        if place < tickets.len() {
            before += waiting.request.rows;
            continue;
        }
        if behind + waiting.request.rows > limit {
            break;
        }
        behind += waiting.request.rows;
        due = due.min(waiting.request.deadline);
    }
    if before >= limit || behind <= before {
        return false;
    }
    let forecast = replica.forecast(view.now);
    let elsewhere = || {
        let mut others = view.fleet.serving().filter(|(other, replica)| {
            *other != key && behind <= replica.batch_size().min(view.limits.max_batch_rows)
        });
        others.any(|(_, other)| other.forecast(view.now).finish(behind) <= due)
    };
    forecast.finish(behind) <= due && forecast.finish_behind(before, behind) > due && !elsewhere()
}

/// The leader, and those of its class behind it: as many as may share a batch and are in time together.
fn batch(view: View<'_>, replica: ReplicaKey, leader: &Waiting) -> Vec<Ticket> {
    let replica = view.fleet.get(replica).expect("chosen from this fleet");
    let forecast = replica.forecast(view.now);
    let limit = replica.batch_size().min(view.limits.max_batch_rows);
    let mut tickets = vec![leader.ticket];
    let (mut rows, mut due) = (leader.request.rows, leader.request.deadline);
    for waiting in view
        .queue
        .of_class(leader.request.class, leader.ticket)
        .skip(1)
    {
        let more = rows.saturating_add(waiting.request.rows);
        due = due.min(waiting.request.deadline);
        if more > limit || forecast.finish(more) > due {
            break;
        }
        rows = more;
        tickets.push(waiting.ticket);
    }
    tickets
}

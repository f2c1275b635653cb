//! The members of a pool that have waiting requests, in the orders in which their device considers them.
//!
//! A device looks at a few members at a time, however many wait: those first that its discipline would choose. The orders are of estimates, which are made
//! when a member's queue changes much, and which the device checks when it looks.
//!
//! Members of a higher priority go first where something is urgent. Those that others give way to, because something of a lower priority waits or may wait,
//! stand also in the order of the times by which they must begin. A pool whose members have one priority keeps no such order.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{Priority, Time};
use rustc_hash::FxHashMap;

use crate::ReplicaKey;

/// The estimate of the next batch of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NextBatch {
    /// The time from which on it is urgent, if it begins then.
    pub(crate) urgent_at: Time,
    /// The rows per second of the device's time.
    pub(crate) rate: f64,
    /// The rate over the best rate of the model.
    pub(crate) efficiency: f64,
}

impl NextBatch {
    /// Returns true if its member was put behind all others, whose efficiencies are greater.
    fn is_last(&self) -> bool {
        self.efficiency < f64::MIN_POSITIVE
    }
}

/// The estimate of all that waits for a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WaitingWork {
    /// The latest time at which it can begin for all of it to be in time.
    pub(crate) start_by: Time,
    /// The time to compute it.
    pub(crate) time: Duration,
}

/// A positive number as a key: the greatest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Descending(Reverse<u64>);

impl From<f64> for Descending {
    fn from(number: f64) -> Self {
        // The bits of positive numbers have the order of the numbers.
        Self(Reverse(number.max(0.0).to_bits()))
    }
}

/// A member with waiting requests.
#[derive(Clone, Copy, Debug)]
struct WaitingMember {
    next: NextBatch,
    priority: Priority,
    /// The estimate of all that waits, if others may have to give way to it.
    work: Option<WaitingWork>,
    /// True if its next batch has become urgent.
    is_urgent: bool,
}

/// The members with waiting requests.
#[derive(Debug, Default)]
pub(crate) struct WaitingMembers {
    /// Nothing iterates over them.
    all: FxHashMap<ReplicaKey, WaitingMember>,
    urgent: BTreeSet<(Reverse<Priority>, Descending, ReplicaKey)>,
    by_efficiency: BTreeSet<(Descending, ReplicaKey)>,
    by_urgency: BTreeSet<(Time, ReplicaKey)>,
    /// The lowest priority of the pool's members.
    lowest: Option<Priority>,
    /// The members above that priority, by the time by which they must begin.
    by_start: BTreeMap<Reverse<Priority>, BTreeSet<(Time, ReplicaKey)>>,
    /// The number of times that members were put behind all others.
    put_last: u64,
}

impl WaitingMembers {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn contains(&self, replica: ReplicaKey) -> bool {
        self.all.contains_key(&replica)
    }

    /// Returns true if a member waits that was not put behind all others.
    pub(crate) fn contains_hopeful(&self, replica: ReplicaKey) -> bool {
        self.all
            .get(&replica)
            .is_some_and(|waiting| !waiting.next.is_last())
    }

    /// Returns true if others may have to give way to members of this priority: if there are members of a lower one.
    pub(crate) fn may_go_before(&self, priority: Priority) -> bool {
        self.lowest.is_some_and(|lowest| lowest < priority)
    }

    /// Adds a member, or replaces what is estimated of it: of all that waits, if others may have to give way to it.
    pub(crate) fn insert(
        &mut self,
        replica: ReplicaKey,
        priority: Priority,
        next: NextBatch,
        work: Option<WaitingWork>,
    ) {
        self.remove(replica);
        let waiting = WaitingMember {
            next,
            priority,
            work,
            is_urgent: false,
        };
        self.all.insert(replica, waiting);
        self.by_efficiency.insert((next.efficiency.into(), replica));
        self.by_urgency.insert((next.urgent_at, replica));
        if let Some(work) = work {
            let starts = self.by_start.entry(Reverse(priority)).or_default();
            starts.insert((work.start_by, replica));
        }
    }

    /// Notes the lowest priority of the pool's members; `None` if it has none. Those that wait already are to be added anew if it became lower.
    pub(crate) fn set_lowest(&mut self, lowest: Option<Priority>) {
        self.lowest = lowest;
    }

    /// Returns the lowest priority of the pool's members.
    pub(crate) fn lowest(&self) -> Option<Priority> {
        self.lowest
    }

    pub(crate) fn remove(&mut self, replica: ReplicaKey) {
        let Some(waiting) = self.all.remove(&replica) else {
            return;
        };
        let WaitingMember {
            next,
            priority,
            work,
            is_urgent,
        } = waiting;
        if is_urgent {
            let place = (Reverse(priority), next.rate.into(), replica);
            self.urgent.remove(&place);
        } else {
            self.by_efficiency
                .remove(&(next.efficiency.into(), replica));
            self.by_urgency.remove(&(next.urgent_at, replica));
        }
        if let Some(work) = work
            && let Some(starts) = self.by_start.get_mut(&Reverse(priority))
        {
            starts.remove(&(work.start_by, replica));
        }
    }

    /// Has the members become urgent whose time has come.
    pub(crate) fn become_urgent(&mut self, now: Time) {
        while let Some(&(at, replica)) = self.by_urgency.first().filter(|first| first.0 <= now) {
            self.by_urgency.remove(&(at, replica));
            let known = self.all.get_mut(&replica);
            let waiting = known.expect("it waits");
            waiting.is_urgent = true;
            let WaitingMember { next, priority, .. } = *waiting;
            self.by_efficiency
                .remove(&(next.efficiency.into(), replica));
            self.urgent
                .insert((Reverse(priority), next.rate.into(), replica));
        }
    }

    /// Returns the urgent members; those of the highest priority come first, and among them the one with the highest rate.
    pub(crate) fn urgent(&self) -> impl Iterator<Item = ReplicaKey> {
        self.urgent.iter().map(|(.., replica)| *replica)
    }

    /// Returns the members above a priority that must begin first, up to the first that would be late if the device were in use until this time, and then
    /// computed what waits for them one after the other. If there is none, or it is not among so many of each priority, they are empty.
    pub(crate) fn late_above(
        &self,
        priority: Priority,
        until: Time,
        most: usize,
    ) -> Vec<ReplicaKey> {
        let above = self.by_start.range(..Reverse(priority));
        let first = above.flat_map(|(_, starts)| starts.iter().take(most));
        let mut first: Vec<(Time, ReplicaKey)> = first.copied().collect();
        first.sort_unstable();
        let mut free = until;
        let late = first.iter().position(|(start_by, replica)| {
            let is_late = *start_by < free;
            free += self.all[replica]
                .work
                .map_or(Duration::ZERO, |work| work.time);
            is_late
        });
        first.truncate(late.map_or(0, |late| late + 1));
        first.into_iter().map(|(_, replica)| replica).collect()
    }

    /// Returns the members that are not urgent; the most efficient one comes first.
    pub(crate) fn others(&self) -> impl Iterator<Item = ReplicaKey> {
        self.by_efficiency.iter().map(|(_, replica)| *replica)
    }

    /// Puts a member behind all others, until its queue changes. Returns false if it was behind those that have something already.
    pub(crate) fn put_last(&mut self, replica: ReplicaKey) -> bool {
        let Some(known) = self.all.get(&replica) else {
            return false;
        };
        let (was_last, priority) = (known.next.is_last(), known.priority);
        // Each time it goes behind those that went there before, so that all have their turn.
        self.put_last += 1;
        let rank = u64::MAX >> 13;
        let last = NextBatch {
            urgent_at: Time::MAX,
            rate: 0.0,
            efficiency: f64::from_bits(rank - self.put_last % rank),
        };
        self.insert(replica, priority, last, None);
        !was_last
    }
}

//! The members of a pool that have waiting requests, in the orders in which their device considers them.
//!
//! A device looks at a few members at a time, however many wait: those first that its discipline would choose. The orders are of estimates, which are made
//! when a member's queue changes much, and which the device checks when it looks.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::Time;

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

/// A positive number as a key: the greatest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Descending(std::cmp::Reverse<u64>);

impl From<f64> for Descending {
    fn from(number: f64) -> Self {
        // The bits of positive numbers have the order of the numbers.
        Self(std::cmp::Reverse(number.max(0.0).to_bits()))
    }
}

/// The members with waiting requests.
#[derive(Debug, Default)]
pub(crate) struct WaitingMembers {
    /// The estimate of each, and if it has become urgent.
    all: BTreeMap<ReplicaKey, (NextBatch, bool)>,
    urgent: BTreeSet<(Descending, ReplicaKey)>,
    by_efficiency: BTreeSet<(Descending, ReplicaKey)>,
    by_urgency: BTreeSet<(Time, ReplicaKey)>,
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
            .is_some_and(|(next, _)| !next.is_last())
    }

    /// Adds a member, or replaces what is estimated of it.
    pub(crate) fn insert(&mut self, replica: ReplicaKey, next: NextBatch) {
        self.remove(replica);
        self.all.insert(replica, (next, false));
        self.by_efficiency.insert((next.efficiency.into(), replica));
        self.by_urgency.insert((next.urgent_at, replica));
    }

    pub(crate) fn remove(&mut self, replica: ReplicaKey) {
        let Some((next, is_urgent)) = self.all.remove(&replica) else {
            return;
        };
        if is_urgent {
            self.urgent.remove(&(next.rate.into(), replica));
        } else {
            self.by_efficiency
                .remove(&(next.efficiency.into(), replica));
            self.by_urgency.remove(&(next.urgent_at, replica));
        }
    }

    /// Has the members become urgent whose time has come.
    pub(crate) fn become_urgent(&mut self, now: Time) {
        while let Some(&(at, replica)) = self.by_urgency.first().filter(|first| first.0 <= now) {
            self.by_urgency.remove(&(at, replica));
            let known = self.all.get_mut(&replica);
            let (next, is_urgent) = known.expect("it waits");
            *is_urgent = true;
            self.by_efficiency
                .remove(&(next.efficiency.into(), replica));
            self.urgent.insert((next.rate.into(), replica));
        }
    }

    /// Returns the urgent members; the one with the highest rate comes first.
    pub(crate) fn urgent(&self) -> impl Iterator<Item = ReplicaKey> {
        self.urgent.iter().map(|(_, replica)| *replica)
    }

    /// Returns the members that are not urgent; the most efficient one comes first.
    pub(crate) fn others(&self) -> impl Iterator<Item = ReplicaKey> {
        self.by_efficiency.iter().map(|(_, replica)| *replica)
    }

    /// Puts a member behind all others, until its queue changes. Returns false if it was behind those that have something already.
    pub(crate) fn put_last(&mut self, replica: ReplicaKey) -> bool {
        let Some((known, _)) = self.all.get(&replica) else {
            return false;
        };
        let was_last = known.is_last();
        // Each time it goes behind those that went there before, so that all have their turn.
        self.put_last += 1;
        let rank = u64::MAX >> 13;
        let last = NextBatch {
            urgent_at: Time::MAX,
            rate: 0.0,
            efficiency: f64::from_bits(rank - self.put_last % rank),
        };
        self.insert(replica, last);
        !was_last
    }
}

//! Loads from files for requests that were refused, because none of them could wait so long. Whoever comes later has something of such a load, and nobody
//! before: so it costs those whose weights are on the device as little as may be, but is not put off for ever.
//!
//! * It begins when no other file is read, in room that is free, or of members for which nothing waits.
//! * One that takes the room of members which are in use is followed by a pause, at least [`PAUSE`] and [`PAUSE_LOADS`] times as long as the load. So such
//!   loads take at most a quarter of the time, and a member that came by one is there when those come back who were refused.
//! * One that finds no such room for [`PATIENCE_LOADS`] times as long as it takes, is made all the same, before others.

use std::time::Duration;

use packhorse_cluster::Time;

use super::{CopyPlace, DevicePool, Residency};
use crate::{
    ReplicaKey,
    refused_loads::{Beginning, LoadsBefore, SpareRoom},
};

/// The time without a batch after which a member is not in use.
const IDLE: Duration = Duration::from_secs(10);

/// The least time between two loads that take the room of members which are in use: times to come back are told in whole seconds.
const PAUSE: Duration = Duration::from_secs(1);

/// The same time, as a multiple of the load before it.
const PAUSE_LOADS: u32 = 3;

/// The time without room after which a load is made all the same, as a multiple of the load.
const PATIENCE_LOADS: u32 = 16;

fn pause_after(load: Duration) -> Duration {
    PAUSE.max(load * PAUSE_LOADS)
}

impl DevicePool {
    /// Returns the room for a load for requests that were refused.
    pub(super) fn spare_room(&self, now: Time) -> SpareRoom {
        let (mut unused, mut waited_for_by_none) = (0, 0);
        for evictable in self.evictable.waited_for_by_none() {
            let weights = self.members[&evictable.replica].weights;
            waited_for_by_none += weights;
            let is_unused = evictable.used + IDLE <= now;
            unused += if is_unused { weights } else { 0 };
        }
        let mut copies = self.copies.iter();
        SpareRoom {
            unused: self.free_beside(unused),
            waited_for_by_none: self.free_beside(waited_for_by_none),
            is_reading: copies.any(|copied| self.members[copied].on_disk),
        }
    }

    /// Returns when a member that is in a file only may be loaded for requests that were refused since a time.
    pub(crate) fn load_for_refused(
        &self,
        replica: ReplicaKey,
        since: Time,
        place: &CopyPlace,
    ) -> Beginning {
        let Some(member) = { self.members.get(&replica) }.filter(|member| member.on_disk) else {
            return Beginning::Never;
        };
        let CopyPlace { now, spare, .. } = *place;
        let Some(loaded) = self.loaded_at(replica, place) else {
            return Beginning::Never;
        };
        let paused_until = self.paused_until;
        let overdue = paused_until.max(since) + member.load * PATIENCE_LOADS;
        let is_overdue = overdue <= now;
        let is_free = !spare.is_reading && member.weights <= spare.unused;
        let is_spare = !spare.is_reading && member.weights <= spare.waited_for_by_none;
        if is_free || is_overdue || (is_spare && paused_until <= now) {
            Beginning::Now { loaded, is_overdue }
        } else if paused_until > now {
            Beginning::At(paused_until)
        } else {
            Beginning::At(overdue)
        }
    }

    /// Notes that a member is loaded next for requests that were refused.
    pub(crate) fn pace(&mut self, now: Time, replica: ReplicaKey) {
        let member = &self.members[&replica];
        if member.weights > self.spare_room(now).unused {
            let loaded = self.copied.disk.max(now) + member.load;
            self.paused_until = loaded + pause_after(member.load);
        }
    }

    /// Adds a member, if it is in a file only, to the loads before another one.
    pub(crate) fn add_to(&self, before: &mut LoadsBefore, replica: ReplicaKey) {
        if let Some(member) = self.members.get(&replica).filter(|member| member.on_disk) {
            before.weights = before.weights.saturating_add(member.weights);
            before.loads += member.load;
            before.pauses += pause_after(member.load);
        }
    }

    /// Returns the time at which a member in a file only should be there, if it is loaded for requests that were refused, after others, or is being loaded
    /// already; `None` if it is elsewhere.
    pub(crate) fn due_for_refused(
        &self,
        now: Time,
        replica: ReplicaKey,
        before: &LoadsBefore,
    ) -> Option<Time> {
        let member = self.members.get(&replica).filter(|member| member.on_disk)?;
        if member.residency != Residency::Away {
            return self.due_from_disk(now, replica);
        }
        let read = self.copied.disk.max(now).max(member.refused_until);
        let weights = before.weights.saturating_add(member.weights);
        let begin = if weights <= self.spare_room(now).unused {
            read + before.loads
        } else {
            read.max(self.paused_until) + before.loads + before.pauses
        };
        Some(begin + member.load)
    }
}

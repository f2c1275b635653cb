//! The room that the batches on a device leave for another one.

use packhorse_cluster::Time;

/// The most batches of a device that are away. More are on their way only where batches travel much longer than they compute.
pub(super) const MOST_AWAY: usize = 16;

/// The sum of the used parts of the multiprocessors up to which batches compute side by side. Parts are measured, and sums of them round.
const WHOLE_DEVICE: f64 = 1.0 + 1e-9;
/// The used part of a device's multiprocessors from each time on, ascending by time; the first is the present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    used: [(Time, f64); MOST_AWAY + 1],
    len: usize,
}

impl Room {
    /// Returns the room beside batches, of which each uses a part of the multiprocessors until a time.
    pub(super) fn new(now: Time, batches: impl Iterator<Item = (Time, f64)>) -> Self {
        let mut used = [(now, 0.0); MOST_AWAY + 1];
        let mut len = 1;
        for ((at, part), (due, utilization)) in used[1..].iter_mut().zip(batches) {
            (*at, *part) = (due.max(now), utilization);
            len += 1;
        }
        used[1..len].sort_unstable_by_key(|(due, _)| *due);
        // From parts that end to parts that are left.
        let mut left = 0.0;
        for place in (1..len).rev() {
            let part = std::mem::replace(&mut used[place].1, left);
            left += part;
        }
        used[0].1 = left;
        Self { used, len }
    }

    /// Returns the time from which on there is room for a batch that uses a part of the multiprocessors.
    pub(crate) fn from(&self, utilization: f64) -> Time {
        let fits = |&&(_, used): &&(Time, f64)| used == 0.0 || used + utilization <= WHOLE_DEVICE;
        let found = self.used[..self.len].iter().find(fits);
        found
            .map(|(at, _)| *at)
            .expect("nothing is used in the end")
    }

    /// Returns the room that is left beside one more batch, which uses a part of the multiprocessors until a time after the present.
    pub(crate) fn beside(&self, until: Time, utilization: f64) -> Self {
        let mut room = *self;
        let place = room.used[..room.len].partition_point(|(at, _)| *at < until);
        for (_, used) in &mut room.used[..place] {
            *used += utilization;
        }
        room.used.copy_within(place..room.len, place + 1);
        room.used[place] = (until, self.used[place - 1].1);
        room.len += 1;
        room
    }
}

//! The work that a replica has computed.

use std::time::Duration;

/// The work of a replica, counted from zero since the replica came into the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputedWork {
    /// The number of batches that it answered.
    pub batches: u64,
    /// The rows of these batches.
    pub rows: u64,
    /// The compute time of these batches, as its worker measured it.
    pub compute: Duration,
    /// The compute time by the profile, alone on the device at the replica's share.
    pub alone: Duration,
}

impl ComputedWork {
    /// Adds a batch that was answered.
    pub(super) fn add_batch(&mut self, rows: u32, compute: Duration, alone: Duration) {
        self.batches += 1;
        self.rows += u64::from(rows);
        self.compute = self.compute.saturating_add(compute);
        self.alone = self.alone.saturating_add(alone);
    }

    /// Returns the work since an earlier reading. If a count is lower than before, counting has begun again, and all of it is new.
    pub(crate) fn since(self, before: Self) -> Self {
        let since = || {
            Some(Self {
                batches: self.batches.checked_sub(before.batches)?,
                rows: self.rows.checked_sub(before.rows)?,
                compute: self.compute.checked_sub(before.compute)?,
                alone: self.alone.checked_sub(before.alone)?,
            })
        };
        since().unwrap_or(self)
    }
}

//! What a replica has computed.

use std::time::Duration;

/// Counted from zero since the data plane knows the replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Batches that it answered.
    pub batches: u64,
    /// Their rows.
    pub rows: u64,
    /// How long it computed them, as it says.
    pub compute: Duration,
    /// How long its profile says they take alone on the device, at the replica's share.
    pub alone: Duration,
}

impl Work {
    /// A batch was answered.
    pub(super) fn add(&mut self, rows: u32, compute: Duration, alone: Duration) {
        self.batches += 1;
        self.rows += u64::from(rows);
        self.compute = self.compute.saturating_add(compute);
        self.alone = self.alone.saturating_add(alone);
    }

    /// What was added since it stood at `before`. Where it stands lower than that, it began again in between.
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

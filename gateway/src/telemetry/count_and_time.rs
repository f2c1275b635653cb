//! A counter with a total time.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A number of requests and their total time, as in Triton's statistics.
#[derive(Debug, Default)]
pub struct CountAndTime {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl CountAndTime {
    pub(super) fn add(&self, count: u64, each: Duration) {
        self.count.fetch_add(count, Relaxed);
        let nanos = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos.saturating_mul(count), Relaxed);
    }

    /// Returns the number.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Returns the total time, in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.nanos.load(Relaxed)
    }
}

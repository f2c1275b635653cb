//! The latest time that was seen: what has expired stays expired if the machine's clock is set back.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::Relaxed},
};

use crate::store::unix_ms;

/// The latest wall-clock time since the gateway's start, as Unix time in milliseconds. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LatestTime(Arc<AtomicI64>);

impl LatestTime {
    /// Returns the present time, or the latest that was seen if the clock was set back.
    pub(super) fn now_ms(&self) -> i64 {
        self.at_least(unix_ms())
    }

    fn at_least(&self, now_ms: i64) -> i64 {
        self.0.fetch_max(now_ms, Relaxed).max(now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let latest = LatestTime::default();
        let seen = [5, 9, 2, 8, 10].map(|now| latest.clone().at_least(now));
        assert_eq!(seen, [5, 9, 9, 9, 10]);
    }
}

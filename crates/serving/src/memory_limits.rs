//! The batch sizes that a replica has memory for, learnt from batches for which it had too little.
//!
//! A limit is kept by the bytes of a row: longer rows need at least as much memory, and it says nothing of shorter ones, so that one
//! long request does not make a model slow. Neighbours allocate memory and free it; therefore a limit doubles as time passes.

use std::time::Duration;

use packhorse_cluster::Time;

/// The time after which a limit doubles.
const FIRST_HEALING: Duration = Duration::from_secs(30);
/// The longest time after which a limit doubles.
const MAX_HEALING: Duration = Duration::from_mins(16);

/// The limits of a replica, the one of the shortest rows first: at most one for each power of two.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryLimits(Vec<MemoryLimit>);

#[derive(Clone, Copy, Debug)]
struct MemoryLimit {
    /// The power of two that is the least number of bytes of a row for which it holds.
    exponent: u32,
    /// The most rows of a batch when it was found.
    rows: u32,
    since: Time,
    /// The time after which it doubles, itself doubled by each shortage after that.
    healing: Duration,
}

impl MemoryLimit {
    fn doublings(&self, now: Time) -> u32 {
        let doublings = now.saturating_since(self.since).as_nanos() / self.healing.as_nanos();
        u32::try_from(doublings).unwrap_or(u32::MAX)
    }

    fn rows(&self, now: Time) -> u32 {
        let factor = 1_u64.checked_shl(self.doublings(now)).unwrap_or(u64::MAX);
        u32::try_from(u64::from(self.rows).saturating_mul(factor)).unwrap_or(u32::MAX)
    }
}

impl MemoryLimits {
    /// Returns the most rows of this many bytes in one batch; `u32::MAX` if there is no limit.
    pub(crate) fn rows(&self, now: Time, bytes_per_row: u64) -> u32 {
        let exponent = exponent(bytes_per_row);
        let limits = self.0.iter().take_while(|limit| limit.exponent <= exponent);
        limits
            .map(|limit| limit.rows(now))
            .min()
            .unwrap_or(u32::MAX)
    }

    /// Takes note of a batch for which there was too little memory: the next smaller power of two is tried.
    pub(crate) fn report_shortage(&mut self, now: Time, rows: u32, bytes_per_row: u64) {
        let exponent = exponent(bytes_per_row);
        let smaller = (rows.next_power_of_two() / 2).max(1);
        let index = self.0.partition_point(|limit| limit.exponent < exponent);
        match self.0.get_mut(index) {
            Some(limit) if limit.exponent == exponent => {
                // Another batch of the same size, which was in flight already, is no news.
                if smaller < limit.rows(now) {
                    if limit.doublings(now) > 0 {
                        limit.healing = MAX_HEALING.min(limit.healing * 2);
                    }
                    (limit.rows, limit.since) = (smaller, now);
                }
            }
            _ => {
                let limit = MemoryLimit {
                    exponent,
                    rows: smaller,
                    since: now,
                    healing: FIRST_HEALING,
                };
                self.0.insert(index, limit);
            }
        }
    }
}

/// Returns the largest power of two that is at most `bytes`.
fn exponent(bytes: u64) -> u32 {
    bytes.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_shortage_of_long_rows_leaves_shorter_ones_alone() {
        let mut limits = MemoryLimits::default();
        limits.report_shortage(at(0), 8, 5000);
        assert_eq!(limits.rows(at(0), 4095), u32::MAX);
        for bytes in [4096, 5000, 1 << 30] {
            assert_eq!(limits.rows(at(0), bytes), 4, "{bytes}");
        }
        limits.report_shortage(at(1), 4, 1 << 20);
        assert_eq!(limits.rows(at(1), 5000), 4);
        assert_eq!(limits.rows(at(1), 1 << 20), 2);
        // Shorter rows need less, so that their limit holds for longer ones too, but not the other way round.
        limits.report_shortage(at(2), 2, 0);
        assert_eq!(limits.rows(at(2), 1 << 20), 1);
    }

    #[test]
    fn a_limit_doubles_as_time_passes_and_more_slowly_after_each_shortage() {
        let mut limits = MemoryLimits::default();
        limits.report_shortage(at(0), 16, 1000);
        limits.report_shortage(at(0), 16, 1000);
        limits.report_shortage(at(1), 8, 1000);
        let rows = |limits: &MemoryLimits, seconds| limits.rows(at(seconds), 1000);
        assert_eq!(rows(&limits, 30), 4);
        assert_eq!(rows(&limits, 31), 8);
        assert_eq!(rows(&limits, 61), 16);
        assert_eq!(rows(&limits, 1_000_000), u32::MAX);
        // It failed again at 8: the next attempt is after a minute.
        limits.report_shortage(at(32), 8, 1000);
        assert_eq!(rows(&limits, 91), 4);
        assert_eq!(rows(&limits, 92), 8);
        let mut now = 92;
        for _ in 0..20 {
            limits.report_shortage(at(now), 8, 1000);
            now += 10_000;
        }
        limits.report_shortage(at(now), 8, 1000);
        assert_eq!(rows(&limits, now + 16 * 60 - 1), 4);
        assert_eq!(rows(&limits, now + 16 * 60), 8);
    }
}

//! The time after which a cell of a table is given up: one plan, or one run.

use std::time::{Duration, Instant};

/// The longest time of planning, and of each run, of a cell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CellLimit(Option<Duration>);

impl CellLimit {
    /// Sets no limit.
    pub(crate) const NONE: Self = Self(None);

    pub(crate) const fn new(limit: Duration) -> Self {
        Self(Some(limit))
    }

    pub(crate) fn duration(self) -> Option<Duration> {
        self.0
    }

    /// Starts the time of a plan or a run.
    #[expect(clippy::disallowed_methods, reason = "what takes too long is given up")]
    pub(crate) fn start(self) -> RunningLimit {
        RunningLimit {
            started: Instant::now(),
            limit: self,
        }
    }
}

/// The time of a plan or a run that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningLimit {
    started: Instant,
    limit: CellLimit,
}

impl RunningLimit {
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.limit.0.is_some_and(|limit| self.elapsed() > limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_ends() {
        assert!(CellLimit::new(Duration::ZERO).start().is_over());
        assert!(!CellLimit::new(Duration::MAX).start().is_over());
        assert!(!CellLimit::NONE.start().is_over());
    }
}

//! The limits of a policy's search.

use std::time::Duration;

use crate::PlaceError;

/// The limits of a policy's search: a number of steps, and a function of the caller that stops it. Steps are deterministic; the
/// function need not be. Policies read no clock, but the function of a caller with a time limit may.
pub struct Budget<'a> {
    steps: u64,
    stop: &'a dyn Fn() -> bool,
    time_limit: Option<Duration>,
    ended: bool,
}

impl<'a> Budget<'a> {
    /// Allows at most `steps` steps, and none after `stop` has returned true. A step is a policy's own unit of work, about a
    /// microsecond; for heuristics one device that is considered.
    pub fn new(steps: u64, stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            steps,
            stop,
            time_limit: None,
            ended: false,
        }
    }

    /// Sets no limit.
    pub fn unlimited() -> Budget<'static> {
        Budget {
            steps: u64::MAX,
            stop: &|| false,
            time_limit: None,
            ended: false,
        }
    }

    /// Adds a time limit for solvers that no function can stop. They read the clock themselves.
    #[must_use]
    pub fn with_time_limit(self, limit: Duration) -> Self {
        Self {
            time_limit: Some(limit),
            ..self
        }
    }

    /// Returns a budget of at most `steps` of the steps that are left, which ends when this one would.
    pub(crate) fn part(&self, steps: u64) -> Budget<'a> {
        Budget {
            steps: self.steps.min(steps),
            stop: self.stop,
            time_limit: self.time_limit,
            ended: false,
        }
    }

    #[cfg(feature = "highs")]
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns true if steps were refused: the search might have found a better plan with more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// Uses up `steps` steps.
    ///
    /// # Errors
    /// If fewer are left, or the caller stops the search.
    pub fn spend(&mut self, steps: u64) -> Result<(), PlaceError> {
        let allowed = self.subtract(steps);
        self.ended |= allowed.is_err();
        allowed
    }

    fn subtract(&mut self, steps: u64) -> Result<(), PlaceError> {
        self.steps = self
            .steps
            .checked_sub(steps)
            .ok_or(PlaceError::OutOfSteps)?;
        if (self.stop)() {
            Err(PlaceError::Stopped)
        } else {
            Ok(())
        }
    }
}

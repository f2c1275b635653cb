//! How much a policy may think.

use std::time::Duration;

use crate::PlaceError;

/// What bounds a policy's search: a number of steps, which is the same for every run, and the caller's word, which need not be.
/// Policies read no clock; a caller with a time limit gives a `stop` that looks at its own.
pub struct Budget<'a> {
    steps: u64,
    stop: &'a dyn Fn() -> bool,
    time_limit: Option<Duration>,
    ended: bool,
}

impl<'a> Budget<'a> {
    /// At most `steps` steps, and none after `stop` has said true. A step is a policy's own unit of work, about a microsecond;
    /// for heuristics a look at one device.
    pub fn new(steps: u64, stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            steps,
            stop,
            time_limit: None,
            ended: false,
        }
    }

    /// As much as it takes.
    pub fn unlimited() -> Budget<'static> {
        Budget {
            steps: u64::MAX,
            stop: &|| false,
            time_limit: None,
            ended: false,
        }
    }

    /// The same, with a limit for solvers that cannot be asked to stop: they look at the clock themselves, and give up.
    #[must_use]
    pub fn with_time_limit(self, limit: Duration) -> Self {
        Self {
            time_limit: Some(limit),
            ..self
        }
    }

    #[cfg(feature = "highs")]
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether steps were refused: a search that ended for it might have found better.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// Takes `steps` steps.
    ///
    /// # Errors
    /// When there are not so many left, or the caller says stop.
    pub fn spend(&mut self, steps: u64) -> Result<(), PlaceError> {
        let taken = self.take(steps);
        self.ended |= taken.is_err();
        taken
    }

    fn take(&mut self, steps: u64) -> Result<(), PlaceError> {
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

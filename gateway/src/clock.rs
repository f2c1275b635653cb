//! The gateway's clock: the only place in the data plane that reads the machine's.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use packhorse_cluster::Time;

/// A monotonic clock. All copies agree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// The wall clock at the start, since 1970.
    unix_start: Duration,
}

impl Clock {
    /// Creates a clock that stands at [`Time::ZERO`] now.
    #[expect(
        clippy::disallowed_methods,
        reason = "drivers read the clock; decisions get `now` from here"
    )]
    pub(crate) fn start() -> Self {
        let unix_start = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            start: Instant::now(),
            unix_start,
        }
    }

    /// Returns the present time.
    #[expect(
        clippy::disallowed_methods,
        reason = "drivers read the clock; decisions get `now` from here"
    )]
    pub(crate) fn now(&self) -> Time {
        Time::ZERO + Instant::now().saturating_duration_since(self.start)
    }

    /// Converts a time to the runtime's clock, to sleep until then.
    pub(crate) fn instant(&self, time: Time) -> tokio::time::Instant {
        let since = time.saturating_since(Time::ZERO);
        // A time beyond the range of the clock is beyond the life of this process, too.
        let far = self.start + Duration::from_hours(365 * 24);
        self.start.checked_add(since).unwrap_or(far).min(far).into()
    }

    /// Converts a time to milliseconds since 1970, with their fraction.
    pub(crate) fn unix_ms_f64(&self, time: Time) -> f64 {
        (self.unix_start + time.saturating_since(Time::ZERO)).as_secs_f64() * 1e3
    }

    /// Converts milliseconds since 1970 to a time, at least [`Time::ZERO`].
    pub(crate) fn time_of_unix_ms(&self, unix_ms: i64) -> Time {
        let unix = Duration::from_millis(u64::try_from(unix_ms).unwrap_or_default());
        Time::ZERO + unix.saturating_sub(self.unix_start)
    }

    /// Converts a time to nanoseconds since 1970.
    pub(crate) fn unix_nanos(&self, time: Time) -> u64 {
        let unix = self.unix_start + time.saturating_since(Time::ZERO);
        u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Converts a time to milliseconds since 1970.
    pub(crate) fn unix_ms(&self, time: Time) -> u64 {
        let unix = self.unix_start + time.saturating_since(Time::ZERO);
        u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)
    }
}

//! The clock of the data plane: the only place in it that reads the machine's.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use packhorse_cluster::Time;

/// A monotonic clock. All copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    /// The wall clock at the start, since 1970.
    unix_start: Duration,
}

impl Clock {
    /// A clock that stands at [`Time::ZERO`] now.
    #[expect(
        clippy::disallowed_methods,
        reason = "drivers read the clock; decisions get `now` from here"
    )]
    pub fn start() -> Self {
        let unix_start = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            start: Instant::now(),
            unix_start,
        }
    }

    /// Now.
    #[expect(
        clippy::disallowed_methods,
        reason = "drivers read the clock; decisions get `now` from here"
    )]
    pub fn now(&self) -> Time {
        Time::ZERO + Instant::now().saturating_duration_since(self.start)
    }

    /// The runtime's clock at `time`, to sleep until.
    pub fn instant(&self, time: Time) -> tokio::time::Instant {
        let since = time.saturating_since(Time::ZERO);
        // Later than any clock means: not in the life of this process.
        let far = self.start + Duration::from_hours(365 * 24);
        self.start.checked_add(since).unwrap_or(far).min(far).into()
    }

    /// Milliseconds since 1970 at `time`.
    pub fn unix_ms(&self, time: Time) -> u64 {
        let unix = self.unix_start + time.saturating_since(Time::ZERO);
        u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)
    }
}

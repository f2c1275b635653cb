//! The delay between attempts that fail.

use std::time::Duration;

/// The delay after the first failure.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Returns the delay before the next attempt. It doubles with each earlier failure, up to a limit.
pub(crate) fn backoff(earlier_failures: u32) -> Duration {
    let factor = 1_u32
        .checked_shl(earlier_failures.min(20))
        .unwrap_or(u32::MAX);
    FIRST_DELAY.saturating_mul(factor).min(LONGEST_DELAY)
}

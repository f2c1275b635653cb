//! Times in queries.

use packhorse_cluster::Time;

use crate::{api::error::ApiError, clock::Clock, store::unix_ms};

/// Returns the time that a query names, in milliseconds since 1970: a negative number counts from now.
pub(super) fn named_ms(ms: i64) -> i64 {
    if ms < 0 {
        unix_ms().saturating_add(ms).max(0)
    } else {
        ms
    }
}

/// Returns the time that a query names, on the gateway's clock: its start if it is before that.
pub(super) fn named_time(ms: i64, clock: Clock) -> Time {
    clock.time_of_unix_ms(named_ms(ms))
}

/// Checks that a time window begins before it ends.
pub(super) fn check_order(since: Option<i64>, until: Option<i64>) -> Result<(), ApiError> {
    match (since.map(named_ms), until.map(named_ms)) {
        (Some(since), Some(until)) if since > until => {
            Err(ApiError::bad_request("since: expected a time before until"))
        }
        _ => Ok(()),
    }
}

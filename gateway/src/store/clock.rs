//! The wall clock, whose times are in the rows.

/// Returns the current time, in milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the store is where wall-clock times are written"
)]
pub(crate) fn unix_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

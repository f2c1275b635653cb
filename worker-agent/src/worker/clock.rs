//! The worker's clock.

use std::time::Instant;

/// Returns the current time.
#[expect(
    clippy::disallowed_methods,
    reason = "a worker measures its batches and enforces their time limits"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

//! The data plane from HTTP client to worker: a real listener and real sockets, with workers that do what a test tells them.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

mod bad_input;
mod batching;
mod disconnects;
mod failures;
mod gateway;
mod infer;
mod links;
mod metadata;
mod telemetry;
mod worker;

use std::time::Duration;

/// No event that a test waits for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for an event.
async fn within<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"))
}

/// Waits until something holds that nobody announces.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

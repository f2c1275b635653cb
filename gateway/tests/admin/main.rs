//! The control plane from HTTP to SQLite: a whole gateway with a state folder of its own, agents that do what a test tells
//! them, and workers that speak the real protocol.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

mod agent;
mod agents;
mod artifacts;
mod auth;
mod gateway;
mod models;
mod openapi;
mod plans;
mod profiles;
mod restart;
mod rollout;
#[path = "../inference/worker.rs"]
#[expect(dead_code, reason = "the tests of the data plane tell workers more")]
mod worker;

use std::time::Duration;

/// No event that a test waits for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for an event.
async fn within<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"))
}

//! The test kit: gateways, scripted agents and workers, responses and waiting.

pub(crate) mod agent;
pub(crate) mod answer;
pub(crate) mod event_reader;
pub(crate) mod gateway;
pub(crate) mod grpc;
pub(crate) mod inference_gateway;
pub(crate) mod worker;

use std::{fmt::Display, time::Duration};

use packhorse_cluster::{ByteCount, ComputeShare, ProfileRow};
use tokio::time::{Instant, sleep, timeout};

/// The time within which every event happens that a test waits for, unless it never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a client for `http` URLs. It is of no use for others.
pub(crate) fn client_builder() -> reqwest::ClientBuilder {
    let tls = packhorse_tls::Authorities::Machine.client_config("http");
    reqwest::Client::builder().tls_backend_preconfigured(tls.expect("it reads nothing"))
}

/// Returns a client for `http` URLs.
pub(crate) fn client() -> reqwest::Client {
    client_builder().build().expect("it needs nothing")
}

/// Waits for an event.
pub(crate) async fn within<T>(what: &str, event: impl Future<Output = T>) -> T {
    timeout(PATIENCE, event)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"))
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Repeats an attempt until it succeeds. Panics with the last error if none succeeds in time.
pub(crate) async fn poll<T, E: Display>(
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(last) if Instant::now() > end => panic!("{what} did not happen: {last}"),
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// A row of a profile on a whole device.
pub(crate) fn profile_row(
    batch_size: u32,
    latency: Duration,
    memory: Option<ByteCount>,
) -> ProfileRow {
    ProfileRow {
        batch_size,
        compute_share: ComputeShare::WHOLE,
        latency,
        latency_p99: None,
        memory,
        achieved_occupancy: None,
        mean_occupancy: None,
        sm_utilization: None,
    }
}

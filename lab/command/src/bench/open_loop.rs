//! Sends requests at the times at which they are due.
//!
//! A separate thread sleeps until each request is due, because a thread wakes with a precision of microseconds and a timer of the
//! runtime with one of milliseconds. The thread passes due requests to the runtime, which sends at most a given number at a time;
//! further requests wait and are sent late.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use packhorse_client::{CallError, InferError, InferenceClient};
use packhorse_cluster::{ModelIndex, ModelName, ModelVersion, Time};
use packhorse_protocol::RequestMessage;
use tokio::{sync::mpsc, task::JoinSet};

/// The largest number of due requests that wait to be sent.
const DUE_REQUESTS: usize = 4096;

/// The time after which a request is sent again whose connection failed.
const PAUSE: Duration = Duration::from_millis(50);

/// The time between the start of the benchmark and the start of the schedule.
const LEAD: Duration = Duration::from_millis(50);

/// A model with the request that is sent to it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: ModelName,
    pub(super) version: ModelVersion,
    pub(super) slo: Duration,
    pub(super) request: RequestMessage,
}

/// The behaviour of the clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// The largest number of unanswered requests.
    pub(super) concurrency: usize,
    /// True if a request whose connection fails is sent again.
    pub(super) retry: bool,
}

/// The end of a request, with times since the start of the schedule.
#[derive(Debug)]
pub(super) struct RequestEnd {
    pub(super) model: ModelIndex,
    pub(super) due: Time,
    pub(super) sent: Time,
    pub(super) ended: Time,
    pub(super) outcome: RequestOutcome,
}

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum RequestOutcome {
    Answered,
    /// The gateway refused the request, or its deadline passed.
    Dropped,
    /// The gateway was not there, or ended the connection before it answered, with this error.
    Disconnected(String),
    /// The request failed with this error.
    Failed(String),
}

/// A clock that measures the time since the start of the schedule.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark sends at given times and measures latencies"
)]
impl Clock {
    fn start() -> Self {
        Self {
            start: Instant::now() + LEAD,
        }
    }

    fn now(self) -> Time {
        Time::ZERO + Instant::now().saturating_duration_since(self.start)
    }

    fn wait_until(self, time: Time) {
        let instant = self.start + time.saturating_since(Time::ZERO);
        thread::sleep(instant.saturating_duration_since(Instant::now()));
    }
}

/// Sends `requests`, each when it is due, and calls `record` with the end of each.
pub(super) async fn send_open_loop(
    client: &InferenceClient,
    targets: &[Target],
    requests: &[(Time, ModelIndex)],
    options: Options,
    mut record: impl FnMut(RequestEnd),
) {
    let targets: Arc<[Target]> = targets.into();
    let clock = Clock::start();
    let (sender, mut due_requests) = mpsc::channel(DUE_REQUESTS);
    let schedule = requests.to_vec();
    let timekeeper = thread::spawn(move || {
        for request in schedule {
            clock.wait_until(request.0);
            if sender.blocking_send(request).is_err() {
                return;
            }
        }
    });
    let mut in_flight = JoinSet::new();
    let mut all_sent = false;
    while !(all_sent && in_flight.is_empty()) {
        tokio::select! {
            next = due_requests.recv(), if !all_sent && in_flight.len() < options.concurrency => match next {
                Some((due, model)) => {
                    let (client, targets) = (client.clone(), Arc::clone(&targets));
                    in_flight.spawn(async move {
                        let sent = clock.now();
                        let target = &targets[model.0];
                        let mut outcome = send(&client, target).await;
                        let may_retry = || {
                            options.retry && clock.now().saturating_since(due) + PAUSE < target.slo
                        };
                        while matches!(outcome, RequestOutcome::Disconnected(_)) && may_retry() {
                            tokio::time::sleep(PAUSE).await;
                            outcome = send(&client, target).await;
                        }
                        RequestEnd { model, due, sent, ended: clock.now(), outcome }
                    });
                }
                None => all_sent = true,
            },
            Some(ended) = in_flight.join_next(), if !in_flight.is_empty() => {
                record(ended.expect("sending does not panic"));
            }
        }
    }
    timekeeper.join().expect("waiting does not panic");
}

async fn send(client: &InferenceClient, target: &Target) -> RequestOutcome {
    let response = client.infer(&target.name, Some(target.version), &target.request);
    match response.await {
        Ok(_) => RequestOutcome::Answered,
        Err(InferError::Call(CallError::Refused {
            status,
            message,
            retry_after_s,
        })) => match status.as_u16() {
            // A 503 without Retry-After means that a worker was lost.
            503 if retry_after_s.is_some() => RequestOutcome::Dropped,
            504 => RequestOutcome::Dropped,
            status => RequestOutcome::Failed(format!("{status}: {message}")),
        },
        Err(error) => {
            let is_connection = matches!(
                error,
                InferError::Call(CallError::Connect { .. } | CallError::Broken { .. })
            );
            let text = format!("{:#}", anyhow::Error::from(error));
            if is_connection {
                RequestOutcome::Disconnected(text)
            } else {
                RequestOutcome::Failed(text)
            }
        }
    }
}

//! Sends requests when they are due.
//!
//! A thread of its own sleeps until each request is due: the runtime's timers have milliseconds, a thread's microseconds. What it
//! hands over is sent by tasks, of which there are so many at most; when all are busy the next requests wait, and are late.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use packhorse_client::{CallError, InferError, InferenceClient};
use packhorse_cluster::{ModelIndex, ModelName, ModelVersion, Time};
use packhorse_protocol::RequestMessage;
use tokio::{sync::mpsc, task::JoinSet};

/// How far the thread that keeps time may run ahead of what is sent.
const HANDED_OVER: usize = 4096;

/// How long everything has to get ready before the first moment.
const LEAD: Duration = Duration::from_millis(50);

/// How a model is asked.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: ModelName,
    pub(super) version: ModelVersion,
    pub(super) request: RequestMessage,
}

/// What became of a request.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) model: ModelIndex,
    pub(super) due: Time,
    pub(super) sent: Time,
    /// When that was known.
    pub(super) at: Time,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Answered,
    /// Refused, or expired.
    Dropped,
    /// Why.
    Failed(String),
}

/// The time since the first moment of the schedule.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark sends by the clock and measures with it"
)]
impl Clock {
    fn starting() -> Self {
        Self {
            start: Instant::now() + LEAD,
        }
    }

    fn now(self) -> Time {
        Time::ZERO + Instant::now().saturating_duration_since(self.start)
    }

    fn wait_until(self, moment: Time) {
        let at = self.start + moment.saturating_since(Time::ZERO);
        thread::sleep(at.saturating_duration_since(Instant::now()));
    }
}

/// Sends `requests`, with at most `concurrency` under way at a time, and tells `record` of each how it ended.
pub(super) async fn drive(
    client: &InferenceClient,
    targets: &[Target],
    requests: &[(Time, ModelIndex)],
    concurrency: usize,
    mut record: impl FnMut(Ended),
) {
    let targets: Arc<[Target]> = targets.into();
    let clock = Clock::starting();
    let (hand_over, mut due) = mpsc::channel(HANDED_OVER);
    let schedule = requests.to_vec();
    let timekeeper = thread::spawn(move || {
        for request in schedule {
            clock.wait_until(request.0);
            if hand_over.blocking_send(request).is_err() {
                return;
            }
        }
    });
    let mut under_way = JoinSet::new();
    let mut all_sent = false;
    while !(all_sent && under_way.is_empty()) {
        tokio::select! {
            next = due.recv(), if !all_sent && under_way.len() < concurrency => match next {
                Some((due, model)) => {
                    let (client, targets) = (client.clone(), Arc::clone(&targets));
                    under_way.spawn(async move {
                        let sent = clock.now();
                        let outcome = send(&client, &targets[model.0]).await;
                        Ended { model, due, sent, at: clock.now(), outcome }
                    });
                }
                None => all_sent = true,
            },
            Some(ended) = under_way.join_next(), if !under_way.is_empty() => {
                record(ended.expect("sending does not panic"));
            }
        }
    }
    timekeeper.join().expect("waiting does not panic");
}

async fn send(client: &InferenceClient, target: &Target) -> Outcome {
    let answer = client.infer(&target.name, Some(target.version), &target.request);
    match answer.await {
        Ok(_) => Outcome::Answered,
        Err(InferError::Call(CallError::Refused {
            status,
            message,
            retry_after_s,
        })) => match status.as_u16() {
            // Without Retry-After, a 503 is of a worker that was lost.
            503 if retry_after_s.is_some() => Outcome::Dropped,
            504 => Outcome::Dropped,
            status => Outcome::Failed(format!("{status}: {message}")),
        },
        Err(error) => Outcome::Failed(format!("{:#}", anyhow::Error::from(error))),
    }
}

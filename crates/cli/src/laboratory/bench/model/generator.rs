//! The load generator: sends one encoded request on kept connections, in an open or a closed loop.
//!
//! In an open loop a request is due at a time that was fixed before, and its latency counts from then: neither a slow gateway nor a slow
//! generator can hide behind requests that are sent later ("coordinated omission": G. Tene, "How NOT to measure latency", 2013). All of
//! it runs on one thread, with a runtime that looks at its sockets often, because the sending of one large request takes as long
//! as a thousand other steps of a task.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use packhorse_client::{EncodedRequest, InferenceClient, LoadConnection};
use rustix::process::setpriority_process;
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{interval, sleep},
};

use super::{
    alarm::Alarm,
    arrivals::Schedule,
    recorder::Recorder,
    request_end::{Outcome, RequestEnd},
};

/// The number of steps of tasks after which the runtime looks at its sockets.
const EVENT_INTERVAL: u32 = 4;

/// The niceness of an open loop's thread, where the system allows it: what serves the requests, on the same machine, would delay them.
const NICENESS: i32 = -10;

/// The time between two looks at the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The time after which a client of a closed loop sends its next request if the last was lost.
const LOST_PAUSE: Duration = Duration::from_millis(10);

/// The way in which requests follow each other.
#[derive(Clone, Debug)]
pub(super) enum Pace {
    /// At the times of a schedule, on at most this many connections.
    Open {
        schedule: Schedule,
        connections: usize,
    },
    /// Each of this many clients sends its next request when it has the answer to the last.
    Closed { clients: usize },
}

/// The requests to send.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) client: InferenceClient,
    pub(super) request: EncodedRequest,
    pub(super) pace: Pace,
    /// The time for which requests become due.
    pub(super) length: Duration,
}

/// The request, the clock and the record of all tasks.
struct Shared {
    request: EncodedRequest,
    start: Instant,
    recorder: Mutex<Recorder>,
}

impl Shared {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures latencies")]
    fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.start)
    }

    /// Sends a request, which could not be sent before `ready`. Returns false if it was lost.
    async fn send(
        &self,
        connection: &mut LoadConnection,
        due: Option<Duration>,
        ready: Option<Duration>,
    ) -> bool {
        let sent = self.now();
        let exchanged = connection.exchange(&self.request).await;
        let ended = self.now();
        let end = RequestEnd {
            due: due.unwrap_or(sent),
            ready: ready.unwrap_or(sent),
            sent,
            ended,
            timing: exchanged.as_ref().ok().and_then(|head| head.timing),
            outcome: Outcome::of(exchanged, connection.body()),
        };
        let is_lost = matches!(end.outcome, Outcome::Lost(_));
        self.lock().record(end);
        !is_lost
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the load from a thread of its own, and returns the record of it. `progress` is called now and then, with the time since the start.
pub(super) async fn run(
    load: Load,
    recorder: Recorder,
    progress: impl Fn(Duration, &Recorder) + Send + 'static,
) -> anyhow::Result<Recorder> {
    let (sender, done) = oneshot::channel();
    thread::spawn(move || {
        if matches!(load.pace, Pace::Open { .. }) {
            // On Linux this is about the calling thread. Where it is not allowed, the report shows the generator's own delay.
            let _ = setpriority_process(None, NICENESS);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .build();
        let recorder = match runtime {
            Ok(runtime) => runtime.block_on(send_all(load, recorder, progress)),
            Err(error) => Err(error.into()),
        };
        // The command may have ended.
        let _ = sender.send(recorder);
    });
    done.await.context("the load generator panicked")?
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures latencies")]
async fn send_all(
    load: Load,
    recorder: Recorder,
    progress: impl Fn(Duration, &Recorder),
) -> anyhow::Result<Recorder> {
    let Load {
        client,
        request,
        pace,
        length,
    } = load;
    let shared = Arc::new(Shared {
        request,
        start: Instant::now(),
        recorder: Mutex::new(recorder),
    });
    let sending = async {
        match pace {
            Pace::Open {
                schedule,
                connections,
            } => {
                let schedule = schedule.take_while(move |due| *due < length);
                send_open(&client, schedule, connections, &shared).await
            }
            Pace::Closed { clients } => send_closed(&client, clients, length, &shared).await,
        }
    };
    let showing = async {
        let mut ticks = interval(PROGRESS_INTERVAL);
        loop {
            ticks.tick().await;
            progress(shared.now(), &shared.lock());
        }
    };
    let sent: anyhow::Result<()> = tokio::select! {
        sent = sending => sent,
        () = showing => unreachable!("it never ends"),
    };
    sent?;
    let shared = Arc::into_inner(shared).context("a request has not ended")?;
    Ok(shared
        .recorder
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

/// Sends each request when it is due. If all connections are in use, it waits for one, which counts as latency.
async fn send_open(
    client: &InferenceClient,
    schedule: impl Iterator<Item = Duration>,
    connections: usize,
    shared: &Arc<Shared>,
) -> anyhow::Result<()> {
    let alarm = Alarm::new().context("cannot create a timer")?;
    let mut schedule = schedule.peekable();
    let mut waiting = VecDeque::new();
    // The connection that was used last is used first.
    let mut idle: Vec<(LoadConnection, Duration)> = Vec::new();
    let mut opened = 0;
    let mut sending = JoinSet::new();
    loop {
        let now = shared.now();
        while let Some(due) = schedule.next_if(|due| *due <= now) {
            waiting.push_back(due);
        }
        while let Some(&due) = waiting.front() {
            let (mut connection, free) = match idle.pop() {
                Some(idle) => idle,
                None if opened < connections => {
                    opened += 1;
                    (client.load_connection()?, due)
                }
                None => break,
            };
            waiting.pop_front();
            let shared = Arc::clone(shared);
            sending.spawn(async move {
                shared
                    .send(&mut connection, Some(due), Some(due.max(free)))
                    .await;
                (connection, shared.now())
            });
        }
        let next = schedule.peek().map(|due| due.saturating_sub(now));
        if next.is_none() && sending.is_empty() {
            return Ok(());
        }
        tokio::select! {
            rung = alarm.wait(next.unwrap_or_default()), if next.is_some() => rung.context("cannot wait")?,
            Some(ended) = sending.join_next(), if !sending.is_empty() => {
                idle.push(ended.context("sending a request")?);
            }
        }
    }
}

/// Lets each client send until the time is over.
async fn send_closed(
    client: &InferenceClient,
    clients: usize,
    length: Duration,
    shared: &Arc<Shared>,
) -> anyhow::Result<()> {
    let mut sending = JoinSet::new();
    for _ in 0..clients {
        let mut connection = client.load_connection()?;
        let shared = Arc::clone(shared);
        sending.spawn(async move {
            while shared.now() < length {
                if !shared.send(&mut connection, None, None).await {
                    sleep(LOST_PAUSE).await;
                }
            }
        });
    }
    while let Some(ended) = sending.join_next().await {
        ended.context("sending a request")?;
    }
    Ok(())
}

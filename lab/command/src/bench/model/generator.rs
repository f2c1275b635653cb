//! The load generator: sends one encoded request on kept connections, in an open or a closed loop.
//!
//! In an open loop a request is due at a time that was fixed before, and its latency counts from then: neither a slow gateway nor a slow
//! generator can hide behind requests that are sent later ("coordinated omission": G. Tene, "How NOT to measure latency", 2013).
//!
//! Each thread has its part of the load, its own connections and a runtime that looks at its sockets often, because the sending of one
//! piece of a large request takes as long as hundreds of other steps of a task. A thread that sends most of the time is late with requests
//! that are due together; a second one shortens that wait.

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

/// The niceness of an open loop's threads, where the system allows it: what serves the requests, on the same machine, would delay them.
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
    /// The number of threads, of which no more are started than there are connections.
    pub(super) threads: usize,
}

/// One thread's part of a load.
#[derive(Clone, Copy)]
struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// Returns this part of some things. Together the parts are all.
    fn share(self, count: usize) -> usize {
        count / self.of + usize::from(self.number < count % self.of)
    }

    /// Returns this part of a schedule: the requests are dealt in turns.
    fn deal<T>(self, schedule: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        schedule.skip(self.number).step_by(self.of)
    }
}

/// The load, the clock and the record of all tasks.
struct Shared {
    load: Load,
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
        let exchanged = connection.exchange(&self.load.request).await;
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

/// Sends the load from threads of its own, and returns the record of it. `progress` is called now and then, with the time since the start.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures latencies")]
pub(super) async fn run(
    load: Load,
    recorder: Recorder,
    progress: impl Fn(Duration, &Recorder),
) -> anyhow::Result<Recorder> {
    let connections = match load.pace {
        Pace::Open { connections, .. } => connections,
        Pace::Closed { clients } => clients,
    };
    let threads = load.threads.clamp(1, connections.max(1));
    let shared = Arc::new(Shared {
        load,
        start: Instant::now(),
        recorder: Mutex::new(recorder),
    });
    let parts: Vec<_> = (0..threads)
        .map(|number| {
            let part = Part {
                number,
                of: threads,
            };
            start(part, Arc::clone(&shared))
        })
        .collect();
    let sending = async {
        for part in parts {
            part.await.context("the load generator panicked")??;
        }
        anyhow::Ok(())
    };
    let showing = async {
        let mut ticks = interval(PROGRESS_INTERVAL);
        loop {
            ticks.tick().await;
            progress(shared.now(), &shared.lock());
        }
    };
    tokio::select! {
        sent = sending => sent?,
        () = showing => unreachable!("it never ends"),
    };
    let shared = Arc::into_inner(shared).context("a request has not ended")?;
    Ok(shared
        .recorder
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

/// Starts the thread of a part, and returns what tells of its end.
fn start(part: Part, shared: Arc<Shared>) -> oneshot::Receiver<anyhow::Result<()>> {
    let (sender, done) = oneshot::channel();
    thread::spawn(move || {
        if matches!(shared.load.pace, Pace::Open { .. }) {
            // On Linux this is about the calling thread. Where it is not allowed, the report shows the generator's own delay.
            let _ = setpriority_process(None, NICENESS);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .build();
        let sent = match runtime {
            Ok(runtime) => runtime.block_on(send(part, &shared)),
            Err(error) => Err(error.into()),
        };
        drop(shared);
        // The command may have ended.
        let _ = sender.send(sent);
    });
    done
}

/// Sends a part of the load.
async fn send(part: Part, shared: &Arc<Shared>) -> anyhow::Result<()> {
    let Load { client, length, .. } = &shared.load;
    match &shared.load.pace {
        Pace::Open {
            schedule,
            connections,
        } => {
            let due = schedule.clone().take_while(|due| due < length);
            send_open(client, part.deal(due), part.share(*connections), shared).await
        }
        Pace::Closed { clients } => {
            send_closed(client, part.share(*clients), *length, shared).await
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_load_are_all_of_it() {
        for of in 1..6 {
            for count in 0..20 {
                let parts = (0..of).map(|number| Part { number, of });
                let shares: Vec<usize> = parts.clone().map(|part| part.share(count)).collect();
                assert_eq!(shares.iter().sum::<usize>(), count);
                assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
                let mut dealt: Vec<usize> = parts.flat_map(|part| part.deal(0..count)).collect();
                dealt.sort_unstable();
                assert!(dealt.into_iter().eq(0..count));
            }
        }
    }
}

//! The queue before the thread that computes, and the watch over what computes.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use packhorse_wire::FailureKind;

use super::{connection::Reply, now};
use crate::executor::PreparedBatch;

/// Batches that may wait: one computes, the next is there when it is done, and one more may be on its way.
const CAPACITY: usize = 2;

/// A batch with all its inputs.
pub(super) struct Job {
    pub(super) batch: Box<dyn PreparedBatch>,
    pub(super) rows: u32,
    /// From its header to its last byte.
    pub(super) receive: Duration,
    /// When the last byte was there.
    pub(super) received_at: Instant,
    pub(super) reply: Reply,
}

/// What the computing thread gets of a job. The reply stays behind, so that the watchdog can use it.
pub(super) struct Work {
    pub(super) batch: Box<dyn PreparedBatch>,
    pub(super) rows: u32,
    pub(super) receive: Duration,
    pub(super) queue_wait: Duration,
}

/// Jobs from the receiving threads to the computing one.
#[derive(Default)]
pub(super) struct BatchQueue {
    state: Mutex<State>,
    arrived: Condvar,
    left: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: Option<Running>,
    /// A batch hung: nothing will run any more.
    closed: bool,
}

struct Running {
    started: Instant,
    rows: u32,
    reply: Reply,
}

impl BatchQueue {
    /// Waits until there is room.
    pub(super) fn push(&self, job: Job) {
        let full = |state: &mut State| state.waiting.len() >= CAPACITY && !state.closed;
        let mut state = self
            .left
            .wait_while(self.lock(), full)
            .expect("no holder panics");
        if state.closed {
            job.reply
                .failure(FailureKind::TimedOut, BEHIND_A_HUNG_BATCH);
        } else {
            state.waiting.push_back(job);
            self.arrived.notify_one();
        }
    }

    /// Waits for a job and counts it as running until [`BatchQueue::finish`].
    pub(super) fn take(&self) -> Work {
        let nothing = |state: &mut State| state.waiting.is_empty();
        let mut state = self
            .arrived
            .wait_while(self.lock(), nothing)
            .expect("no holder panics");
        let job = state.waiting.pop_front().expect("waited for one");
        self.left.notify_one();
        let started = now();
        state.running = Some(Running {
            started,
            rows: job.rows,
            reply: job.reply,
        });
        Work {
            batch: job.batch,
            rows: job.rows,
            receive: job.receive,
            queue_wait: started.saturating_duration_since(job.received_at),
        }
    }

    /// Where the outcome of the running job goes; `None` if the watchdog gave up on it.
    pub(super) fn finish(&self) -> Option<Reply> {
        Some(self.lock().running.take()?.reply)
    }

    /// Waits for a job that runs longer than `limit`, answers it and all behind it, and says why.
    pub(super) fn watch(&self, limit: Duration) -> String {
        loop {
            let mut state = self.lock();
            let age = state
                .running
                .as_ref()
                .map(|running| now() - running.started);
            let left = limit.saturating_sub(age.unwrap_or_default());
            if !left.is_zero() {
                drop(state);
                // Whatever starts meanwhile is due later than this thread wakes.
                std::thread::sleep(left);
                continue;
            }
            state.closed = true;
            let running = state.running.take().expect("its time is over");
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            self.left.notify_all();
            let (rows, limit) = (running.rows, limit.as_millis());
            let reason = format!("a batch of {rows} was still running after {limit} ms");
            running.reply.failure(FailureKind::TimedOut, &reason);
            for job in waiting {
                job.reply
                    .failure(FailureKind::TimedOut, BEHIND_A_HUNG_BATCH);
            }
            return reason;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

const BEHIND_A_HUNG_BATCH: &str = "waited behind a batch that did not end";

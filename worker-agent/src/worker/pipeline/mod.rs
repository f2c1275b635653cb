//! The pipeline from received batches to answers: the stages, and the watch over the batches in them.
//!
//! Batches keep their order. The number of batches in the stages is limited to those that may be in flight, whichever stages they are
//! in. If the copies of one batch overlap with the computation of another, each stage has a thread of its own and passes a batch on
//! when its work is enqueued on the device; otherwise one thread runs one stage after the other, and short batches are computed by the
//! thread that received them.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    iter,
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::Program;
use packhorse_wire::StageDurations;
use packhorse_worker_agent::handoff::{PipelineSettings, WorkNote};

use crate::{
    clock::now,
    executor::{
        ComputedBatch, Executed, ExecutionError, Executor, LoadedBatch, OutputTensor,
        PreparedBatch, check_outputs,
    },
};

/// The time to compute below which a batch is computed by the thread that received it: to wake another takes a few times 10 µs, and so
/// short a wait does not keep the next batch from being received.
const SHORT: Duration = Duration::from_micros(100);

/// The reply to a batch: the way back to its sender.
pub(crate) trait BatchReply: Send {
    /// Returns false if the sender no longer waits, so that the batch need not be computed.
    fn is_wanted(&self) -> bool;

    /// Sends the outputs.
    fn send_result(self: Box<Self>, outputs: Vec<OutputTensor>, stages: StageDurations);

    /// Sends the failure of the batch.
    fn send_failure(self: Box<Self>, error: ExecutionError);
}

/// A batch whose inputs are complete.
pub(crate) struct ReceivedBatch {
    /// The inputs.
    pub(crate) batch: Box<dyn PreparedBatch>,
    /// The number of rows.
    pub(crate) rows: u32,
    /// The program that the batch is for.
    pub(crate) program: Arc<Program>,
    /// The executor that prepared the batch.
    pub(crate) executor: Arc<dyn Executor>,
    /// The time from the header to the last byte.
    pub(crate) receive: Duration,
    /// The time at which the last byte was received.
    pub(crate) received_at: Instant,
    /// The reply.
    pub(crate) reply: Box<dyn BatchReply>,
}

/// The batches of a worker, from the last byte to the answer.
pub(crate) struct Pipeline {
    settings: PipelineSettings,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while a batch leaves the stages and is answered. Without it the answer to the next, which another thread may compute, could be
    /// sent first.
    answering: Mutex<()>,
}

struct State {
    /// The batches that wait. Their number is limited by the executor's memory for inputs.
    waiting: VecDeque<ReceivedBatch>,
    /// The batches in the stages, in order.
    in_flight: VecDeque<BatchInFlight>,
    /// The time since which the first batch in flight has the device to itself.
    first_since: Instant,
    /// The time that the last batch took to compute.
    last_compute: Option<Duration>,
    phase: Phase,
    /// The reason of [`Phase::Failed`].
    failure: Option<String>,
    /// Where the model is noted whose batch began last, for whoever finds the process crashed.
    note: Option<WorkNote>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Batches are accepted and computed.
    Open,
    /// The batches that have been accepted are computed.
    Closing,
    /// Nothing is computed any more, because a batch did not end.
    Hung,
    /// Nothing is computed any more, because the device failed.
    Failed,
}

/// The part of a batch that is kept here while it is in the stages, so that the watch can answer it.
struct BatchInFlight {
    rows: u32,
    program: Arc<Program>,
    executor: Arc<dyn Executor>,
    receive: Duration,
    received_at: Instant,
    reply: Box<dyn BatchReply>,
}

/// The failure of the device. Batches in flight, and those received before the process ends, are not answered: their gateways notice the
/// closed connection and send them to another replica.
#[derive(Debug, thiserror::Error)]
#[error("the device failed: {0}")]
pub(crate) struct DeviceFailed(pub(crate) String);

impl Pipeline {
    /// Creates an open pipeline, which computes nothing until [`Pipeline::run`]. With a note, it says there for which model it computes.
    pub(crate) fn new(settings: PipelineSettings, note: Option<WorkNote>) -> Self {
        Self {
            settings,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                in_flight: VecDeque::new(),
                first_since: now(),
                last_compute: None,
                phase: Phase::Open,
                failure: None,
                note,
            }),
            changed: Condvar::new(),
            answering: Mutex::new(()),
        }
    }

    /// Accepts a batch. If none is before it, and it is expected to take less time than to wake the computing thread, it is computed here.
    pub(crate) fn push_or_run(&self, batch: ReceivedBatch) {
        let mut state = self.lock();
        let is_short = state.last_compute.is_some_and(|time| time < SHORT);
        let is_free = state.waiting.is_empty() && state.in_flight.is_empty();
        if self.settings.streams || !is_short || !is_free || state.phase != Phase::Open {
            drop(state);
            return self.push(batch);
        }
        let batch = state.begin(batch);
        drop(state);
        // A failure of the device ends the computing thread, too, which reports it.
        let _ = self.answer_first(batch.run());
        if !self.lock().waiting.is_empty() {
            self.changed.notify_all();
        }
    }

    /// Accepts a batch.
    pub(crate) fn push(&self, batch: ReceivedBatch) {
        let mut state = self.lock();
        match state.phase {
            Phase::Open | Phase::Closing => {
                state.waiting.push_back(batch);
                // The thread that wakes needs the lock.
                drop(state);
                self.changed.notify_all();
            }
            Phase::Hung => {
                drop(state);
                batch.reply.send_failure(behind_a_hung_batch());
            }
            // Like the batches in flight, it gets no answer.
            Phase::Failed => {}
        }
    }

    /// Ends the pipeline after the batches that have been accepted.
    pub(crate) fn close(&self) {
        self.lock().phase = Phase::Closing;
        self.changed.notify_all();
    }

    /// Computes batches until there will be no more, those that wait together where their executor takes less time so. Should be called on the
    /// thread on which the executors are started.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn run(&self) -> Result<(), DeviceFailed> {
        if !self.settings.streams {
            while let Some((batch, executor)) = self.next_batch() {
                let more = self.more_batches(executor.most_rows_together());
                if more.is_empty() {
                    self.answer_first(batch.run())?;
                    continue;
                }
                let batches = iter::once(batch).chain(more).collect();
                for outcome in executor.run_together(batches) {
                    self.answer_first(outcome)?;
                }
            }
            let failure = self.lock().failure.take();
            return failure.map_or(Ok(()), |reason| Err(DeviceFailed(reason)));
        }
        let capacity = self.settings.in_flight as usize;
        let (load_sender, loaded) = mpsc::sync_channel(capacity);
        let (compute_sender, computed) = mpsc::sync_channel::<Result<_, _>>(capacity);
        thread::scope(|scope| {
            scope.spawn(move || {
                while let Some((batch, _)) = self.next_batch() {
                    if load_sender.send(batch.copy_in()).is_err() {
                        return;
                    }
                }
            });
            let copy_out = scope.spawn(move || {
                for batch in computed {
                    let outcome = batch.and_then(|batch: Box<dyn ComputedBatch>| batch.copy_out());
                    self.answer_first(outcome)?;
                }
                Ok(())
            });
            for batch in loaded {
                let computed = batch.and_then(|batch: Box<dyn LoadedBatch>| batch.compute());
                if compute_sender.send(computed).is_err() {
                    break;
                }
            }
            drop(compute_sender);
            copy_out
                .join()
                .expect("a stage that panics ends the process")
        })
    }

    /// Waits for a batch, and for room for it in the stages. Returns `None` if there will be none.
    fn next_batch(&self) -> Option<(Box<dyn PreparedBatch>, Arc<dyn Executor>)> {
        let limit = if self.settings.streams {
            self.settings.in_flight as usize
        } else {
            1
        };
        let must_wait = |state: &mut State| {
            state.waiting.retain(|batch| batch.reply.is_wanted());
            match state.phase {
                Phase::Open => state.waiting.is_empty() || state.in_flight.len() >= limit,
                Phase::Closing => !state.waiting.is_empty() && state.in_flight.len() >= limit,
                Phase::Hung | Phase::Failed => false,
            }
        };
        let mut state = self
            .changed
            .wait_while(self.lock(), must_wait)
            .expect("no holder panics");
        let received = state.waiting.pop_front()?;
        let executor = Arc::clone(&received.executor);
        Some((state.begin(received), executor))
    }

    /// Returns the batches that wait and can be computed together with those in flight, as long as they have at most this many rows. An executor
    /// that runs batches together has the pipeline to itself and those that were started with it.
    fn more_batches(&self, most_rows: u32) -> Vec<Box<dyn PreparedBatch>> {
        let mut state = self.lock();
        let mut rows: u32 = state.in_flight.iter().map(|batch| batch.rows).sum();
        let mut more = Vec::new();
        while let Some(next) = state.waiting.front() {
            rows = rows.saturating_add(next.rows);
            if rows > most_rows {
                break;
            }
            let received = state.waiting.pop_front().expect("there is a first");
            more.push(state.begin(received));
        }
        more
    }

    /// Answers the first batch in flight.
    fn answer_first(&self, outcome: Result<Executed, ExecutionError>) -> Result<(), DeviceFailed> {
        let _in_order = self.answering.lock().expect("no holder panics");
        let first = {
            let mut state = self.lock();
            state.first_since = now();
            state.last_compute = outcome.as_ref().ok().map(|executed| executed.compute);
            let first = state.in_flight.pop_front();
            if let Some(note) = state.note.as_ref().filter(|_| state.in_flight.is_empty()) {
                note.end();
            }
            first
        };
        // Without streams this thread is the one that would wait for room.
        if self.settings.streams {
            self.changed.notify_all();
        }
        let Some(batch) = first else {
            // The watch has already answered it.
            return Ok(());
        };
        let checked = outcome.and_then(|executed| {
            check_outputs(&batch.program, batch.rows, &executed.outputs)?;
            Ok(executed)
        });
        match checked {
            Ok(executed) => {
                let stages = batch.stages(&executed);
                batch.reply.send_result(executed.outputs, stages);
            }
            Err(ExecutionError::DeviceFailed(reason)) => {
                let mut state = self.lock();
                state.failure = Some(reason.clone());
                drop(self.stop(&mut state, Phase::Failed));
                return Err(DeviceFailed(reason));
            }
            Err(error) => {
                if matches!(error, ExecutionError::OutOfMemory(_)) {
                    batch.executor.release_memory();
                }
                batch.reply.send_failure(error);
            }
        }
        Ok(())
    }

    /// Ends the pipeline, and returns the batches that will not be computed.
    fn stop(
        &self,
        state: &mut State,
        phase: Phase,
    ) -> (VecDeque<BatchInFlight>, VecDeque<ReceivedBatch>) {
        state.phase = phase;
        self.changed.notify_all();
        let in_flight = std::mem::take(&mut state.in_flight);
        (in_flight, std::mem::take(&mut state.waiting))
    }

    /// Waits for a batch that has the device to itself for longer than `limit`, and answers it and all batches behind it. Returns the
    /// reason.
    pub(crate) fn watch(&self, limit: Duration) -> String {
        let (mut in_flight, waiting) = loop {
            let mut state = self.lock();
            let first = state.in_flight.front();
            let age = first.map(|_| now() - state.first_since);
            let left = limit.saturating_sub(age.unwrap_or_default());
            if left.is_zero() {
                break self.stop(&mut state, Phase::Hung);
            }
            drop(state);
            // A batch that becomes the first meanwhile reaches the limit after this thread wakes.
            thread::sleep(left);
        };
        let hung = in_flight.pop_front().expect("its time is over");
        let reason = format!(
            "a batch of {} was still running after {} ms",
            hung.rows,
            limit.as_millis()
        );
        hung.reply
            .send_failure(ExecutionError::TimedOut(reason.clone()));
        let behind = in_flight.into_iter().map(|batch| batch.reply);
        for reply in behind.chain(waiting.into_iter().map(|batch| batch.reply)) {
            reply.send_failure(behind_a_hung_batch());
        }
        reason
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    /// Puts a batch into the stages.
    fn begin(&mut self, received: ReceivedBatch) -> Box<dyn PreparedBatch> {
        if self.in_flight.is_empty() {
            self.first_since = now();
        }
        if let Some(note) = &self.note {
            note.begin(&received.program.model);
        }
        self.in_flight.push_back(BatchInFlight {
            rows: received.rows,
            program: received.program,
            executor: received.executor,
            receive: received.receive,
            received_at: received.received_at,
            reply: received.reply,
        });
        received.batch
    }
}

impl BatchInFlight {
    fn stages(&self, executed: &Executed) -> StageDurations {
        let Executed {
            copy_in,
            compute,
            copy_out,
            ..
        } = *executed;
        let since = now().saturating_duration_since(self.received_at);
        StageDurations {
            receive: self.receive,
            queue_wait: since.saturating_sub(copy_in + compute + copy_out),
            copy_in,
            compute,
            copy_out,
        }
    }
}

fn behind_a_hung_batch() -> ExecutionError {
    ExecutionError::NotBegun("waited behind a batch that did not end".to_owned())
}

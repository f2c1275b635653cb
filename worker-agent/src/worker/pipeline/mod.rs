//! From received batches to answers: the stages, and the watch over what is in them.
//!
//! Batches keep their order. So many as may be in flight are in the stages at a time, whichever those are: where the copies of one
//! batch overlap with the computing of another, every stage has a thread of its own and hands on what it has told the device;
//! otherwise one thread does one stage after the other.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, mpsc},
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::Program;
use packhorse_wire::{FailureKind, StageDurations};
use packhorse_worker_agent::handoff;

use super::now;
use crate::executor::{
    ComputedBatch, Executed, ExecutionError, Executor, LoadedBatch, OutputTensor, PreparedBatch,
    check_outputs,
};

/// Who sent a batch, and waits for the answer.
pub(super) trait Sender: Send {
    /// Whether there is still somebody: a batch that is no longer wanted is not computed.
    fn is_there(&self) -> bool;

    /// Answers with the outputs.
    fn result(self: Box<Self>, outputs: Vec<OutputTensor>, stages: StageDurations);

    /// Answers that there are none.
    fn failure(self: Box<Self>, kind: FailureKind, message: &str);
}

/// A batch with all its inputs.
pub(super) struct Job {
    pub(super) batch: Box<dyn PreparedBatch>,
    pub(super) rows: u32,
    /// From its header to its last byte.
    pub(super) receive: Duration,
    /// When the last byte was there.
    pub(super) received_at: Instant,
    pub(super) sender: Box<dyn Sender>,
}

/// The batches of a worker, from the last byte to the answer.
pub(super) struct Pipeline {
    options: handoff::PipelineSettings,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// How many there are is limited by the executor's memory for inputs.
    waiting: VecDeque<Job>,
    /// In the stages, in order.
    running: VecDeque<Running>,
    /// Since when the first of those has the device to itself.
    first_since: Instant,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// What is there is computed, and then no more.
    Closing,
    /// Nothing will be computed any more: a batch did not end.
    Hung,
    /// The same: the device has failed.
    Failed,
}

/// What is kept of a job while its batch is in the stages. The sender stays here, so that the watch can answer.
struct Running {
    rows: u32,
    receive: Duration,
    received_at: Instant,
    sender: Box<dyn Sender>,
}

/// The device computes nothing any more. What was in flight, or comes until the process ends, is not answered: its gateways find
/// that out with the connection, and send it elsewhere.
#[derive(Debug)]
pub(super) struct DeviceFailed(pub(super) String);

impl Pipeline {
    pub(super) fn new(options: handoff::PipelineSettings) -> Self {
        Self {
            options,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                running: VecDeque::new(),
                first_since: now(),
                phase: Phase::Open,
            }),
            changed: Condvar::new(),
        }
    }

    /// Has a batch computed.
    pub(super) fn push(&self, job: Job) {
        let mut state = self.lock();
        match state.phase {
            Phase::Open | Phase::Closing => {
                state.waiting.push_back(job);
                self.changed.notify_all();
            }
            Phase::Hung => {
                drop(state);
                let sender = job.sender;
                sender.failure(FailureKind::TimedOut, BEHIND_A_HUNG_BATCH);
            }
            // As what was in flight: no answer.
            Phase::Failed => {}
        }
    }

    /// Computes what there is, and then no more.
    pub(super) fn close(&self) {
        self.lock().phase = Phase::Closing;
        self.changed.notify_all();
    }

    /// Computes batches until there will be no more. To be called on the thread on which the executor was started.
    pub(super) fn run(
        &self,
        executor: &dyn Executor,
        program: &Program,
    ) -> Result<(), DeviceFailed> {
        if !self.options.streams {
            while let Some(batch) = self.take() {
                self.finish(batch.run(), executor, program)?;
            }
            return Ok(());
        }
        let capacity = self.options.in_flight as usize;
        let (load, loaded) = mpsc::sync_channel(capacity);
        let (hand_on, computed) = mpsc::sync_channel::<Result<_, _>>(capacity);
        thread::scope(|scope| {
            scope.spawn(move || {
                while let Some(batch) = self.take() {
                    if load.send(batch.copy_in()).is_err() {
                        return;
                    }
                }
            });
            let copy_out = scope.spawn(move || {
                for batch in computed {
                    let outcome = batch.and_then(|batch: Box<dyn ComputedBatch>| batch.copy_out());
                    self.finish(outcome, executor, program)?;
                }
                Ok(())
            });
            for batch in loaded {
                let computed = batch.and_then(|batch: Box<dyn LoadedBatch>| batch.compute());
                if hand_on.send(computed).is_err() {
                    break;
                }
            }
            drop(hand_on);
            copy_out
                .join()
                .expect("a stage that panics ends the process")
        })
    }

    /// Waits for a batch, and for room for it in the stages; `None` if there will be none.
    fn take(&self) -> Option<Box<dyn PreparedBatch>> {
        let in_flight = self.options.in_flight as usize;
        let nothing = |state: &mut State| {
            state.waiting.retain(|job| job.sender.is_there());
            match state.phase {
                Phase::Open => state.waiting.is_empty() || state.running.len() >= in_flight,
                Phase::Closing => !state.waiting.is_empty() && state.running.len() >= in_flight,
                Phase::Hung | Phase::Failed => false,
            }
        };
        let mut state = self
            .changed
            .wait_while(self.lock(), nothing)
            .expect("no holder panics");
        let job = state.waiting.pop_front()?;
        if state.running.is_empty() {
            state.first_since = now();
        }
        state.running.push_back(Running {
            rows: job.rows,
            receive: job.receive,
            received_at: job.received_at,
            sender: job.sender,
        });
        Some(job.batch)
    }

    /// Answers the first of the batches in the stages.
    fn finish(
        &self,
        outcome: Result<Executed, ExecutionError>,
        executor: &dyn Executor,
        program: &Program,
    ) -> Result<(), DeviceFailed> {
        let first = {
            let mut state = self.lock();
            state.first_since = now();
            state.running.pop_front()
        };
        self.changed.notify_all();
        let Some(batch) = first else {
            // The watch gave up on it.
            return Ok(());
        };
        let checked = outcome.and_then(|executed| {
            check_outputs(program, batch.rows, &executed.outputs)?;
            Ok(executed)
        });
        let error = match checked {
            Ok(executed) => {
                let stages = batch.stages(&executed);
                batch.sender.result(executed.outputs, stages);
                return Ok(());
            }
            Err(error) => error,
        };
        let kind = match &error {
            ExecutionError::ModuleThrew(_) => FailureKind::ModuleThrew,
            ExecutionError::WrongOutput(_) => FailureKind::WrongOutput,
            ExecutionError::OutOfMemory(_) => {
                executor.release_memory();
                FailureKind::OutOfMemory
            }
            ExecutionError::DeviceFailed(reason) => {
                drop(self.stop(&mut self.lock(), Phase::Failed));
                return Err(DeviceFailed(reason.clone()));
            }
        };
        batch.sender.failure(kind, &error.to_string());
        Ok(())
    }

    /// Gives up what is there: nobody will compute it.
    fn stop(&self, state: &mut State, phase: Phase) -> (VecDeque<Running>, VecDeque<Job>) {
        state.phase = phase;
        self.changed.notify_all();
        let running = std::mem::take(&mut state.running);
        (running, std::mem::take(&mut state.waiting))
    }

    /// Waits for a batch that has the device to itself for longer than `limit`, answers it and all behind it, and says why.
    pub(super) fn watch(&self, limit: Duration) -> String {
        let (mut running, waiting) = loop {
            let mut state = self.lock();
            let first = state.running.front();
            let age = first.map(|_| now() - state.first_since);
            let left = limit.saturating_sub(age.unwrap_or_default());
            if left.is_zero() {
                break self.stop(&mut state, Phase::Hung);
            }
            drop(state);
            // Whatever becomes the first meanwhile is due later than this thread wakes.
            thread::sleep(left);
        };
        let hung = running.pop_front().expect("its time is over");
        let (rows, limit) = (hung.rows, limit.as_millis());
        let reason = format!("a batch of {rows} was still running after {limit} ms");
        hung.sender.failure(FailureKind::TimedOut, &reason);
        let behind = running.into_iter().map(|running| running.sender);
        for sender in behind.chain(waiting.into_iter().map(|job| job.sender)) {
            sender.failure(FailureKind::TimedOut, BEHIND_A_HUNG_BATCH);
        }
        reason
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl Running {
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

const BEHIND_A_HUNG_BATCH: &str = "waited behind a batch that did not end";

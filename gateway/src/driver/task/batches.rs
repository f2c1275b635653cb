//! Batches on their way: out to a worker, and back to the requests they were made of.

use std::{sync::Arc, time::Duration};

use packhorse_cluster::Time;
use packhorse_serving::{BatchId, Event, ReplicaKey, RequestId};
use packhorse_wire::{BatchHeader, FailureKind, StageDurations};

use super::{Driver, Pending};
use crate::{
    driver::{
        batch::{assemble, split},
        catalog::ServedModel,
        request::OutputRows,
        turns::Turn,
    },
    telemetry::BatchTimes,
    workers::{BatchEnd, OutgoingBatch},
};

/// A batch that a worker has.
pub(super) struct InFlight {
    model: Arc<ServedModel>,
    pub(super) replica: ReplicaKey,
    /// The requests in their order, with the rows of each. Some may have been cancelled since.
    requests: Vec<(RequestId, u32)>,
    dispatched: Time,
    /// For how long it waited here for its turn on the device.
    held: Duration,
}

impl Driver {
    pub(super) fn dispatch(
        &mut self,
        now: Time,
        id: BatchId,
        replica: ReplicaKey,
        requests: &[RequestId],
    ) {
        let pending: Vec<&Pending> = requests
            .iter()
            .map(|request| &self.requests[request])
            .collect();
        let model = Arc::clone(&pending[0].submission.model);
        let rows: Vec<u32> = pending
            .iter()
            .map(|pending| pending.submission.rows)
            .collect();
        let full = pending
            .iter()
            .map(|pending| pending.arrived)
            .max()
            .unwrap_or(now);
        for pending in &pending {
            model.telemetry.dispatched(
                now.saturating_since(pending.arrived),
                now.saturating_since(full),
            );
        }
        let inputs: Vec<_> = pending
            .iter()
            .map(|pending| pending.submission.inputs.as_slice())
            .collect();
        let all_rows = rows.iter().sum();
        let assembled = assemble(&model.spec.program, all_rows, &inputs);
        self.count_pending(&model);
        let requests = requests.iter().copied().zip(rows).collect();
        self.batches.insert(
            id,
            InFlight {
                model,
                replica,
                requests,
                dispatched: now,
                held: Duration::ZERO,
            },
        );
        match assembled {
            Ok(inputs) => {
                let header = BatchHeader {
                    id: packhorse_wire::BatchId(id.0),
                    rows: all_rows,
                    inputs: inputs.headers,
                };
                let turn = Turn {
                    replica,
                    batch: id,
                    outgoing: OutgoingBatch {
                        header,
                        payload: inputs.payload,
                    },
                };
                let turn = match self.replicas.takes_turns_on(replica) {
                    Some(device) => self.turns.ask(device, turn),
                    None => Some(turn),
                };
                self.take_turn(now, turn);
            }
            Err(error) => self.fail(now, id, &error.to_string()),
        }
    }

    /// Sends the batch whose turn has come, if there is one.
    pub(super) fn take_turn(&mut self, now: Time, turn: Option<Turn<OutgoingBatch>>) {
        let Some(turn) = turn else { return };
        if let Some(batch) = self.batches.get_mut(&turn.batch) {
            batch.held = now.saturating_since(batch.dispatched);
        }
        self.replicas.send(turn.replica, turn.outgoing);
    }

    pub(super) fn batch_ended(&mut self, now: Time, id: BatchId, end: BatchEnd) {
        let next = self.turns.ended(id);
        self.take_turn(now, next);
        match end {
            BatchEnd::Done { outputs, stages } => {
                let Some(batch) = self.batches.get(&id) else {
                    return;
                };
                let rows: Vec<u32> = batch.requests.iter().map(|(_, rows)| *rows).collect();
                match split(&batch.model.spec.program, &rows, &outputs) {
                    Ok(outputs) => self.answer(now, id, outputs, stages),
                    Err(error) => self.fail(now, id, &error.to_string()),
                }
            }
            BatchEnd::Failed {
                kind: FailureKind::OutOfMemory,
                message,
            } if self.may_be_smaller(id) => self.give_back(now, id, &message),
            BatchEnd::Failed { kind, message } => {
                let what = match kind {
                    FailureKind::ModuleThrew => "the model threw",
                    FailureKind::WrongOutput => "the model answered what it does not declare",
                    FailureKind::TimedOut => "the model took too long",
                    FailureKind::OutOfMemory => "there was no memory for the batch",
                };
                self.fail(now, id, &format!("{what}: {message}"));
            }
        }
    }

    fn answer(
        &mut self,
        now: Time,
        id: BatchId,
        outputs: Vec<Vec<OutputRows>>,
        stages: StageDurations,
    ) {
        let batch = self.batches.remove(&id).expect("the caller has found it");
        let StageDurations {
            receive: _,
            queue_wait,
            copy_in,
            compute,
            copy_out,
        } = stages;
        let rows: u32 = batch.requests.iter().map(|(_, rows)| *rows).sum();
        let times = BatchTimes {
            away: now.saturating_since(batch.dispatched),
            worker_queue: queue_wait + batch.held,
            copy_in,
            compute,
            copy_out,
        };
        batch
            .model
            .telemetry
            .computed(now, batch.requests.len() as u64, u64::from(rows), times);
        self.replicas.computed(batch.replica, rows, compute);
        for ((request, _), outputs) in batch.requests.into_iter().zip(outputs) {
            // Not there: it was cancelled while it was computed.
            if let Some(pending) = self.end(request) {
                let _ = pending.answer.send(Ok(outputs));
            }
        }
        self.tell(
            now,
            Event::BatchDone {
                batch: id,
                queue_wait: times.worker_queue,
                compute,
            },
        );
    }

    /// Whether there are several requests in the batch.
    fn may_be_smaller(&self, id: BatchId) -> bool {
        let batch = self.batches.get(&id);
        batch.is_some_and(|batch| batch.requests.len() > 1)
    }

    /// A batch was too large for the memory there is: its requests go in smaller ones.
    fn give_back(&mut self, now: Time, id: BatchId, reason: &str) {
        let Some(batch) = self.batches.remove(&id) else {
            return;
        };
        let rows = batch.requests.iter().map(|(_, rows)| rows).sum();
        tracing::warn!(model.name = %batch.model.id(), batch.size = rows, reason, "a batch is tried again in smaller ones");
        let smaller = self.replicas.lacked_memory(batch.replica, rows);
        self.bear(now, smaller);
        self.tell(now, Event::BatchReturned { batch: id });
    }

    fn fail(&mut self, now: Time, id: BatchId, reason: &str) {
        let Some(batch) = self.batches.remove(&id) else {
            return;
        };
        tracing::warn!(model.name = %batch.model.id(), batch.requests = batch.requests.len(), reason, "a batch failed");
        let reason: Arc<str> = Arc::from(reason);
        for (request, _) in &batch.requests {
            if let Some(pending) = self.requests.get_mut(request) {
                pending.failure = Some(Arc::clone(&reason));
            }
        }
        self.tell(now, Event::BatchFailed { batch: id });
    }
}

//! Batches on their way: out to a worker, and back to the requests they were made of.

use std::sync::Arc;

use packhorse_cluster::Time;
use packhorse_serving::{BatchId, Event, ReplicaKey, RequestId};
use packhorse_wire::{BatchHeader, FailureKind, StageDurations};

use super::{Driver, Pending};
use crate::{
    driver::{
        batch::{assemble, split},
        catalog::ServedModel,
        request::OutputRows,
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
            },
        );
        match assembled {
            Ok(inputs) => {
                let id = packhorse_wire::BatchId(id.0);
                let header = BatchHeader {
                    id,
                    rows: all_rows,
                    inputs: inputs.headers,
                };
                self.replicas.send(
                    replica,
                    OutgoingBatch {
                        header,
                        payload: inputs.payload,
                    },
                );
            }
            Err(error) => self.fail(now, id, &error.to_string()),
        }
    }

    pub(super) fn batch_ended(&mut self, now: Time, id: BatchId, end: BatchEnd) {
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
            worker_queue: queue_wait,
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
        self.tell(now, Event::BatchDone { batch: id, compute });
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

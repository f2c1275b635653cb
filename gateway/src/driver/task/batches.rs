//! The driver's handling of batches: to a worker, and back to their requests.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use packhorse_cluster::Time;
use packhorse_serving::{BatchError, BatchKey, Event, ReplicaKey, RequestKey};
use packhorse_wire::{
    BatchHeader, BatchId, FailureHeader, FailureKind, ResultHeader, StageDurations,
};

use super::{
    Driver,
    pending::{InFlightBatch, PendingRequest},
};
use crate::{
    driver::{
        batch::{OutputRows, assemble, split},
        batch_failure::BatchFailure,
        failure_log::FailedBatch,
        request::AnsweredRequest,
        requested_model::RequestedModel,
        served_model::ServedModel,
    },
    telemetry::{BatchOutcome, BatchStages, BatchTimes, Waits},
    workers::OutgoingBatch,
};

impl Driver {
    pub(super) fn dispatch(
        &mut self,
        now: Time,
        batch: BatchKey,
        replica: ReplicaKey,
        requests: &[RequestKey],
    ) {
        let requests = &*self.in_row_order(replica, requests);
        let pending: Vec<&PendingRequest> = requests
            .iter()
            .map(|request| &self.requests[request])
            .collect();
        let model = self.model_of(replica, &pending[0].submission.requested);
        let rows: Vec<u32> = pending
            .iter()
            .map(|pending| pending.submission.rows)
            .collect();
        let last_arrival = pending
            .iter()
            .map(|pending| pending.arrived)
            .max()
            .unwrap_or(now);
        let loaded = self.loaded.get(&replica).copied().unwrap_or(Time::ZERO);
        for pending in &pending {
            let waits = Waits::new(pending.arrived, loaded, last_arrival, now);
            model.telemetry.record_dispatch(waits);
        }
        let inputs: Vec<_> = pending
            .iter()
            .map(|pending| pending.submission.inputs.as_slice())
            .collect();
        let all_rows = rows.iter().sum();
        let assembled = assemble(&model.spec.program, all_rows, &inputs);
        for request in requests {
            if let Some(pending) = self.requests.get_mut(request) {
                pending.model = Some(Arc::clone(&model));
            }
        }
        self.update_queue_length(now, &model);
        if let Ok(inputs) = &assembled {
            let (program, shapes) = (&model.spec.program, &model.telemetry.shapes);
            shapes.count(program, all_rows, &inputs.headers);
        }
        let requests = requests.iter().copied().zip(rows).collect();
        self.batches.insert(
            batch,
            InFlightBatch {
                model,
                replica,
                requests,
                dispatched: now,
                last_arrival,
                loaded,
            },
        );
        match assembled {
            Ok(inputs) => {
                let header = BatchHeader {
                    id: BatchId(batch.0),
                    rows: all_rows,
                    inputs: inputs.headers,
                };
                let outgoing = OutgoingBatch {
                    header,
                    payload: inputs.payload,
                };
                if let Some(batches) = self.links.batches_mut(replica) {
                    batches.send(outgoing);
                }
            }
            Err(error) => self.fail_batch(now, batch, error.into(), BatchError::Rejected),
        }
    }

    /// Returns the requests of a batch in the order that their rows shall have: inputs that lie side by side in memory that is shared with
    /// the worker are then one range, which need not be gathered.
    fn in_row_order<'a>(
        &mut self,
        replica: ReplicaKey,
        requests: &'a [RequestKey],
    ) -> Cow<'a, [RequestKey]> {
        let batches = self.links.batches_mut(replica);
        let shares_memory = batches.is_some_and(|batches| batches.shares_memory());
        if requests.len() == 1 || !shares_memory {
            return Cow::Borrowed(requests);
        }
        let mut requests = requests.to_vec();
        requests.sort_by_cached_key(|request| self.requests[request].submission.address());
        Cow::Owned(requests)
    }

    /// Returns the model of a replica that a request is sent to, which is the requested one, or another variant of the requested family.
    fn model_of(&self, replica: ReplicaKey, requested: &RequestedModel) -> Arc<ServedModel> {
        let key = self.links.model(replica);
        let mut models = requested.models();
        let model = models.find(|model| Some(model.key) == key);
        Arc::clone(model.unwrap_or(&requested.model))
    }

    /// Handles a worker's result of a batch, which its link reported at `sent`; `payload` has the bytes of each output.
    pub(super) fn batch_computed(
        &mut self,
        now: Time,
        sent: Time,
        result: ResultHeader,
        payload: Vec<Bytes>,
    ) {
        let key = BatchKey(result.id.0);
        let Some(batch) = self.batches.get(&key) else {
            return;
        };
        let rows: Vec<u32> = batch.requests.iter().map(|(_, rows)| *rows).collect();
        // The whole result stays in memory for as long as any of its rows do.
        let mut memory = batch.model.memory.reservation();
        memory.force(payload.iter().map(|output| output.len() as u64).sum());
        let memory = Arc::new(memory);
        let payload = payload.into_iter().map(|output| memory.hold(output));
        let outputs: Vec<_> = result.outputs.into_iter().zip(payload).collect();
        let outputs = split(&batch.model.spec.program, &rows, &outputs);
        self.answer(now, sent, key, outputs, result.stages);
    }

    /// Handles a worker's failure of a batch.
    pub(super) fn batch_failed(&mut self, now: Time, failure: FailureHeader) {
        let FailureHeader { id, kind, message } = failure;
        let key = BatchKey(id.0);
        let error = match kind {
            FailureKind::OutOfMemory if self.has_several_requests(key) => {
                return self.return_batch(now, key, &message);
            }
            FailureKind::OutOfMemory => BatchError::Rejected,
            FailureKind::ModuleThrew | FailureKind::WrongOutput => BatchError::ModelFailed,
            FailureKind::TimedOut => BatchError::TimedOut,
            FailureKind::NotBegun => BatchError::NotBegun,
        };
        self.fail_batch(now, key, BatchFailure::Worker { kind, message }, error);
    }

    fn answer(
        &mut self,
        now: Time,
        sent: Time,
        key: BatchKey,
        outputs: Vec<Vec<OutputRows>>,
        stages: StageDurations,
    ) {
        let batch = self.batches.remove(&key).expect("the caller has found it");
        let StageDurations {
            receive: _,
            queue_wait,
            copy_in,
            compute,
            copy_out,
        } = stages;
        let rows = batch.rows();
        let times = BatchTimes {
            round_trip: sent.saturating_since(batch.dispatched),
            result_inbox: now.saturating_since(sent),
            worker_queue: queue_wait,
            copy_in,
            compute,
            copy_out,
        };
        let identity = batch.identity(key);
        let telemetry = &batch.model.telemetry;
        let stages = telemetry.record_batch(now, identity, times);
        let ended = identity.ended(times.round_trip, BatchOutcome::Computed);
        batch.model.load.record_answered(now, batch.requests.len());
        self.links.count_batch(batch.replica, rows, compute);
        for ((request, _), outputs) in batch.requests.iter().zip(outputs) {
            // A request that was cancelled while it was computed is no longer there.
            if let Some(pending) = self.remove_request(*request) {
                let course = batch.course(ended, &pending, stages);
                let model = Arc::clone(&batch.model);
                pending.end(Ok(AnsweredRequest {
                    model,
                    outputs,
                    course,
                }));
            }
        }
        self.handle_event(
            now,
            Event::BatchCompleted {
                batch: key,
                queue_wait,
                compute,
            },
        );
    }

    fn has_several_requests(&self, batch: BatchKey) -> bool {
        let batch = self.batches.get(&batch);
        batch.is_some_and(|batch| batch.requests.len() > 1)
    }

    /// Returns a batch that was too large for the worker's memory to the engine, which sends its requests in smaller ones.
    fn return_batch(&mut self, now: Time, key: BatchKey, reason: &str) {
        let Some(batch) = self.batches.remove(&key) else {
            return;
        };
        self.record_failed(now, key, &batch);
        self.log_failure(now, &batch, reason);
        self.handle_event(
            now,
            Event::BatchFailed {
                batch: key,
                error: BatchError::TooLarge,
            },
        );
    }

    /// Ends a batch without outputs. The engine decides which of its requests fail with it.
    fn fail_batch(&mut self, now: Time, key: BatchKey, failure: BatchFailure, error: BatchError) {
        let Some(batch) = self.batches.remove(&key) else {
            return;
        };
        self.log_failure(now, &batch, &failure.to_string());
        self.record_failed(now, key, &batch);
        if error == BatchError::ModelFailed {
            self.links.batch_failed(batch.replica, failure.to_string());
        }
        // What failed a batch of several requests may be about the data of any of them: none gets to read it.
        if let [(request, _)] = batch.requests[..]
            && let Some(pending) = self.requests.get_mut(&request)
        {
            pending.failure = Some(Arc::new(failure));
        }
        self.handle_event(now, Event::BatchFailed { batch: key, error });
        self.update_queue_length(now, &batch.model);
    }

    fn log_failure(&mut self, now: Time, batch: &InFlightBatch, reason: &str) {
        let failed = FailedBatch {
            model: batch.model.id().clone(),
            replica: self.replica_name(batch.replica),
            requests: batch.requests.len(),
            rows: batch.rows(),
            reason: reason.to_owned(),
        };
        self.failure_log.record(now, failed);
    }

    /// Forgets the batches of a lost replica.
    pub(super) fn lose_batches(&mut self, now: Time, replica: ReplicaKey) {
        let lost = self.batches.extract_if(|_, batch| batch.replica == replica);
        for (key, batch) in lost.collect::<Vec<_>>() {
            self.record_failed(now, key, &batch);
        }
    }

    /// Records a batch that did not come back, also with its requests, in case they end without another one.
    fn record_failed(&mut self, now: Time, key: BatchKey, batch: &InFlightBatch) {
        let identity = batch.identity(key);
        let after = now.saturating_since(batch.dispatched);
        batch.model.telemetry.record_failed_batch(identity, after);
        let ended = identity.ended(after, BatchOutcome::Failed);
        for (request, _) in &batch.requests {
            if let Some(pending) = self.requests.get_mut(request) {
                let stages = BatchStages::default();
                pending.course = batch.course(ended, pending, stages);
            }
        }
    }
}

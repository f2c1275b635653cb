//! The engine's batches: dispatch, and the ends of their requests.

use packhorse_cluster::Time;

use super::{DispatchedBatch, Engine, RequestLocation};
use crate::{
    Action, BatchKey, ModelKey, ReplicaKey, RequestOutcome,
    queue::{QueuedRequest, Ticket},
    replica::WorkerTimes,
};

impl Engine {
    pub(super) fn dispatch(
        &mut self,
        now: Time,
        model_key: ModelKey,
        replica_key: ReplicaKey,
        tickets: &[Ticket],
    ) {
        let id = BatchKey(self.next_batch);
        self.next_batch += 1;
        let model = self.model_mut(model_key);
        let requests: Vec<QueuedRequest> = tickets
            .iter()
            .map(|&ticket| {
                model
                    .queue
                    .remove(ticket)
                    .expect("a discipline dispatches waiting requests")
            })
            .map(|waiting| QueuedRequest {
                attempts: waiting.attempts + 1,
                ..waiting
            })
            .collect();
        let rows = requests.iter().map(|waiting| waiting.request.rows).sum();
        let replica = model
            .pool
            .get(replica_key)
            .expect("a discipline chooses from the pool");
        assert!(
            !replica.draining && rows > 0 && (rows <= replica.batch_size() || requests.len() == 1),
            "{rows} rows for {replica_key:?}"
        );
        let (device, time_shared) = (replica.device(), replica.is_time_shared());
        let held = model.pool.add_batch(now, replica_key, id, rows);
        if model.queue.rows() >= u64::from(rows) {
            self.mark_overloaded(now, model_key);
        }
        if time_shared {
            self.take_turn(now, device, replica_key, held);
        }
        for waiting in &requests {
            self.locations
                .insert(waiting.request.id, RequestLocation::InFlight(id));
        }
        self.books.queued -= requests.len() as u64;
        self.books.in_flight += requests.len() as u64;
        let keys = requests.iter().map(|waiting| waiting.request.id).collect();
        self.actions.push_back(Action::Dispatch {
            batch: id,
            replica: replica_key,
            requests: keys,
        });
        let batch = DispatchedBatch {
            model: model_key,
            replica: replica_key,
            requests,
            rows,
            dispatched: now,
        };
        self.batches.insert(id, batch);
    }

    /// Puts a request of a lost batch back into its queue, or ends it if its model, attempts or time are used up.
    pub(super) fn retry(&mut self, now: Time, waiting: &QueuedRequest) {
        let model = self.models.get(&waiting.request.model);
        let gone = model.is_none_or(|model| model.limits.is_none());
        if gone || waiting.attempts >= self.config.max_attempts || waiting.request.deadline <= now {
            self.finish(waiting.request.id, RequestOutcome::Lost);
        } else {
            self.enqueue(now, *waiting);
        }
    }

    pub(super) fn batch_completed(&mut self, now: Time, id: BatchKey, times: WorkerTimes) {
        for waiting in self.end_flight(now, id, Some(times)) {
            self.locations.remove(&waiting.request.id);
            self.books.count_end(RequestOutcome::Answered);
        }
    }

    pub(super) fn batch_failed(&mut self, now: Time, id: BatchKey) {
        for waiting in self.end_flight(now, id, None) {
            self.finish(waiting.request.id, RequestOutcome::Failed);
        }
    }

    pub(super) fn batch_returned(&mut self, now: Time, id: BatchKey) {
        for waiting in self.end_flight(now, id, None) {
            self.retry(now, &waiting);
        }
    }

    /// Removes a batch that came back and frees its credit. Returns its requests that were not cancelled; they are no longer
    /// counted as in flight.
    fn end_flight(
        &mut self,
        now: Time,
        id: BatchKey,
        times: Option<WorkerTimes>,
    ) -> Vec<QueuedRequest> {
        let Some(batch) = self.batches.remove(&id) else {
            return Vec::new();
        };
        let pool = &mut self.model_mut(batch.model).pool;
        pool.remove_batch(now, batch.replica, id, batch.rows, batch.dispatched, times);
        let replica = pool.get(batch.replica).expect("it held the batch");
        let device = replica.device();
        self.turn_ended(now, device, id);
        self.schedule_decision(now, batch.model);
        self.remove_replica_if_drained(batch.model, batch.replica);
        let mut requests = batch.requests;
        requests.retain(|waiting| self.leave_flight(id, waiting));
        requests
    }

    /// Returns true if a request of a batch was not cancelled; such a request is no longer counted as in flight.
    pub(super) fn leave_flight(&mut self, batch: BatchKey, waiting: &QueuedRequest) -> bool {
        // The number may be in use again after a cancellation: the location shows if it is still this request.
        let in_flight =
            self.locations.get(&waiting.request.id) == Some(&RequestLocation::InFlight(batch));
        self.books.in_flight -= u64::from(in_flight);
        in_flight
    }
}

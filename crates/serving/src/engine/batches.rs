//! The batches: how they are made, and what becomes of their requests when they come back or do not.

use packhorse_cluster::Time;

use super::{Batch, Engine, Place};
use crate::{
    Action, BatchId, ModelKey, Outcome, ReplicaKey,
    fleet::Computed,
    queue::{Ticket, Waiting},
};

impl Engine {
    pub(super) fn dispatch(
        &mut self,
        now: Time,
        model_key: ModelKey,
        replica_key: ReplicaKey,
        tickets: &[Ticket],
    ) {
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        let model = self.model_mut(model_key);
        let requests: Vec<Waiting> = tickets
            .iter()
            .map(|&ticket| {
                model
                    .queue
                    .remove(ticket)
                    .expect("a discipline takes what waits")
            })
            .map(|waiting| Waiting {
                attempts: waiting.attempts + 1,
                ..waiting
            })
            .collect();
        let rows = requests.iter().map(|waiting| waiting.request.rows).sum();
        let replica = model
            .fleet
            .get(replica_key)
            .expect("a discipline chooses from the fleet");
        assert!(
            !replica.draining && rows > 0 && (rows <= replica.batch_size() || requests.len() == 1),
            "{rows} rows for {replica_key:?}"
        );
        model.fleet.dispatched(now, replica_key, id, rows);
        if model.queue.rows() >= u64::from(rows) {
            self.falls_short(now, model_key);
        }
        for waiting in &requests {
            self.live.insert(waiting.request.id, Place::InFlight(id));
        }
        self.books.queued -= requests.len() as u64;
        self.books.in_flight += requests.len() as u64;
        let names = requests.iter().map(|waiting| waiting.request.id).collect();
        self.actions.push_back(Action::Dispatch {
            batch: id,
            replica: replica_key,
            requests: names,
        });
        let batch = Batch {
            model: model_key,
            replica: replica_key,
            requests,
            rows,
            dispatched: now,
        };
        self.batches.insert(id, batch);
    }

    /// Puts a request of a lost batch back into its queue, if that has any prospect.
    pub(super) fn retry(&mut self, now: Time, waiting: &Waiting) {
        let model = self.models.get(&waiting.request.model);
        let gone = model.is_none_or(|model| model.limits.is_none());
        if gone || waiting.attempts >= self.config.max_attempts || waiting.request.deadline <= now {
            self.finish(waiting, Outcome::Lost);
        } else {
            self.enqueue(now, *waiting);
        }
    }

    pub(super) fn batch_done(&mut self, now: Time, id: BatchId, computed: Computed) {
        for waiting in self.take_back(now, id, Some(computed)) {
            self.live.remove(&waiting.request.id);
            self.books.answered += 1;
        }
    }

    pub(super) fn batch_failed(&mut self, now: Time, id: BatchId) {
        for waiting in self.take_back(now, id, None) {
            self.finish(&waiting, Outcome::Failed);
        }
    }

    pub(super) fn batch_returned(&mut self, now: Time, id: BatchId) {
        for waiting in self.take_back(now, id, None) {
            self.retry(now, &waiting);
        }
    }

    /// Frees the credit of a batch that came back; its requests that were not cancelled, no longer counted as in flight.
    fn take_back(&mut self, now: Time, id: BatchId, computed: Option<Computed>) -> Vec<Waiting> {
        let Some(batch) = self.batches.remove(&id) else {
            return Vec::new();
        };
        self.model_mut(batch.model).fleet.returned(
            now,
            batch.replica,
            id,
            batch.rows,
            batch.dispatched,
            computed,
        );
        self.wake(now, batch.model);
        self.drained_if_idle(batch.model, batch.replica);
        let mut requests = batch.requests;
        requests.retain(|waiting| self.comes_back(id, waiting));
        requests
    }

    /// Whether a request of a batch was not cancelled; if so, it is no longer counted as in flight.
    pub(super) fn comes_back(&mut self, batch: BatchId, waiting: &Waiting) -> bool {
        // The number may be in use again after a cancellation: the place tells whether it is still this request.
        let here = self.live.get(&waiting.request.id) == Some(&Place::InFlight(batch));
        self.books.in_flight -= u64::from(here);
        here
    }
}

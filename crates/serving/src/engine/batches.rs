//! The engine's batches: dispatch, and the ends of their requests.

use packhorse_cluster::Time;

use super::{DispatchedBatch, Engine, RequestLocation};
use crate::{
    Action, BatchError, BatchKey, ModelKey, ReplicaKey, RequestOutcome,
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
        let by_tenant = requests
            .iter()
            .map(|waiting| (waiting.request.tenant, waiting.request.rows));
        model.share(now, by_tenant);
        let replica = model
            .pool
            .get(replica_key)
            .expect("a discipline chooses from the pool");
        assert!(
            !replica.draining && rows > 0 && (rows <= replica.batch_size() || requests.len() == 1),
            "{rows} rows for {replica_key:?}"
        );
        let (device, time_shared) = (replica.device(), replica.is_time_shared());
        let utilization = replica.pool_member().map(|member| member.utilization(rows));
        let is_risky = requests.iter().any(|waiting| waiting.only_on.is_some());
        let held = model.pool.add_batch(now, replica_key, id, rows, is_risky);
        if model.is_endangered(now, replica_key) {
            self.mark_overloaded(now, model_key);
        }
        if time_shared {
            self.take_turn(now, device, replica_key, held);
        }
        if let Some(utilization) = utilization {
            self.pools.take(now, device, replica_key, held, utilization);
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
        self.order_again(now, model_key);
        self.pooled_queue_changed(now, model_key);
    }

    /// Puts a request whose batch was not computed back into its queue, or ends it with `otherwise` if its model, attempts or time
    /// are used up.
    pub(super) fn retry(&mut self, now: Time, waiting: QueuedRequest, otherwise: RequestOutcome) {
        let model = self.models.get(&waiting.request.model);
        let gone = model.is_none_or(|model| model.limits.is_none());
        if gone
            || waiting.attempts >= self.config.max_attempts
            || waiting.losses >= self.config.max_losses
            || waiting.request.deadline <= now
        {
            self.finish(waiting.request.id, otherwise);
        } else {
            let waiting = self.ranked(now, waiting);
            self.enqueue(now, waiting);
        }
    }

    /// Returns true, and counts a retry, if the model of a request that was computed in vain may have one more.
    pub(super) fn may_retry(&mut self, now: Time, waiting: &QueuedRequest) -> bool {
        let model = self.models.get_mut(&waiting.request.model);
        model.is_some_and(|model| model.retries.spend(now))
    }

    /// Retries a request whose worker was lost with its batch: alone, for it may be the cause.
    pub(super) fn retry_alone(
        &mut self,
        now: Time,
        waiting: QueuedRequest,
        otherwise: RequestOutcome,
    ) {
        let waiting = QueuedRequest {
            losses: waiting.losses + 1,
            ..waiting
        };
        if self.may_end_workers(&waiting) && self.may_retry(now, &waiting) {
            let waiting = self.on_one_replica(waiting);
            self.retry(now, waiting.alone(), otherwise);
        } else {
            self.finish(waiting.request.id, otherwise);
        }
    }

    pub(super) fn batch_completed(&mut self, now: Time, id: BatchKey, times: WorkerTimes) {
        let batch = self
            .batches
            .get(&id)
            .map(|batch| (batch.model, batch.replica));
        if let Some((model, replica)) = batch {
            self.count_computed(now, model, replica);
        }
        let answered = self.end_flight(now, id, Some(times));
        if let Some((model, _)) = batch {
            self.earn_divisions(model, &answered);
            self.clear_blame(model, &answered);
        }
        for waiting in answered {
            self.locations.remove(&waiting.request.id);
            self.books.count_end(RequestOutcome::Answered);
        }
    }

    pub(super) fn batch_failed(&mut self, now: Time, id: BatchKey, error: BatchError) {
        let Some((model, replica)) = self.batches.get(&id).map(|b| (b.model, b.replica)) else {
            return;
        };
        if error == BatchError::ModelFailed {
            self.judge_failure(now, id);
        }
        if error == BatchError::TimedOut {
            let requests = self.batches[&id].requests.clone();
            // A batch that hangs does so by itself, also beside others that hang. A replica may be lost with its node.
            self.blame_for_loss(now, model, replica, now, &requests);
        }
        if matches!(error, BatchError::TimedOut | BatchError::NotBegun) {
            self.eject_hung(now, model, replica);
        }
        // Also where the others were cancelled: what the model says may be about them.
        let shared = self.batches[&id].requests.len() > 1;
        if error == BatchError::TooLarge {
            self.limit_memory(now, id);
        }
        let requests = self.end_flight(now, id, None);
        if shared && matches!(error, BatchError::ModelFailed | BatchError::Rejected) {
            return self.divide(now, requests, replica);
        }
        let otherwise = if shared {
            RequestOutcome::Lost
        } else {
            RequestOutcome::Failed
        };
        for waiting in requests {
            match error {
                BatchError::ModelFailed => self.retry_elsewhere(now, waiting, replica),
                BatchError::TimedOut => self.retry_alone(now, waiting, otherwise),
                BatchError::TooLarge if !shared => self.retry(now, waiting, RequestOutcome::Lost),
                // Of the batch and not of its requests: the next one is at most half as large.
                BatchError::TooLarge | BatchError::NotBegun => {
                    let attempts = waiting.attempts - 1;
                    let waiting = QueuedRequest {
                        attempts,
                        ..waiting
                    };
                    self.retry(now, waiting, RequestOutcome::Lost);
                }
                BatchError::Rejected => self.finish(waiting.request.id, RequestOutcome::Failed),
            }
        }
    }

    /// Has later batches of rows that are as long, or longer, be smaller on the replica that had no memory for this one.
    fn limit_memory(&mut self, now: Time, id: BatchKey) {
        let batch = &self.batches[&id];
        let longest = batch.requests.iter();
        let longest = longest.map(|waiting| waiting.request.bytes_per_row()).max();
        let (replica, rows) = (batch.replica, batch.rows);
        let bytes_per_row = longest.unwrap_or_default();
        self.model_mut(batch.model)
            .pool
            .report_shortage(replica, now, rows, bytes_per_row);
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
        let in_time = times
            .filter(|_| self.discipline.adapts_batches())
            .map(|times| batch.is_within_objectives(now, times));
        let pool = &mut self.model_mut(batch.model).pool;
        if let Some(in_time) = in_time {
            pool.adapt_batch(batch.replica, batch.rows, in_time);
        }
        pool.remove_batch(now, batch.replica, id, batch.rows, batch.dispatched, times);
        let replica = pool.get(batch.replica).expect("it held the batch");
        let device = replica.device();
        self.turn_ended(now, device, id);
        self.pool_batch_ended(now, device, id);
        self.schedule_decision(now, batch.model);
        self.remove_replica_if_drained(now, batch.model, batch.replica);
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

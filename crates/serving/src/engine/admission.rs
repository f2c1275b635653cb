//! The way of a request into a queue: that of the model which it is for, or of one that answers in its place.
//!
//! Models may be variants of each other, which answer the same requests with different accuracy and cost. Each has the next one as its
//! fallback: a request that a variant cannot answer in time, at its arrival or because it waited in vain, goes to the most accurate of the
//! following ones that can. A request for one variant alone does not.
//!
//! Source: the choice of a variant by accuracy and latency, `INFaaS` (Romero et al., USENIX ATC 2021, section 4); accuracy is given up for
//! throughput only under load, as in Proteus (Ahmad et al., ASPLOS 2024, section 4). Theirs choose per model and interval, ours per request.

use packhorse_cluster::{Time, VariantOf};

use super::Engine;
use crate::{
    ModelKey, Refusal, Request, RequestOutcome,
    queue::{QueuedRequest, Ticket},
};

impl Engine {
    pub(super) fn arrive(&mut self, now: Time, request: Request) {
        assert!(request.rows > 0, "{:?} has no rows", request.id);
        assert!(
            !self.locations.contains_key(&request.id),
            "{:?} is in use",
            request.id
        );
        let (request, ticket) = match self.admit_variant(now, request) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.finish(request.id, RequestOutcome::Refused(refusal));
                return;
            }
        };
        self.books.accepted += 1;
        self.model_mut(request.model).retries.accept(now);
        let waiting = QueuedRequest::new(request, ticket, now);
        let waiting = self.keep_apart(now, waiting);
        self.enqueue(now, waiting);
        let model = &self.models[&request.model];
        self.cold_requests += u64::from(model.pool.has_members() && !model.is_resident);
    }

    /// Returns a request for the first model that can answer it in time, its own or a fallback, with its place in that model's queue.
    fn admit_variant(
        &mut self,
        now: Time,
        mut request: Request,
    ) -> Result<(Request, Ticket), Refusal> {
        let mut variants = 1;
        loop {
            let due = self.due_from_disk(now, request.model);
            let admitted = match due {
                Some(due) if due > request.load_by => Err(self.ask_for(now, request.model)),
                Some(_) => Ok(Request {
                    deadline: request.deadline.max(request.load_by),
                    ..request
                }),
                None => Ok(request),
            };
            let admitted = admitted
                .and_then(|request| self.admit(now, &request).map(|ticket| (request, ticket)));
            let refusal = match admitted {
                Ok(admitted) => return Ok(admitted),
                Err(refusal) => refusal,
            };
            match self.fallback(&request) {
                Some(next) if variants < VariantOf::MAX_VARIANTS => request.model = next,
                _ => return Err(refusal),
            }
            variants += 1;
        }
    }

    /// Returns the model that answers a request in place of its own, if another one may.
    fn fallback(&self, request: &Request) -> Option<ModelKey> {
        let model = self.models.get(&request.model)?;
        model.fallback.filter(|_| request.may_fall_back)
    }

    /// Returns the place of a request in its model's queue.
    fn admit(&mut self, now: Time, request: &Request) -> Result<Ticket, Refusal> {
        self.check_blame(now, request)?;
        let rank = self.rank(now, request);
        let mut admitted = self.check_admission(now, request, rank);
        if matches!(admitted, Err(Refusal::QueueFull { .. })) && self.make_room(now, request, rank)
        {
            admitted = self.check_admission(now, request, rank);
        }
        if let Err(refusal) = admitted {
            if matches!(
                refusal,
                Refusal::CannotMeetDeadline | Refusal::QueueFull { .. }
            ) {
                self.mark_overloaded(now, request.model);
            }
            return Err(refusal);
        }
        let ticket = Ticket {
            rank,
            arrival: self.next_arrival,
        };
        self.next_arrival += 1;
        Ok(ticket)
    }

    fn check_admission(&self, now: Time, request: &Request, rank: u64) -> Result<(), Refusal> {
        let (model, limits) = self
            .models
            .get(&request.model)
            .and_then(|model| Some((model, model.limits.as_ref()?)))
            .ok_or(Refusal::UnknownModel)?;
        if model.pool.serving().next().is_none() {
            return Err(Refusal::NoReplica);
        }
        if model.queue.len() >= limits.queue_limit {
            return Err(Refusal::QueueFull {
                limit: limits.queue_limit,
            });
        }
        let view = self.view(now, model);
        self.discipline
            .admit(view.expect("it has limits"), request, rank)
    }

    /// Takes a request out of its queue that its model cannot answer in time any more. A fallback answers it if it can; else it ends.
    pub(super) fn expire(&mut self, now: Time, model: ModelKey, ticket: Ticket) {
        let waiting = self
            .model_mut(model)
            .queue
            .remove(ticket)
            .expect("a discipline drops waiting requests");
        self.books.queued -= 1;
        self.pooled_queue_changed(now, model);
        // Without the failure of its model or worker it would have been in time.
        let outcome = if waiting.failed_alone {
            RequestOutcome::Failed
        } else if waiting.attempts > 0 || waiting.failures > 0 {
            RequestOutcome::Lost
        } else {
            RequestOutcome::Expired
        };
        if outcome == RequestOutcome::Expired && self.fall_back(now, &waiting) {
            return;
        }
        self.finish(waiting.request.id, outcome);
    }

    /// Puts a request that its model cannot answer into the queue of a fallback that can. Returns false if there is none.
    pub(super) fn fall_back(&mut self, now: Time, waiting: &QueuedRequest) -> bool {
        let Some(model) = self.fallback(&waiting.request) else {
            return false;
        };
        let request = Request {
            model,
            ..waiting.request
        };
        let Ok((request, ticket)) = self.admit_variant(now, request) else {
            return false;
        };
        let waiting = QueuedRequest {
            request,
            ticket,
            ..*waiting
        };
        let waiting = self.keep_apart(now, waiting);
        self.enqueue(now, waiting);
        true
    }
}

//! The way of requests from clients to the gateway, and their ends.

use std::time::Duration;

use packhorse_cluster::ModelId;
use packhorse_control::{MissCause, RequestStage};
use packhorse_serving::{Event as EngineEvent, RequestKey, RequestOutcome};

use crate::{
    clients::{Arrivals, ClientState, End},
    cluster::Cluster,
    environment::{EndedRequest, Environment},
    events::{Event, RareEvent},
};

impl<E: Environment> Cluster<E> {
    /// Adds a model that clients know. Returns its index, which the [`Environment`] is told.
    pub fn add_clients(&mut self, model: &ModelId, bytes: u64, state: ClientState) -> usize {
        let index = self.clients.index(model);
        let clients = self.clients.model_mut(index);
        (clients.bytes, clients.state) = (bytes, state);
        index
    }

    /// Has the clients of a model wait, send or end.
    pub fn set_client_state(&mut self, model: usize, state: ClientState) {
        self.clients.model_mut(model).state = state;
    }

    /// Has clients send requests to a model from now on.
    pub fn set_arrivals(&mut self, model: &ModelId, arrivals: Arrivals) {
        let index = self.clients.index(model);
        let clients = self.clients.model_mut(index);
        clients.arrivals = arrivals;
        clients.number += 1;
        self.schedule_arrival(index);
    }

    fn schedule_arrival(&mut self, model: usize) {
        let clients = self.clients.model_mut(model);
        let at = match &mut clients.arrivals {
            Arrivals::Never => None,
            Arrivals::At(times) => times.next(),
            Arrivals::Poisson(rate) => {
                (*rate > 0.0).then(|| self.now + self.random.exponential(*rate))
            }
        };
        if let Some(at) = at {
            let arrives = Event::Arrives {
                model: u32::try_from(model).expect("models are few"),
                number: clients.number,
            };
            self.events.push(at, arrives);
        }
    }

    pub(crate) fn arrives(&mut self, model: u32, number: u32) {
        let model = model as usize;
        if self.clients.model(model).number != number {
            return;
        }
        self.schedule_arrival(model);
        if self.clients.model(model).state == ClientState::Sending {
            self.send_request_of(model);
        }
    }

    /// Has a client send a request, and returns its number.
    pub fn send_request(&mut self, model: &ModelId) -> RequestKey {
        let model = self.clients.index(model);
        self.send_request_of(model)
    }

    fn send_request_of(&mut self, model: usize) -> RequestKey {
        let now = self.now;
        self.environment.request_arrived(now, model);
        let served = self.gateway.as_ref();
        let served = served.and_then(|gateway| gateway.data_plane.served(model));
        let deadline = now + served.map_or(Duration::ZERO, |served| served.spec.slo);
        let request = self.clients.send(model, now, deadline);
        if self.settings.resends {
            if self
                .gateway
                .as_ref()
                .is_some_and(|g| g.ready_since.is_some())
            {
                self.submit(request);
            }
            return request;
        }
        if self.gateway.is_none() {
            self.clients.end(request, End::Unreachable);
            return request;
        }
        self.submit(request);
        let (impatient, patience) = self.settings.impatient;
        if impatient > 0.0 && self.random.happens(impatient) {
            let after = self.random.between(Duration::ZERO, patience);
            self.schedule(after, RareEvent::HangsUp(request));
        }
        request
    }

    /// Gives a request to the gateway.
    fn submit(&mut self, request: RequestKey) {
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        let Some(pending) = self.clients.pending_mut(request) else {
            return;
        };
        let model = pending.model as usize;
        let Some(served) = gateway.data_plane.served(model) else {
            let outcome = RequestOutcome::Refused(packhorse_serving::Refusal::UnknownModel);
            self.request_ended(request, outcome);
            return;
        };
        pending.at_gateway = true;
        // A client that began without a gateway knows its objective all the same.
        pending.deadline = pending.arrived + served.spec.slo;
        let deadline = pending.deadline;
        let bytes = self.clients.model(model).bytes;
        let plane = &mut gateway.data_plane;
        plane.submit(self.now, request, model, deadline, bytes);
    }

    /// Has clients send again what was not answered and is not too late.
    pub(crate) fn send_again(&mut self) {
        let waiting = self.clients.waiting();
        let waiting: Vec<RequestKey> = waiting
            .filter(|(request, _)| {
                let pending = self.clients.pending(*request);
                pending.is_some_and(|pending| !pending.at_gateway)
            })
            .map(|(request, _)| request)
            .collect();
        for request in waiting {
            let gateway = self.gateway.as_ref();
            let deadline = self.clients.pending(request).and_then(|pending| {
                let served = gateway?.data_plane.served(pending.model as usize)?;
                Some(pending.arrived + served.spec.slo)
            });
            if deadline.is_some_and(|deadline| self.now < deadline) {
                self.submit(request);
            } else {
                self.request_ended(request, RequestOutcome::Lost);
            }
        }
    }

    /// Ends a request without an answer.
    pub(crate) fn request_ended(&mut self, request: RequestKey, outcome: RequestOutcome) {
        let pending = self.clients.pending(request).expect("a request ends once");
        let ended = EndedRequest {
            number: request.0,
            model: pending.model as usize,
            arrived: pending.arrived,
            outcome,
        };
        if !matches!(outcome, RequestOutcome::Refused(_)) {
            self.print(|| format!("request {}: {outcome:?}", request.0));
        }
        if let Some(gateway) = &mut self.gateway {
            let plane = &mut gateway.data_plane;
            plane.ended(ended.model, 0, 1);
            let queue = self.now.saturating_since(ended.arrived);
            let stages = [(RequestStage::Queue, queue)];
            plane.missed(ended.model, miss_cause(outcome), &stages, None);
        }
        self.environment.request_ended(self.now, &ended);
        self.clients.end(request, End::without_answer(outcome));
        self.clients.forget_ended();
    }

    /// Has a client hang up that still waits.
    pub(crate) fn hangs_up(&mut self, request: RequestKey) {
        let (Some(gateway), Some(_)) = (&mut self.gateway, self.clients.pending(request)) else {
            return;
        };
        let plane = &mut gateway.data_plane;
        plane.requests -= 1;
        let cancelled = EngineEvent::RequestCancelled { request };
        plane.engine.handle(self.now, cancelled);
        self.clients.end(request, End::Cancelled);
    }
}

/// Returns the way in which a request without an answer missed its SLO.
fn miss_cause(outcome: RequestOutcome) -> MissCause {
    match outcome {
        RequestOutcome::Refused(_) => MissCause::Refused,
        RequestOutcome::Expired => MissCause::Expired,
        RequestOutcome::Failed => MissCause::Failed,
        RequestOutcome::Lost | RequestOutcome::Answered | RequestOutcome::Cancelled => {
            MissCause::Lost
        }
    }
}

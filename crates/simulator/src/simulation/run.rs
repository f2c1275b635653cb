//! The loop of a simulation, and the way of requests and batches through it.

use std::cmp::Reverse;

use packhorse_cluster::{Discipline, ModelIndex, Time};
use packhorse_contention::QueuedBatch;
use packhorse_control::LinkState;
use packhorse_serving::{
    Action, BatchKey, Event, Request, RequestKey, RequestOutcome, ShapeClass, TenantKey,
};

use super::{
    control::Control,
    event::SimEvent,
    keys::{model_key, replica_key},
    replica::SimulateError,
    world::{Clients, InFlightBatch, PendingRequest, Simulation},
};
use crate::{
    counters::{RunCounters, Stages},
    report::{AutoscaleReport, ReplanningReport},
    run_trace::AnsweredBatch,
    timeline::RequestEnd,
};

impl Simulation<'_> {
    /// Runs until every request has ended. Calls `progress` with the simulated time every 16,384 steps.
    ///
    /// # Errors
    /// Returns an error if the caller stops the run, which it is asked as often.
    pub(crate) fn run(
        mut self,
        progress: &mut dyn FnMut(Time),
    ) -> Result<
        (
            RunCounters,
            Option<ReplanningReport>,
            Option<AutoscaleReport>,
        ),
        SimulateError,
    > {
        let mut steps = 0_u64;
        loop {
            let timeout = self.next_timeout();
            let next = self.events.peek().map(|Reverse((at, ..))| *at);
            let now = match (next, timeout) {
                (Some(next), timeout) if timeout.is_none_or(|timeout| next <= timeout) => {
                    let Reverse((now, _, event)) = self.events.pop().expect("just peeked");
                    self.handle(now, event);
                    now
                }
                (_, Some(timeout)) => timeout,
                (_, None) => break,
            };
            self.drive_control(now);
            while let Some(action) = self.engine.poll(now) {
                self.execute(now, action);
            }
            steps += 1;
            if steps.is_multiple_of(1 << 14) {
                progress(now);
                if self.stop.is_some_and(|stop| stop()) {
                    return Err(SimulateError::Stopped);
                }
            }
        }
        let books = self.engine.books();
        assert!(
            books.is_balanced() && books.queued == 0 && books.in_flight == 0,
            "a request did not end: {books:?}"
        );
        let report = self.control.as_ref().map(Control::report);
        let end = self.counters.window_end();
        let autoscaler = self.autoscaler.take();
        let autoscale = autoscaler.map(|autoscaler| autoscaler.into_report(end));
        Ok((self.counters, report, autoscale))
    }

    /// Returns the time at which the engine or the control plane must act even without an event. The control plane has no say once the
    /// last request has arrived.
    fn next_timeout(&self) -> Option<Time> {
        let control = self.control.as_ref().map(Control::timeout);
        let control = control
            .filter(|timeout| self.outage.is_none() && *timeout < self.counters.window_end());
        self.engine.poll_timeout().into_iter().chain(control).min()
    }

    fn handle(&mut self, now: Time, event: SimEvent) {
        match event {
            SimEvent::RequestArrives(model) => self.request_arrives(now, model),
            SimEvent::BatchAtWorker(batch) => self.batch_at_worker(now, batch),
            SimEvent::DeviceCompletes { device, revision } => {
                self.device_completes(now, device, revision);
            }
            SimEvent::BatchAnswered(batch) => self.batch_answered(now, batch),
            SimEvent::FaultBegins(fault) => self.fault_begins(now, fault),
            SimEvent::FaultNoticed(fault) => self.fault_noticed(now, fault),
            SimEvent::FaultEnds(fault) => self.fault_ends(now, fault),
            SimEvent::AgentRenews(node) => self.agent_renews(now, node),
            SimEvent::AutoscalerDecides => self.autoscale(now),
            SimEvent::NodeStarted(device) => self.node_started(now, device),
            SimEvent::ModelLoaded { replica, attempt } => self.model_loaded(now, replica, attempt),
        }
    }

    fn request_arrives(&mut self, now: Time, model: usize) {
        self.schedule_arrival(model);
        if self.clients[model] != Clients::Sending {
            return;
        }
        self.counters.request_arrived(model, now);
        let number = self.requests.push(PendingRequest {
            model,
            arrived: now,
            ended: false,
        });
        if self.outage.is_none() {
            self.send_request(now, number);
        }
    }

    /// Has a client send a request to the gateway.
    pub(super) fn send_request(&mut self, now: Time, number: u64) {
        let pending = self.requests.get_mut(number);
        let pending = pending.expect("a request ends after it was sent");
        let model = &self.scenario.problem.models[pending.model];
        if let Some(control) = &mut self.control {
            control.arrived(&model.id);
        }
        let request = Request {
            id: RequestKey(number),
            model: model_key(self.scenario.first_asked(pending.model)),
            tenant: TenantKey(0),
            rows: 1,
            bytes: model.payload.as_u64(),
            class: ShapeClass(0),
            priority: 0,
            may_fall_back: true,
            deadline: pending.arrived + model.slo,
        };
        self.engine.handle(now, Event::RequestArrived(request));
    }

    /// Counts the end of a request without an answer.
    pub(super) fn request_ended(&mut self, now: Time, number: u64, outcome: RequestOutcome) {
        let pending = self.requests.get_mut(number).expect("a request ends once");
        pending.ended = true;
        let (model, arrived) = (pending.model, pending.arrived);
        self.counters.request_ended(model, outcome);
        if let Some(timeline) = &mut self.timeline {
            let end = match outcome {
                RequestOutcome::Refused(_) | RequestOutcome::Expired => RequestEnd::Dropped,
                _ => RequestEnd::Lost,
            };
            timeline.count(ModelIndex(model), arrived, end);
        }
        if let Some(trace) = &mut self.trace {
            let times = (arrived, now);
            trace.request_ended(number, model, times, outcome, None, self.scenario);
        }
        self.requests.remove_ended(|pending| pending.ended);
    }

    fn execute(&mut self, now: Time, action: Action) {
        match action {
            Action::Dispatch {
                batch,
                replica,
                requests,
            } => self.send_batch(now, batch, replica.0 as usize, requests),
            Action::Finish { request, outcome } => self.request_ended(now, request.0, outcome),
            // People would be told of them. A replica whose worker dies again and again is ejected; no simulated batch fails.
            Action::ReplicaEjected { .. }
            | Action::ReplicaRestored { .. }
            | Action::TenantPaused { .. } => {}
            Action::ReplicaDrained { replica } => {
                let replica = replica.0 as usize;
                self.replicas[replica].link = Some(LinkState::Drained);
                self.link_changed(now, replica);
                self.drive_control(now);
            }
        }
    }

    fn send_batch(
        &mut self,
        now: Time,
        batch: BatchKey,
        replica_index: usize,
        requests: Vec<RequestKey>,
    ) {
        let replica = &mut self.replicas[replica_index];
        replica.used_credits += 1;
        let model = replica.model;
        let bytes =
            self.scenario.problem.models[model].payload.as_u64() as f64 * requests.len() as f64;
        let reached_worker = self.links.send(now, replica.device, bytes) + self.network_delay;
        self.counters.batch_sent(model, now, requests.len());
        let number = self.batches.push(InFlightBatch {
            replica: replica_index,
            requests,
            free_since: replica.free_since,
            dispatched: now,
            reached_worker,
            started: reached_worker,
            computed: reached_worker,
            ended: false,
        });
        assert_eq!(
            number,
            self.first_batch + batch.0,
            "an engine counts its batches from 0"
        );
        self.schedule(reached_worker, SimEvent::BatchAtWorker(number));
    }

    fn batch_at_worker(&mut self, now: Time, number: u64) {
        let batch = self.batches.get_mut(number);
        let Some(batch) = batch.filter(|batch| !batch.ended) else {
            return;
        };
        let replica = &self.replicas[batch.replica];
        if self.down[replica.device] > 0 {
            return;
        }
        let (solo_time, demand) = replica.batch_costs[batch.requests.len() - 1];
        #[cfg(test)]
        let solo_time = match &mut self.time_factor {
            Some(factor) => solo_time.mul_f64(factor()),
            None => solo_time,
        };
        let (device, index) = (replica.device, replica.index_on_device);
        let queued = QueuedBatch {
            batch: BatchKey(number),
            solo_time,
            demand,
        };
        self.devices[device].enqueue(now, index, queued);
        self.schedule_completion(device);
    }

    fn device_completes(&mut self, now: Time, device: usize, revision: u64) {
        let mut completed = std::mem::take(&mut self.completed);
        self.devices[device].complete(now, revision, &mut completed);
        if !completed.is_empty() {
            let answered = now + self.scenario.simulation.return_time + self.network_delay;
            for done in completed.drain(..) {
                // A gateway that has died gets no answer.
                if let Some(batch) = self.batches.get_mut(done.batch.0) {
                    (batch.started, batch.computed) = (done.started, now);
                    self.schedule(answered, SimEvent::BatchAnswered(done.batch.0));
                }
            }
            self.schedule_completion(device);
        }
        self.completed = completed;
    }

    fn batch_answered(&mut self, now: Time, number: u64) {
        let batch = self.batches.get_mut(number);
        let Some(batch) = batch.filter(|batch| !batch.ended) else {
            return;
        };
        batch.ended = true;
        let replica = &mut self.replicas[batch.replica];
        if self.discipline != Discipline::FixedWait
            && Some(replica.used_credits) >= self.engine.credits(replica_key(batch.replica))
        {
            replica.free_since = now;
        }
        replica.used_credits -= 1;
        let compute = batch.computed.saturating_since(batch.started);
        let stages = Stages {
            network: batch.reached_worker.saturating_since(batch.dispatched)
                + now.saturating_since(batch.computed),
            worker_queue: batch.started.saturating_since(batch.reached_worker),
            compute,
        };
        let model = &self.scenario.problem.models[replica.model];
        let slo = model.slo;
        let mut within_slo = 0;
        let requests = batch.requests.iter().map(|request| {
            let pending = self
                .requests
                .get_mut(request.0)
                .expect("a request ends once");
            pending.ended = true;
            let is_within_slo = now.saturating_since(pending.arrived) <= slo;
            within_slo += u64::from(is_within_slo);
            if let Some(timeline) = &mut self.timeline {
                let end = if is_within_slo {
                    RequestEnd::WithinSlo
                } else {
                    RequestEnd::Late
                };
                timeline.count(ModelIndex(replica.model), pending.arrived, end);
            }
            let waited = batch.dispatched.saturating_since(pending.arrived);
            let queue = batch
                .free_since
                .saturating_since(pending.arrived)
                .min(waited);
            (pending.arrived, queue, waited.saturating_sub(queue))
        });
        self.counters
            .batch_answered(replica.model, now, slo, stages, requests);
        if let Some(trace) = &mut self.trace {
            let requests = batch.requests.iter().map(|request| {
                let pending = self.requests.get_mut(request.0);
                let arrived = pending.expect("it ends with its batch").arrived;
                (request.0, arrived)
            });
            let answered = AnsweredBatch {
                key: number,
                model: replica.model,
                replica: batch.replica,
                device: replica.device,
                dispatched: batch.dispatched,
                answered: now,
                stages,
                requests: requests.collect(),
            };
            trace.batch_answered(&answered, self.scenario);
        }
        if let Some(control) = &mut self.control {
            let rows = batch.requests.len();
            let alone = replica.solo_time(rows, self.scenario);
            control.computed(&model.id, batch.replica, rows, within_slo, (compute, alone));
        }
        self.requests.remove_ended(|pending| pending.ended);
        self.batches.remove_ended(|batch| batch.ended);
        self.engine.handle(
            now,
            Event::BatchCompleted {
                batch: BatchKey(number - self.first_batch),
                queue_wait: stages.worker_queue,
                compute,
            },
        );
    }
}

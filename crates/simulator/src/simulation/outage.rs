//! The death of the gateway, and its return.
//!
//! Queues and links die with it, and workers compute their batches for nobody. A client whose connection breaks, or finds none, sends its
//! request again until the deadline, so that requests wait with their clients. The new gateway has an empty engine; its control plane goes on
//! with the stored state, which here is that of the old one.

use packhorse_cluster::Time;
use packhorse_control::LinkState;
use packhorse_serving::{Engine, RequestOutcome};

use super::{
    replica::WorkerState,
    world::{PendingRequest, Simulation},
};

impl Simulation<'_> {
    pub(super) fn gateway_dies(&mut self, now: Time) {
        self.outage.get_or_insert_default().deaths += 1;
        let mut served = Vec::new();
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].is_registered() {
                self.trace_lost_batches(now, replica);
                let link = self.replicas[replica].link.take();
                served.extend(link.map(|link| (replica, link)));
            }
        }
        if let Some(outage) = &mut self.outage {
            outage.served.extend(served);
        }
        for batch in &mut self.batches.entries {
            batch.ended = true;
        }
        self.batches.remove_ended(|batch| batch.ended);
        self.first_batch = self.batches.next();
        self.engine = Engine::new(self.engine_config);
    }

    pub(super) fn gateway_is_back(&mut self, now: Time) {
        let Some(mut outage) = self.outage.take() else {
            return;
        };
        outage.deaths -= 1;
        if outage.deaths > 0 {
            self.outage = Some(outage);
            return;
        }
        for model in 0..self.max_batch_rows.len() {
            self.update_model(now, model, self.max_batch_rows[model]);
        }
        self.set_fallbacks(now);
        for (replica, before) in outage.served {
            self.connect(now, replica, &before);
        }
        self.send_again(now);
        for command in outage.commands {
            self.command(now, command);
        }
    }

    /// Connects the new gateway to a replica whose link had this state.
    fn connect(&mut self, now: Time, index: usize, before: &LinkState) {
        let replica = &mut self.replicas[index];
        let is_up = replica.worker == WorkerState::Ready && self.down[replica.device] == 0;
        match before {
            // It has come back without a gateway.
            _ if replica.is_registered() => {}
            // The old gateway's batches are not the new one's.
            LinkState::Draining => replica.link = Some(LinkState::Drained),
            _ if is_up => self.serve_replica(now, index),
            _ if self.control.is_some() => {
                replica.link = Some(LinkState::Connecting { reason: None });
            }
            _ => {}
        }
        self.link_changed(now, index);
    }

    /// Has the clients send what was not answered.
    fn send_again(&mut self, now: Time) {
        let waiting = |(_, pending): &(u64, &PendingRequest)| !pending.ended;
        let waiting: Vec<(u64, PendingRequest)> = self
            .requests
            .numbered()
            .filter(waiting)
            .map(|(number, pending)| (number, *pending))
            .collect();
        for (number, pending) in waiting {
            let slo = self.scenario.problem.models[pending.model].slo;
            if now < pending.arrived + slo {
                self.send_request(now, number);
            } else {
                self.request_ended(now, number, RequestOutcome::Lost);
            }
        }
    }
}

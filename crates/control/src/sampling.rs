//! The samples of the data plane's counts: rates, slowdowns and goodput, compared with what the plan assumes.

use packhorse_cluster::Time;

use crate::{
    controller::Controller,
    device_observer::ObservedReplica,
    event::Sample,
    findings::{blame_lost_nodes, findings},
    notice::{Drift, Notice},
    plan_reason::PlanReason,
    rollout::PlacedReplica,
};

impl Controller {
    /// Takes a sample, and requests a plan for the models that deviate from what the current one assumes.
    pub(crate) fn sampled(&mut self, now: Time, sample: &Sample) {
        let (rates, traffic) = (&mut self.rates, &mut self.state.traffic);
        rates.sample(now, &sample.models, &self.state.models, |id| {
            traffic.is_used(id)
        });
        traffic.sample(now, &sample.models);
        self.store_needs();
        self.learn_shapes(now, &sample.shapes);
        let forecasts = &self.state.plan.forecasts;
        self.predictions.sample(now, &sample.models, forecasts);
        let levels = &mut self.state.service_levels;
        levels.sample(now, &sample.models, &sample.misses, forecasts);
        let mut ends = std::mem::take(&mut self.state.worker_ends);
        ends.sample(now, &self.state.service_levels, |id| {
            let replica = self.state.rollout.get(id);
            replica.is_some_and(PlacedReplica::is_planned) && !self.state.serves(id)
        });
        self.state.worker_ends = ends;
        let mut unobserved = self.state.estimated_devices();
        unobserved.extend(self.state.devices_of_backbones());
        let replicas = self.state.rollout.iter();
        let replicas = replicas.filter(|replica| !unobserved.contains(&replica.spec.device));
        let on_devices = replicas.filter_map(|replica| {
            Some(ObservedReplica {
                id: replica.id,
                model: replica.spec.model.model.clone(),
                device: replica.spec.device.clone(),
                kind: self.state.kind(&replica.spec.device)?.clone(),
                compute_share: replica.spec.compute_share,
            })
        });
        let replicas: Vec<ObservedReplica> = on_devices.collect();
        let (observer, profiles) = (&mut self.state.observer, &self.state.profiles);
        let mut reasons = observer.end_period(now, &replicas, &sample.work, profiles);
        self.find_slow_devices(now);
        if self.state.plan.record.is_some() && !self.planning.is_pending() {
            reasons.extend(self.rates.drifted(&self.state.models));
        }
        // While replicas start, requests are late because of that.
        let late = self.predictions.late(self.announcements.completed);
        reasons.extend(late);
        for reason in reasons {
            let drift = match &reason {
                PlanReason::Rate { model, .. } => Some((model.clone(), Drift::Rate)),
                PlanReason::Drift { model, .. } => Some((model.clone(), Drift::Slowdown)),
                PlanReason::Late { model, .. } => Some((model.clone(), Drift::Latency)),
                _ => None,
            };
            if let Some((model, drift)) = drift {
                self.tell(Notice::Drift(model, drift, reason.to_string()));
            }
            self.request_plan(now, reason);
        }
        self.state.paused_tenants.clone_from(&sample.paused_tenants);
        self.state.without_room.clone_from(&sample.without_room);
        let mut findings = findings(now, &self.state, &self.planning);
        self.finding_log.date(now, &mut findings);
        blame_lost_nodes(&self.state.nodes, &mut findings);
        let levels = &self.state.service_levels;
        self.incidents.update(now, &findings, |model, time| {
            levels.missed_since(model, time)
        });
        for (change, finding) in self.announcements.findings(findings) {
            self.tell(Notice::Finding(change, Box::new(finding)));
        }
    }

    /// Finds the devices that are slower than their siblings or, where the profiles are of the inputs that come, than these.
    fn find_slow_devices(&mut self, now: Time) {
        let mut speeds = std::mem::take(&mut self.state.observer.speeds);
        let state = &self.state;
        let slow = speeds.end_period(now, |id, kind| {
            let is_measured = state.profiles.is_measured(id, kind);
            is_measured
                && state.models.get(id).is_some_and(|model| {
                    !model.program.has_variable_inputs()
                        || state.has_measured_inputs(id, &model.program, kind)
                })
        });
        (self.state.observer.speeds, self.state.slow_devices) = (speeds, slow);
    }
}

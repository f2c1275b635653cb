//! The notices of the state machine, logged and appended to the log of events.

use packhorse_api::events::{EventKind, EventObject, EventState, Subject};
use packhorse_cluster::{DeviceId, ModelId, NodeName, NodeState, ReplicaId, ReplicaState};
use packhorse_control::{DeviceNotice, Drift, Notice, PlanNotice, ReplicaNotice};

use super::task::Task;
use crate::events::NewEvent;

impl Task {
    /// Tells what happened.
    pub(super) fn tell(&mut self, notice: Notice) {
        match notice {
            Notice::Model(id, state, reason) => self.tell_model(&id, state.is_some(), reason),
            Notice::Node(name, state, text) => self.tell_node(&name, state, &text),
            Notice::Replica(id, model, notice, reason) => {
                self.tell_replica(id, &model, notice, reason);
            }
            Notice::Device(id, notice, text) => self.tell_device(&id, notice, text),
            Notice::Plan(generation, notice, text) => {
                let number = generation.map(|generation| generation.0);
                match notice {
                    PlanNotice::Proposed => {}
                    PlanNotice::Adopted => {
                        tracing::info!(plan.generation = number, "adopted a new plan: {text}");
                    }
                    PlanNotice::Completed => {
                        tracing::info!(plan.generation = number, "the plan is rolled out");
                    }
                    PlanNotice::Rejected => tracing::info!("{text}"),
                    PlanNotice::Degraded => tracing::warn!(plan.generation = number, "{text}"),
                }
                let view = self
                    .plan_view()
                    .filter(|view| view.generation == generation);
                self.events().append(NewEvent {
                    kind: EventKind::Plan,
                    subject: generation.map(Subject::Plan),
                    state: match notice {
                        PlanNotice::Proposed => EventState::Proposed,
                        PlanNotice::Adopted => EventState::Adopted,
                        PlanNotice::Rejected => EventState::Rejected,
                        PlanNotice::Completed => EventState::Completed,
                        PlanNotice::Degraded => EventState::Degraded,
                    },
                    reason: view.as_ref().map(|view| view.reason.clone()),
                    text,
                    object: view.map(|view| EventObject::Plan(Box::new(view))),
                });
            }
            Notice::RolledBack(id, reason) => {
                tracing::warn!(model.name = %id.name, model.version = id.version.get(), reason, "a version was rolled back");
                let text = format!("model {id} was rolled back: {reason}");
                self.tell_rerouted(&id, text);
            }
            Notice::Rerouted(id, text) => {
                tracing::info!(model.name = %id.name, model.version = id.version.get(), "{text}");
                self.tell_rerouted(&id, text);
            }
            Notice::Drift(id, drift, text) => {
                tracing::info!(model.name = %id, "{text}");
                self.events().append(NewEvent {
                    kind: EventKind::Drift,
                    object: self.model_object(&id),
                    subject: Some(Subject::Model(id)),
                    state: match drift {
                        Drift::Rate => EventState::Rate,
                        Drift::Latency => EventState::Latency,
                        Drift::Slowdown => EventState::Slowdown,
                        Drift::InputShapes => EventState::InputShapes,
                    },
                    reason: None,
                    text,
                });
            }
            // The events of findings are those of the handle that has them all.
            Notice::Finding(change, finding) => {
                let cause = finding.cause.as_deref();
                tracing::info!(severity = ?finding.severity, cause, "finding {change:?}: {}", finding.text);
            }
            Notice::Paused(duration) => {
                let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(
                    duration_ms,
                    "the gateway was paused; the leases of all nodes are extended"
                );
            }
        }
    }

    fn model_object(&self, id: &ModelId) -> Option<EventObject> {
        let view = self.told_model_view(id).ok()?;
        Some(EventObject::Model(Box::new(view)))
    }

    fn tell_rerouted(&self, id: &ModelId, text: String) {
        if let Ok(view) = self.told_model_view(id) {
            self.events().append(NewEvent {
                state: EventState::Rerouted,
                ..NewEvent::model(view, text)
            });
        }
    }

    fn tell_model(&self, id: &ModelId, registered: bool, reason: Option<String>) {
        let (name, version) = (&id.name, id.version.get());
        let Some(view) = self.told_model_view(id).ok().filter(|_| registered) else {
            tracing::info!(model.name = %name, model.version = version, "a model was removed");
            self.events().append(NewEvent::model_removed(id));
            return;
        };
        let state = format!("{:?}", view.state).to_lowercase();
        tracing::info!(model.name = %name, model.version = version, state, reason, "the state of a model changed");
        let text = match reason {
            Some(reason) => format!("model {id} is {state}: {reason}"),
            None => format!("model {id} is {state}"),
        };
        self.events().append(NewEvent::model(view, text));
    }

    fn tell_node(&mut self, name: &NodeName, state: Option<NodeState>, text: &str) {
        if state.is_none_or(|state| state == NodeState::Lost) {
            self.data_plane().telemetry().set_gpus(name, Vec::new());
        }
        if state.is_none() {
            self.forget_node(name);
        }
        tracing::info!(node.name = %name, "node: {text}");
        let text = format!("node {name}: {text}");
        let event = match self.node_view(name) {
            Ok(view) => NewEvent::node(view, text),
            Err(_) => NewEvent {
                kind: EventKind::Node,
                subject: Some(Subject::Node(name.clone())),
                state: EventState::Removed,
                reason: None,
                text,
                object: None,
            },
        };
        self.events().append(event);
    }

    fn tell_replica(
        &self,
        id: ReplicaId,
        model: &ModelId,
        notice: ReplicaNotice,
        reason: Option<String>,
    ) {
        let (state, words) = match notice {
            ReplicaNotice::Reported(ReplicaState::BackingOff) => {
                (EventState::BackingOff, "backing off".to_owned())
            }
            ReplicaNotice::Reported(state) => (EventState::from(state), format!("{state:?}")),
            ReplicaNotice::Serving => (EventState::Serving, "serving".to_owned()),
            ReplicaNotice::Ejected => (EventState::Ejected, "ejected".to_owned()),
            ReplicaNotice::Lost => (EventState::Lost, "not answering".to_owned()),
            ReplicaNotice::Stopped => (EventState::Stopped, "stopped".to_owned()),
        };
        let words = words.to_lowercase();
        if notice == ReplicaNotice::Lost {
            tracing::warn!(replica.id = %id, model.name = %model, reason, "a replica does not answer");
        } else {
            tracing::debug!(replica.id = %id, model.name = %model, state = words, reason, "the state of a replica changed");
        }
        let replica = self.controller().replica(id);
        let view = replica.and_then(|replica| self.replica_view(replica));
        self.events().append(NewEvent {
            kind: EventKind::Replica,
            subject: Some(Subject::Replica(id)),
            state,
            reason,
            text: format!("replica {id} of model {model} is {words}"),
            object: view.map(|view| EventObject::Replica(Box::new(view))),
        });
    }

    fn tell_device(&self, id: &DeviceId, notice: DeviceNotice, text: String) {
        let state = match notice {
            DeviceNotice::Ready => EventState::Ready,
            DeviceNotice::Failed => EventState::Failed,
        };
        tracing::warn!(device.id = %id, "{text}");
        let node = self.node_view(id.node()).ok();
        let mut devices = node.into_iter().flat_map(|node| node.devices);
        let device = devices.find(|device| device.id == *id);
        self.events().append(NewEvent {
            kind: EventKind::Device,
            subject: Some(Subject::Device(id.clone())),
            state,
            reason: None,
            text,
            object: device.map(|device| EventObject::Device(Box::new(device))),
        });
    }
}

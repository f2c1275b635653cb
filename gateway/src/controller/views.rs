//! The state of the cluster in the form of the admin API.

use packhorse_api::{
    DeviceView, ForecastView, ModelView, NodeState, NodeView, PlacementView, PlanView, PolicyInfo,
    PolicyView, ReplicaView,
};
use packhorse_cluster::{Discipline, ModelId, NodeName, PolicyOptions};
use packhorse_control::rollout::PlacedReplica;
use packhorse_placement::{POLICIES, PolicyEntry};
use tokio::time::Instant;

use super::{
    cluster::{Cluster, Model},
    draft::{DraftPlan, DraftReplica},
    model_state::{ModelConditions, ReplicaConditions},
    models::ModelError,
    nodes::{Node, NodeError},
};
use crate::{
    driver::LinkState,
    store::{Scheduling, StoredForecast, StoredPlan, StoredReplica},
};

impl Cluster {
    /// Returns all models.
    pub(super) fn model_views(&self) -> Vec<ModelView> {
        self.models
            .iter()
            .map(|(id, model)| self.registered_model_view(id, model))
            .collect()
    }

    /// Returns a model.
    pub(super) fn model_view(&self, id: &ModelId) -> Result<ModelView, ModelError> {
        self.models
            .get(id)
            .map(|model| self.registered_model_view(id, model))
            .ok_or_else(|| ModelError::UnknownVersion(id.name.clone(), id.version))
    }

    /// Returns a model in the form of the API.
    pub(super) fn registered_model_view(&self, id: &ModelId, model: &Model) -> ModelView {
        let of_model = |replica: &&PlacedReplica| replica.program == model.program;
        let planned: Vec<&PlacedReplica> = self.plan.replicas.iter().filter(of_model).collect();
        let earlier = self.earlier.iter().map(|earlier| &earlier.replica);
        let earlier: Vec<&PlacedReplica> = earlier.filter(of_model).collect();
        let profiling = self.profiling_views(id);
        let forecast = self.plan.forecasts.get(id);
        let conditions = ModelConditions {
            failure: model.failure.as_deref(),
            replicas: planned.iter().map(|r| self.replica_conditions(r)).collect(),
            earlier_serving: earlier.iter().filter(|r| self.serves(r.id)).count(),
            devices: self
                .nodes
                .values()
                .filter(|node| node.takes_replicas())
                .map(|node| node.stored.devices.len())
                .sum(),
            profiled: self.is_profiled(id),
            profiling: &profiling,
            queued: self.waits_for_measurement(id),
            planning: self.planning.is_pending() || forecast.is_none(),
            trouble: self.planning.trouble.as_ref(),
            shortfall: forecast.and_then(|forecast| forecast.shortfall.as_deref()),
        };
        let (state, reason) = conditions.state();
        let reason = reason.map(|reason| reason.to_string());
        let spec = &model.spec;
        ModelView {
            name: id.name.clone(),
            version: id.version,
            state,
            reason,
            artifact: spec.program.artifact,
            artifact_bytes: model.artifact_bytes,
            max_batch_size: spec.program.max_batch_size,
            slo_ms: spec.slo.as_nanos() as f64 / 1e6,
            rate_rps: spec.rate,
            rate: spec.rate_mode,
            queue_limit: spec.queue_limit,
            inputs: spec.program.inputs.clone(),
            outputs: spec.program.outputs.clone(),
            profiled_on: self
                .profiles
                .iter()
                .filter(|(model, ..)| *model == id)
                .map(|(_, kind, _)| kind.clone())
                .collect(),
            profiling,
            replicas: planned
                .iter()
                .chain(&earlier)
                .filter_map(|replica| self.replica_view(replica))
                .collect(),
        }
    }

    /// Returns true if the model has a profile for a kind of device that accepts replicas.
    fn is_profiled(&self, id: &ModelId) -> bool {
        let nodes = self.nodes.values().filter(|node| node.takes_replicas());
        let mut devices = nodes.flat_map(|node| &node.stored.devices);
        devices.any(|device| self.profiles.get(id, &device.kind).is_some())
    }

    /// Returns the conditions of a planned replica.
    fn replica_conditions(&self, replica: &PlacedReplica) -> ReplicaConditions<'_> {
        let node = self.nodes.get(replica.device.node());
        let status = node.and_then(|node| node.status(replica.id));
        ReplicaConditions {
            serving: self.serves(replica.id),
            waiting: self.waiting.contains(&replica.id),
            node_lost: !node.is_some_and(Node::holds_lease),
            state: status.map(|status| status.state),
            reason: status.and_then(|status| status.reason.as_deref()),
            link: match self.links.get(&replica.id) {
                Some(LinkState::Connecting { reason }) => reason.as_deref(),
                _ => None,
            },
        }
    }

    /// Returns a replica in the form of the API; `None` if its node or device is unknown.
    fn replica_view(&self, replica: &PlacedReplica) -> Option<ReplicaView> {
        let node = self.nodes.get(replica.device.node())?;
        let status = node.status(replica.id);
        let device = node.device(replica.device.local())?;
        Some(ReplicaView {
            id: replica.id,
            device: replica.device.clone(),
            device_kind: device.kind.clone(),
            batch_size: replica.batch_size,
            compute_share_pct: replica.compute_share,
            state: status.map(|status| status.state),
            serving: self.serves(replica.id),
            restarts: status.map_or(0, |status| status.restarts),
            pid: status.and_then(|status| status.pid),
            reason: status.and_then(|status| status.reason.clone()),
            memory_bytes: status.and_then(|status| status.memory_bytes),
            capacity: status.and_then(|status| status.capacity),
        })
    }

    /// Returns all nodes.
    pub(super) fn node_views(&self) -> Vec<NodeView> {
        self.nodes
            .keys()
            .filter_map(|name| self.node_view(name).ok())
            .collect()
    }

    /// Returns a node.
    pub(super) fn node_view(&self, name: &NodeName) -> Result<NodeView, NodeError> {
        let node = self
            .nodes
            .get(name)
            .ok_or_else(|| NodeError::Unknown(name.clone()))?;
        let now = Instant::now();
        Ok(NodeView {
            name: name.clone(),
            state: match node.stored.scheduling {
                _ if !node.holds_lease() => NodeState::Lost,
                Scheduling::Open => NodeState::Ready,
                Scheduling::Cordoned => NodeState::Cordoned,
                Scheduling::Draining => NodeState::Draining,
            },
            agent_version: node.stored.agent_version.clone(),
            last_seen_ms: node.last_heard.map(|heard| {
                u64::try_from(now.saturating_duration_since(heard).as_millis()).unwrap_or(u64::MAX)
            }),
            devices: node
                .devices()
                .map(|(id, device)| DeviceView {
                    kind: device.kind.clone(),
                    description: device.description.clone(),
                    memory_bytes: device.memory_bytes,
                    multiprocessors: device.multiprocessors,
                    gpu: node.gpu(&device.name).cloned(),
                    replicas: self
                        .plan
                        .replicas
                        .iter()
                        .chain(self.earlier.iter().map(|earlier| &earlier.replica))
                        .filter(|replica| replica.device == id)
                        .map(|replica| replica.id)
                        .collect(),
                    id,
                })
                .collect(),
        })
    }

    /// Returns the current plan with its newest forecasts.
    pub(super) fn plan_view(&self) -> Option<PlanView> {
        let stored = self.plan.stored.as_ref()?;
        let mut view = plan_view(stored);
        let forecasts = self.plan.forecasts.values();
        view.models = forecasts
            .map(|f| forecast_view(f, &stored.replicas))
            .collect();
        Some(with_totals(view))
    }
}

/// Returns a stored plan in the form of the API.
pub(crate) fn plan_view(plan: &StoredPlan) -> PlanView {
    let models = plan.models.iter();
    with_totals(PlanView {
        generation: Some(plan.generation),
        policy: plan.policy.clone(),
        created_unix_ms: Some(plan.created_ms),
        reason: plan.reason.clone(),
        solve_ms: plan.solve_ms,
        predicted_goodput_rps: 0.0,
        replicas: plan.replicas.iter().map(placement_view).collect(),
        models: models.map(|f| forecast_view(f, &plan.replicas)).collect(),
        unserved: Vec::new(),
        devices_used: 0,
    })
}

/// Returns a draft in the form of the API.
pub(super) fn draft_view(draft: &DraftPlan, reason: String) -> PlanView {
    let replicas: Vec<PlacementView> = draft.replicas.iter().map(draft_replica_view).collect();
    let count = |forecast: &StoredForecast| {
        let of_model = |replica: &&DraftReplica| replica.model == forecast.model;
        draft.replicas.iter().filter(of_model).count()
    };
    with_totals(PlanView {
        generation: None,
        policy: draft.policy.to_owned(),
        created_unix_ms: None,
        reason,
        solve_ms: draft.solve_ms,
        predicted_goodput_rps: 0.0,
        replicas,
        models: draft
            .models
            .iter()
            .map(|forecast| ForecastView {
                explanation: draft.explanations.get(&forecast.model).cloned(),
                ..model_forecast_view(forecast, count(forecast))
            })
            .collect(),
        unserved: Vec::new(),
        devices_used: 0,
    })
}

/// Fills in the fields that follow from replicas and forecasts.
fn with_totals(mut view: PlanView) -> PlanView {
    let goodput = view.models.iter().map(|m| m.predicted_goodput_rps);
    // The sum of no numbers is -0.0; adding it to 0.0 gives 0.0.
    view.predicted_goodput_rps = 0.0 + goodput.sum::<f64>();
    view.unserved = view
        .models
        .iter()
        .filter(|model| model.replicas == 0)
        .map(|model| model.name.to_string())
        .collect();
    view.unserved.dedup();
    let mut devices: Vec<_> = view.replicas.iter().map(|r| &r.device).collect();
    devices.sort();
    devices.dedup();
    view.devices_used = devices.len();
    view
}

/// Returns the forecast of a model in a stored plan.
fn forecast_view(forecast: &StoredForecast, replicas: &[StoredReplica]) -> ForecastView {
    let of_model = |replica: &&StoredReplica| replica.model == forecast.model;
    model_forecast_view(forecast, replicas.iter().filter(of_model).count())
}

/// Returns the forecast of a model with this number of replicas.
fn model_forecast_view(forecast: &StoredForecast, replicas: usize) -> ForecastView {
    ForecastView {
        name: forecast.model.name.clone(),
        version: forecast.model.version,
        rate_rps: forecast.rate.get(),
        predicted_goodput_rps: forecast.goodput.get(),
        replicas,
        shortfall: forecast.shortfall.clone(),
        explanation: None,
    }
}

/// Returns a stored replica in the form of the API.
pub(super) fn placement_view(replica: &StoredReplica) -> PlacementView {
    PlacementView {
        id: Some(replica.id),
        model: replica.model.name.clone(),
        version: replica.model.version,
        device: replica.device.clone(),
        device_kind: replica.device_kind.clone(),
        batch_size: replica.batch_size,
        compute_share_pct: replica.compute_share,
        duty_cycle_ms: replica.duty_cycle_ms,
    }
}

/// Returns a replica of a draft in the form of the API.
fn draft_replica_view(replica: &DraftReplica) -> PlacementView {
    PlacementView {
        id: None,
        model: replica.model.name.clone(),
        version: replica.model.version,
        device: replica.device.clone(),
        device_kind: replica.device_kind.clone(),
        batch_size: replica.batch_size,
        compute_share_pct: replica.compute_share,
        duty_cycle_ms: replica.duty_cycle_ms(),
    }
}

/// Returns the policy, its options, the discipline and the available policies in the form of the API.
pub(super) fn policy_view(
    policy: &PolicyEntry,
    options: PolicyOptions,
    discipline: Discipline,
) -> PolicyView {
    PolicyView {
        policy: policy.name.to_owned(),
        options,
        discipline,
        policies: POLICIES
            .iter()
            .map(|entry| PolicyInfo {
                name: entry.name.to_owned(),
                summary: entry.summary.to_owned(),
                source: entry.source.to_owned(),
            })
            .collect(),
    }
}

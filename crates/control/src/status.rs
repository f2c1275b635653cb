//! The state of a model, with its reason, from the state of the cluster.

use packhorse_cluster::{DeviceKind, ModelId, ModelState, NodeName};

use crate::{
    event::LinkState,
    model_state::{MeasurementProgress, ModelConditions, ReplicaConditions},
    nodes::Node,
    planning::Planning,
    rollout::PlacedReplica,
    state::State,
    traffic::Demand,
};

/// The state of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelStatus {
    /// The state between registration and serving.
    pub state: ModelState,
    /// The reason for the state and what the model waits for, as text for people.
    pub reason: Option<String>,
    /// The measurements that are assigned to a device and not finished.
    pub measurements: Vec<MeasurementProgress>,
}

/// Returns the state of a registered model; `None` if it is not registered.
pub(crate) fn model_status(
    state: &State,
    planning: &Planning,
    id: &ModelId,
) -> Option<ModelStatus> {
    let model = state.models.get(id)?;
    let of_program = |replica: &&PlacedReplica| replica.spec.model == model.program;
    let replicas = state.rollout.of_model(id).filter(of_program);
    let (planned, earlier): (Vec<_>, Vec<_>) = replicas.partition(|replica| replica.is_planned());
    let measurements: Vec<MeasurementProgress> = progress(state, id).collect();
    let forecast = state.plan.forecasts.get(id);
    let conditions = ModelConditions {
        failure: model.failure.as_deref(),
        retired: state.traffic.demand(id) == Demand::Retired,
        replicas: planned
            .iter()
            .map(|r| replica_conditions(state, r))
            .collect(),
        earlier_serving: earlier.iter().filter(|r| state.serves(r.id)).count(),
        devices: state.measurements.device_count(),
        profiled: state.is_profiled(id),
        measured: state.is_measured(id),
        profiling: &measurements,
        queued: state.measurements.waits(id),
        uninspected: state.inspections.failure(id),
        planning: planning.is_pending() || forecast.is_none(),
        trouble: planning.trouble(),
        shortfall: forecast.and_then(|forecast| forecast.shortfall.as_deref()),
        excluded: state.exclusions.of_model(id).next(),
    };
    let (model_state, reason) = conditions.state();
    Some(ModelStatus {
        state: model_state,
        reason: reason.map(|reason| reason.to_string()),
        measurements,
    })
}

/// Returns the conditions of a planned replica.
fn replica_conditions<'a>(state: &'a State, replica: &PlacedReplica) -> ReplicaConditions<'a> {
    let node = state.nodes.get(replica.spec.device.node());
    let status = node.and_then(|node| node.status(replica.id));
    ReplicaConditions {
        serving: state.serves(replica.id),
        waiting: state.rollout.waits(replica.id),
        node_lost: !node.is_some_and(Node::holds_lease),
        state: status.map(|status| status.state),
        reason: status.and_then(|status| status.reason.as_deref()),
        link: match state.links.get(&replica.id) {
            Some(LinkState::Connecting { reason }) => reason.as_deref(),
            Some(LinkState::Ejected { reason }) => Some(reason),
            _ => None,
        },
    }
}

/// Returns the progress of a model's assigned measurements.
fn progress(state: &State, id: &ModelId) -> impl Iterator<Item = MeasurementProgress> {
    let assigned = state.measurements.of_model(id);
    assigned.map(move |(kind, device)| {
        let (done, total) = reported(state, device.node(), id, kind).unwrap_or_default();
        MeasurementProgress {
            device_kind: kind.clone(),
            done,
            total,
        }
    })
}

fn reported(state: &State, node: &NodeName, id: &ModelId, kind: &DeviceKind) -> Option<(u32, u32)> {
    let report = state.nodes.get(node)?.report.as_ref()?;
    let mut all = report.profiles.iter();
    let found = all.find(|p| p.model == *id && p.device_kind == *kind)?;
    Some((found.done, found.total))
}

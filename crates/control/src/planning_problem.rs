//! The input of a placement policy, made from the state of the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, DemandedModel, Device, DeviceId, DeviceIndex, DeviceKind, Dim, ModelId, ModelIndex,
    ModelSpec, NodeName, PlannedReplica, Problem, ReplicaSpec, RequestsPerSecond, Scheduling,
};

use crate::{
    nodes::Node,
    plan_reason::PlanReasons,
    planning_input::{FamilyDemand, PlanningInput},
    state::State,
};

/// The size that is assumed of a variable dimension without a usual one when the size of a request is estimated.
const ASSUMED_DIMENSION: u64 = 128;

/// The number of devices that measure an estimated model above which such a model gets no replica on that kind of device at all, unless it
/// has one. Each would be a kind of its own to the policy, with the profiles of all models.
const MAX_MEASURING: usize = 32;

impl PlanningInput {
    /// Returns the input for a cluster with these rates, of which models are measured to need these parts.
    pub(crate) fn new(
        state: &State,
        policy: String,
        reasons: PlanReasons,
        rates: BTreeMap<ModelId, RequestsPerSecond>,
        needs: &BTreeMap<ModelId, RequestsPerSecond>,
        families: Vec<FamilyDemand>,
        overdue: &BTreeSet<NodeName>,
    ) -> Self {
        let mut input = Self {
            policy,
            options: state.options,
            reasons,
            problem: Problem {
                profiles: state.memory_limits.apply(&state.profiles),
                discipline: state.discipline,
                network: state.assumptions.network,
                conditions: state.assumptions.conditions,
                observations: state.observations(),
                ..Problem::default()
            },
            devices: Vec::new(),
            kinds: BTreeMap::new(),
            rates: BTreeMap::new(),
            families,
            backbones: Vec::new(),
            pinned: state.planned_on(|node| {
                node.holds_lease() && node.record.scheduling == Scheduling::Cordoned
            }),
            retained: state
                .planned_on(|node| is_leaving(node) && !overdue.contains(&node.record.name)),
        };
        // Of a lost node, only what still answers is worth keeping.
        input.retained.retain(|spec| {
            let node = state.nodes.get(spec.device.node());
            node.is_some_and(Node::holds_lease) || state.serves_spec(spec)
        });
        for spec in input.pinned.iter().chain(&input.retained) {
            if let Some(device) = state.nodes.device(&spec.device) {
                input.kinds.insert(spec.device.clone(), device.kind.clone());
            }
        }
        let mut alone = state.all_measured_alone();
        if alone.len() > MAX_MEASURING {
            for (device, model) in std::mem::take(&mut alone) {
                if let Some(kind) = state.kind(&device)
                    && !state.is_planned_on(&model, kind)
                {
                    input.problem.profiles.remove(&model, kind);
                }
            }
        }
        for (model, kind) in state.measured_first() {
            input.problem.profiles.remove(&model, &kind);
        }
        input.add_devices(state, &alone);
        input.add_models(state, rates, needs);
        input.set_current(&state.planned_on(|_| true));
        input
    }

    /// Adds the devices that take replicas. Those of `alone` get none of the model that they measure.
    fn add_devices(&mut self, state: &State, alone: &BTreeMap<DeviceId, ModelId>) {
        let nodes = state.nodes.iter().map(|(_, node)| node);
        for node in nodes.filter(|node| node.takes_replicas()) {
            for (id, device) in node.devices() {
                let kind = self.kind_without_failures(state, &id, &device.kind, alone.get(&id));
                self.kinds.insert(id.clone(), device.kind.clone());
                self.devices.push(id);
                self.problem.devices.push(Device {
                    kind,
                    memory: device.memory_bytes,
                    multiprocessors: device.multiprocessors,
                    node: node.record.name.clone(),
                    cost_per_hour: None,
                    pool: device.pool,
                });
            }
        }
    }

    /// Returns the kind of a device in the problem: its own, or, if models could not start there or one is being measured, a kind of its
    /// own that has the profiles of all models but these. So every policy plans around them.
    fn kind_without_failures(
        &mut self,
        state: &State,
        device: &DeviceId,
        kind: &DeviceKind,
        measured: Option<&ModelId>,
    ) -> DeviceKind {
        let mut excluded = state.exclusions.of_device(device);
        excluded.extend(measured);
        if excluded.is_empty() {
            return kind.clone();
        }
        let is_kept =
            |model: &ModelId| state.models.get(model).is_some() && !excluded.contains(model);
        let profiles = &mut self.problem.profiles;
        profiles.except(kind, self.devices.len(), is_kept)
    }

    fn add_models(
        &mut self,
        state: &State,
        rates: BTreeMap<ModelId, RequestsPerSecond>,
        needs: &BTreeMap<ModelId, RequestsPerSecond>,
    ) {
        for (id, rate) in rates {
            let Some(model) = state
                .models
                .get(&id)
                .filter(|model| model.failure.is_none())
            else {
                continue;
            };
            let pinned_rate = self.throughput(&self.pinned, &id);
            // The rate of a variant may be another when the policy has placed the others.
            let is_variant = model.spec.variant.is_some();
            if pinned_rate == 0.0 || pinned_rate < rate.get() || is_variant {
                let remaining = RequestsPerSecond::new(rate.get() - pinned_rate);
                let remaining = remaining.unwrap_or(RequestsPerSecond::ZERO);
                let kinds = self.problem.devices.iter().map(|device| &device.kind);
                let load_time = state.assumptions.load_time(&id);
                let mut demanded = demanded_model(&model.spec, remaining, load_time);
                // Besides weights a file has little.
                demanded.weights = Some(ByteCount::new(model.artifact_bytes));
                demanded.priority = state.models.priority(&id.name);
                demanded.min_replicas = state.models.min_replicas(&id.name);
                demanded.need = needs.get(&id).map(|need| {
                    let remaining = RequestsPerSecond::new(need.get() - pinned_rate);
                    remaining.unwrap_or(RequestsPerSecond::ZERO)
                });
                if let Some(latency_scale) = state.assumptions.latency_scales.get(&id) {
                    demanded.latency_scale = *latency_scale;
                }
                if let Some(payload) = state.assumptions.payloads.get(&id) {
                    demanded.payload = *payload;
                }
                if let Some(rows) = state.memory_limits.batch_limit(&id, kinds) {
                    demanded.max_batch_size = demanded.max_batch_size.min(rows);
                }
                self.problem.models.push(demanded);
            }
            self.rates.insert(id, rate);
        }
    }

    /// Sets the current replicas of the problem: those of its models on its devices.
    fn set_current(&mut self, current: &[ReplicaSpec]) {
        let models: BTreeMap<&ModelId, usize> = (self.problem.models.iter().map(|model| &model.id))
            .zip(0..)
            .collect();
        let devices: BTreeMap<&DeviceId, usize> = self.devices.iter().zip(0..).collect();
        let known = current.iter().filter_map(|spec| {
            Some(PlannedReplica {
                model: ModelIndex(*models.get(&spec.model)?),
                device: DeviceIndex(*devices.get(&spec.device)?),
                batch_size: spec.batch_size,
                compute_share: spec.compute_share,
                duty_cycle: spec.duty_cycle,
                memory: None,
                backbone: spec.backbone,
                pool: spec.pool,
            })
        });
        self.problem.current = known.collect();
    }
}

/// Returns true if the replicas of a node stay only until their models are served elsewhere.
fn is_leaving(node: &Node) -> bool {
    !node.holds_lease() || node.record.scheduling == Scheduling::Draining
}

/// Returns the demand for a model at this rate.
fn demanded_model(spec: &ModelSpec, rate: RequestsPerSecond, load_time: Duration) -> DemandedModel {
    DemandedModel {
        id: spec.program.model.clone(),
        rate,
        need: None,
        priority: spec.priority,
        min_replicas: spec.min_replicas,
        slo: spec.slo,
        max_batch_size: spec.program.rows_limit(),
        payload: payload(spec),
        load_time,
        latency_scale: 1.0,
        weights: None,
    }
}

/// Estimates the size of one request's inputs.
fn payload(spec: &ModelSpec) -> ByteCount {
    let batches = spec.program.batches();
    let bytes = spec.program.inputs.iter().map(|input| {
        let dims = input.shape.iter().enumerate();
        let dims = dims.skip(usize::from(batches));
        let elements = dims.fold(1_u64, |product, (axis, dim)| {
            product.saturating_mul(match dim {
                Dim::Any => input.typical_dim(axis).unwrap_or(ASSUMED_DIMENSION),
                Dim::Fixed(size) => *size,
            })
        });
        let width = input.datatype.width().unwrap_or(1) as u64;
        ByteCount::new(elements.saturating_mul(width))
    });
    bytes.sum()
}

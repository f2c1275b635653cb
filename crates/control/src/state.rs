//! The state of the cluster: everything that the control plane knows. Each part is changed through its own methods.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_cluster::{
    ByteCount, DeviceId, DeviceKind, DeviceObservation, Discipline, ModelId, PolicyOptions,
    PoolPlace, ProfileTable, ReplicaId, ReplicaSpec, ReplicaStatus, RequestsPerSecond, Time,
};
use packhorse_contention::PairTable;

use crate::{
    assumptions::Assumptions,
    device_observer::DeviceObserver,
    device_speeds::SlowDevice,
    estimated_kinds::EstimatedKinds,
    event::LinkState,
    exclusions::{Exclusions, StartFailures},
    finding::RepositoryProblem,
    inspections::Inspections,
    known_measurements::KnownMeasurements,
    learned_shapes::LearnedShapes,
    measurements::Measurements,
    memory_limits::MemoryLimits,
    models::Models,
    nodes::{Node, Nodes},
    record::{Forecast, PlanRecord},
    restarts::Restarts,
    rollout::{LinkPhase, NodePhase, Observations, PlacedReplica, Rollout},
    service_levels::ServiceLevels,
    traffic::Traffic,
    worker_ends::{Hang, WorkerEnds},
};

/// The state of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) models: Models,
    /// The shares of the models' versions.
    pub(crate) traffic: Traffic,
    pub(crate) nodes: Nodes,
    /// The measured and imported profiles, and the estimates in place of those that are missing.
    pub(crate) profiles: ProfileTable,
    pub(crate) estimated_kinds: EstimatedKinds,
    /// The measured pairs of models that share a device, by kind of device.
    pub(crate) pairs: BTreeMap<DeviceKind, PairTable>,
    /// The name of the placement policy.
    pub(crate) policy: String,
    pub(crate) options: PolicyOptions,
    pub(crate) discipline: Discipline,
    pub(crate) assumptions: Assumptions,
    pub(crate) plan: CurrentPlan,
    pub(crate) rollout: Rollout,
    /// The data plane's links.
    pub(crate) links: BTreeMap<ReplicaId, LinkState>,
    pub(crate) measurements: Measurements,
    pub(crate) inspections: Inspections,
    pub(crate) known_measurements: KnownMeasurements,
    /// The shapes of the requests of models with variable inputs.
    pub(crate) learned_shapes: LearnedShapes,
    pub(crate) memory_limits: MemoryLimits,
    pub(crate) exclusions: Exclusions,
    pub(crate) start_failures: StartFailures,
    /// The problems of the folder of models that is registered at starts.
    pub(crate) repository_problems: Vec<RepositoryProblem>,
    pub(crate) restarts: Restarts,
    pub(crate) observer: DeviceObserver,
    /// The devices that are slower than their siblings, or their profiles, now.
    pub(crate) slow_devices: Vec<SlowDevice>,
    /// The processes that ended while their models served.
    pub(crate) worker_ends: WorkerEnds,
    /// The requests of the last minute.
    pub(crate) service_levels: ServiceLevels,
    /// The tenants of every model whose requests ended its workers of late.
    pub(crate) paused_tenants: BTreeMap<ModelId, Vec<String>>,
    /// The replicas for whose weights their device has no room.
    pub(crate) without_room: BTreeMap<ReplicaId, PoolPlace>,
}

/// The current plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurrentPlan {
    /// The plan as it is stored; none before the first.
    pub(crate) record: Option<Arc<PlanRecord>>,
    /// The plan's forecasts; newer than the stored ones if planning again gave the same placement.
    pub(crate) forecasts: BTreeMap<ModelId, Forecast>,
}

impl CurrentPlan {
    /// Restores the newest stored plan.
    pub(crate) fn restore(record: Option<PlanRecord>) -> Self {
        record.map(Arc::new).map(Self::new).unwrap_or_default()
    }

    pub(crate) fn new(record: Arc<PlanRecord>) -> Self {
        Self {
            forecasts: by_model(&record.forecasts),
            record: Some(record),
        }
    }

    /// Returns the rates that the plan assumes.
    pub(crate) fn rates(&self) -> BTreeMap<ModelId, RequestsPerSecond> {
        let forecasts = self.forecasts.iter();
        forecasts
            .map(|(model, f)| (model.clone(), f.rate))
            .collect()
    }
}

/// Returns the forecasts by model.
pub(crate) fn by_model(forecasts: &[Forecast]) -> BTreeMap<ModelId, Forecast> {
    let forecasts = forecasts.iter();
    forecasts
        .map(|forecast| (forecast.model.clone(), forecast.clone()))
        .collect()
}

/// The nodes, links, forecasts and shares, as the rollout observes them.
pub(crate) struct ObservedCluster<'a> {
    pub(crate) traffic: &'a Traffic,
    pub(crate) nodes: &'a Nodes,
    pub(crate) links: &'a BTreeMap<ReplicaId, LinkState>,
    pub(crate) forecasts: &'a BTreeMap<ModelId, Forecast>,
}

impl State {
    /// Returns true if a replica gets batches.
    pub(crate) fn serves(&self, replica: ReplicaId) -> bool {
        self.links.get(&replica) == Some(&LinkState::Serving)
    }

    /// Returns true if a planned replica with this specification gets batches.
    pub(crate) fn serves_spec(&self, spec: &ReplicaSpec) -> bool {
        let mut replicas = self.rollout.on_device(&spec.device);
        replicas.any(|r| r.is_planned() && r.spec.model.model == spec.model && self.serves(r.id))
    }

    /// Returns true if a replica of the model gets batches.
    pub(crate) fn is_served(&self, model: &ModelId) -> bool {
        self.rollout.of_model(model).any(|r| self.serves(r.id))
    }

    /// Returns the replicas of the current plan on the nodes for which the predicate holds.
    pub(crate) fn planned_on(&self, predicate: impl Fn(&Node) -> bool) -> Vec<ReplicaSpec> {
        let planned = self.rollout.planned().filter(|replica| {
            let node = self.nodes.get(replica.spec.device.node());
            node.is_some_and(&predicate)
        });
        planned
            .map(|replica| replica.spec.with_model(replica.spec.model.model.clone()))
            .collect()
    }

    /// Returns the status of a replica that its node last reported, if it did.
    pub(crate) fn status(&self, replica: &PlacedReplica) -> Option<&ReplicaStatus> {
        let node = self.nodes.get(replica.spec.device.node())?;
        node.status(replica.id)
    }

    /// Returns the hang of the process of a replica whose link has just ended, if it is a pool's and answered nothing before.
    pub(crate) fn hang_before(&self, now: Time, replica: &PlacedReplica) -> Option<Hang> {
        replica.spec.pool.as_ref()?;
        let on_device = self.rollout.on_device(&replica.spec.device);
        let members = on_device.filter(|one| one.is_planned() && one.spec.pool.is_some());
        let models: BTreeSet<ModelId> = members.map(|one| one.spec.model.model.clone()).collect();
        let since = self.service_levels.unanswered_since(&models, now)?;
        Some(Hang { since, models })
    }

    /// Returns the kind of a device; `None` if its node no longer reports it.
    pub(crate) fn kind(&self, device: &DeviceId) -> Option<&DeviceKind> {
        Some(&self.nodes.device(device)?.kind)
    }

    /// Returns true if the model has a profile for a kind of device that accepts replicas.
    pub(crate) fn is_profiled(&self, model: &ModelId) -> bool {
        let mut kinds = self.measurements.kinds();
        kinds.any(|kind| self.profiles.get(model, kind).is_some())
    }

    /// Returns true if the model was measured on a kind of device that accepts replicas.
    pub(crate) fn is_measured(&self, model: &ModelId) -> bool {
        let mut kinds = self.measurements.kinds();
        kinds.any(|kind| self.profiles.is_measured(model, kind))
    }

    /// Returns the measured pairs as observations.
    pub(crate) fn measured_pairs(&self) -> impl Iterator<Item = DeviceObservation> {
        let tables = self.pairs.iter();
        tables.flat_map(|(kind, pairs)| pairs.observations(kind, &self.profiles))
    }

    /// Returns the observations for policies, the oldest first: the measured pairs, then those of the current run.
    pub(crate) fn observations(&self) -> Vec<DeviceObservation> {
        self.measured_pairs()
            .chain(self.observer.history())
            .collect()
    }

    /// Learns the slowdowns again, from the current pairs and then from the observations.
    pub(crate) fn learn_from_pairs(&mut self) {
        let measured: Vec<DeviceObservation> = self.measured_pairs().collect();
        self.observer.relearn(&measured, &self.profiles);
    }

    /// Forgets what was observed of a model on a kind of device, whose profile has changed.
    pub(crate) fn forget_observations(&mut self, model: &ModelId, kind: &DeviceKind) {
        if self.observer.profile_changed(model, kind) {
            self.learn_from_pairs();
        }
    }

    /// Returns the nodes, links and forecasts, as the rollout observes them.
    pub(crate) fn observed(&self) -> ObservedCluster<'_> {
        ObservedCluster {
            traffic: &self.traffic,
            nodes: &self.nodes,
            links: &self.links,
            forecasts: &self.plan.forecasts,
        }
    }
}

impl Observations for ObservedCluster<'_> {
    fn memory(&self, device: &DeviceId) -> ByteCount {
        let device = self.nodes.device(device);
        device.map_or(ByteCount::ZERO, |device| device.memory_bytes)
    }

    fn node(&self, replica: &PlacedReplica) -> NodePhase {
        let Some(node) = self.nodes.get(replica.spec.device.node()) else {
            return NodePhase::Lost;
        };
        // The workers of a node whose lease has expired may still run: as long as they answer, the last report counts.
        let answers = || {
            let link = self.links.get(&replica.id);
            matches!(
                link,
                Some(LinkState::Serving | LinkState::Ejected { .. } | LinkState::Draining)
            )
        };
        match &node.report {
            Some(_) if !node.is_lost() || answers() => NodePhase::Reporting,
            _ if node.is_lost() => NodePhase::Lost,
            _ => NodePhase::Awaited,
        }
    }

    fn status(&self, replica: &PlacedReplica) -> Option<&ReplicaStatus> {
        let node = self.nodes.get(replica.spec.device.node())?;
        node.status(replica.id)
    }

    fn link(&self, replica: ReplicaId) -> Option<LinkPhase> {
        let phase = match self.links.get(&replica)? {
            LinkState::Connecting { .. } => LinkPhase::Connecting,
            LinkState::Serving | LinkState::Ejected { .. } => LinkPhase::Serving,
            LinkState::Draining => LinkPhase::Draining,
            LinkState::Drained => LinkPhase::Drained,
        };
        Some(phase)
    }

    fn successors(&self, model: &ModelId) -> Vec<ModelId> {
        self.traffic.successors(model)
    }

    fn loss(&self, model: &ModelId) -> u64 {
        let forecast = self.forecasts.get(model);
        forecast.map_or(0, |forecast| (forecast.goodput.get() * 1e3) as u64)
    }
}

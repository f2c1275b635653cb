//! The state of the cluster, owned by one task.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, DeviceKind, Discipline, Generation, ModelId, ModelSpec, NodeName, PolicyOptions,
    ProfileTable, Program, ReplicaId,
};
use packhorse_contention::PairTable;
use packhorse_control::rollout::{EarlierReplica, PlacedReplica};
use packhorse_placement::PolicyEntry;
use tokio::time::Instant;

use super::{
    ControllerConfig, device_observer::DeviceObserver, measurements::Measurements,
    memory_limits::MemoryLimits, nodes::Node, plan_reason::PlanReason, planning::Planning,
    rollout::PublishedTarget,
};
use crate::{
    driver::{DataPlane, LinkState},
    events::EventLog,
    store::{Settings, Store, StoreError, StoredForecast, StoredPlan, StoredReplica},
};

/// The number of stored plans whose replicas may still run after a restart in the middle of a rollout.
const RESTORED_PLANS: u32 = 16;

/// The state of the control plane.
pub(super) struct Cluster {
    pub(super) config: ControllerConfig,
    pub(super) store: Store,
    pub(super) data_plane: DataPlane,
    pub(super) events: EventLog,
    /// The number of the gateway's start.
    pub(super) epoch: u64,
    pub(super) models: BTreeMap<ModelId, Model>,
    pub(super) nodes: BTreeMap<NodeName, Node>,
    pub(super) profiles: ProfileTable,
    pub(super) policy: &'static PolicyEntry,
    /// The policy's options.
    pub(super) options: PolicyOptions,
    pub(super) discipline: Discipline,
    pub(super) planning: Planning,
    pub(super) plan: CurrentPlan,
    pub(super) measurements: Measurements,
    pub(super) observer: DeviceObserver,
    pub(super) memory_limits: MemoryLimits,
    /// The measured pairs of models that share a device, by kind of device.
    pub(super) pairs: BTreeMap<DeviceKind, PairTable>,
    /// The replicas of earlier plans that are still wanted.
    pub(super) earlier: Vec<EarlierReplica>,
    /// The replicas of the plan that wait for memory which replicas of earlier plans hold.
    pub(super) waiting: BTreeSet<ReplicaId>,
    /// The states of the data plane's links.
    pub(super) links: BTreeMap<ReplicaId, LinkState>,
    pub(super) published: PublishedTarget,
    /// The time until which planning waits for the nodes of the current plan to report after the gateway's start.
    pub(super) settled_by: Instant,
    /// True if measurements or the rollout may have to change.
    pub(super) changed: bool,
}

/// A registered model.
pub(super) struct Model {
    pub(super) spec: Arc<ModelSpec>,
    /// The program of `spec`.
    pub(super) program: Arc<Program>,
    /// The size of the model's file, in bytes.
    pub(super) artifact_bytes: u64,
    /// The reason why the model cannot be served as it is registered.
    pub(super) failure: Option<String>,
}

/// The current plan.
#[derive(Default)]
pub(super) struct CurrentPlan {
    /// The plan as it is stored; none before the first.
    pub(super) stored: Option<StoredPlan>,
    /// The plan's replicas, with the parameters that their nodes need.
    pub(super) replicas: Vec<PlacedReplica>,
    /// The plan's forecasts; newer than the stored ones if planning again gave the same placement.
    pub(super) forecasts: BTreeMap<ModelId, StoredForecast>,
}

impl Model {
    pub(super) fn new(spec: ModelSpec, artifact_bytes: u64, failure: Option<String>) -> Self {
        Self {
            program: Arc::new(spec.program.clone()),
            spec: Arc::new(spec),
            artifact_bytes,
            failure,
        }
    }
}

impl Cluster {
    /// Restores the stored state and begins a new epoch.
    pub(super) async fn restore(
        config: ControllerConfig,
        store: Store,
        data_plane: DataPlane,
        events: EventLog,
    ) -> Result<Self, StoreError> {
        let given = Settings {
            policy: config.policy.map(|policy| policy.name.to_owned()),
            options: None,
            discipline: config.discipline,
        };
        store.update_settings(&given).await?;
        let settings = store.settings().await?;
        let policy = stored_policy(settings.policy.as_deref());
        let epoch = store.begin_epoch().await?;
        let sizes: BTreeMap<_, _> = store.artifacts().await?.into_iter().collect();
        let stored_models = store.models().await?;
        let mut models = BTreeMap::new();
        let mut after_plan = BTreeMap::new();
        for stored in stored_models {
            let id = stored.spec.program.model.clone();
            let bytes = sizes.get(&stored.spec.program.artifact).copied();
            after_plan.insert(id.clone(), stored.after_plan);
            let model = Model::new(stored.spec, bytes.unwrap_or_default(), stored.failure);
            models.insert(id, model);
        }
        let now = Instant::now();
        let nodes = store
            .nodes()
            .await?
            .into_iter()
            .map(|node| (node.name.clone(), Node::awaited(node, now + config.lease)))
            .collect();
        let plans = store.plans(None, RESTORED_PLANS).await?;
        let mut cluster = Self {
            epoch,
            models,
            nodes,
            profiles: store.profiles().await?,
            policy,
            options: settings.options.unwrap_or_default(),
            discipline: settings.discipline.unwrap_or_default(),
            planning: Planning::default(),
            plan: CurrentPlan::default(),
            measurements: Measurements::default(),
            observer: DeviceObserver::new(),
            memory_limits: MemoryLimits::default(),
            pairs: store.pairs().await?,
            earlier: Vec::new(),
            waiting: BTreeSet::new(),
            links: BTreeMap::new(),
            published: PublishedTarget::default(),
            settled_by: now + config.lease,
            changed: true,
            config,
            store,
            data_plane,
            events,
        };
        cluster.learn_from_pairs();
        cluster.restore_plans(plans, &after_plan);
        cluster.request_plan(PlanReason::GatewayStarted);
        tracing::info!(
            epoch,
            models = cluster.models.len(),
            nodes = cluster.nodes.len(),
            replicas = cluster.plan.replicas.len(),
            policy = policy.name,
            "restored the state of the cluster"
        );
        Ok(cluster)
    }

    /// Restores the newest plan, and the replicas of earlier plans that may still run.
    fn restore_plans(
        &mut self,
        plans: Vec<StoredPlan>,
        after_plan: &BTreeMap<ModelId, Generation>,
    ) {
        let mut known = BTreeSet::new();
        let mut newest = true;
        for plan in plans {
            let mut replicas = Vec::new();
            for stored in &plan.replicas {
                // A model that was removed and registered again is another model of the same name.
                let same = after_plan
                    .get(&stored.model)
                    .is_some_and(|newest| *newest < plan.generation);
                if same && known.insert(stored.id) {
                    replicas.extend(self.placed_replica(stored));
                }
            }
            if newest {
                newest = false;
                self.plan = CurrentPlan {
                    replicas,
                    forecasts: by_model(&plan.models),
                    stored: Some(plan),
                };
            } else {
                let draining = false;
                self.earlier.extend(
                    replicas
                        .into_iter()
                        .map(|replica| EarlierReplica { replica, draining }),
                );
            }
        }
    }

    /// Adds the parameters that a node needs to a stored replica; `None` if its model is not registered.
    fn placed_replica(&self, stored: &StoredReplica) -> Option<PlacedReplica> {
        let program = Arc::clone(&self.models.get(&stored.model)?.program);
        let device_memory = self
            .nodes
            .get(stored.device.node())
            .and_then(|node| node.device(stored.device.local()))
            .map_or(ByteCount::ZERO, |device| device.memory_bytes);
        let memory = self
            .profiles
            .get(&stored.model, &stored.device_kind)
            .and_then(|profile| profile.memory(stored.batch_size))
            .unwrap_or_default();
        Some(PlacedReplica {
            id: stored.id,
            program,
            device: stored.device.clone(),
            device_memory,
            batch_size: stored.batch_size,
            compute_share: stored.compute_share,
            memory,
        })
    }

    /// Returns the time of the next [`tick`](Self::tick).
    pub(super) fn next_wake(&self) -> Instant {
        let far = Instant::now() + Duration::from_hours(1);
        let leases = self.nodes.values().filter_map(Node::lease_ends);
        leases
            .chain(self.planning_due())
            .min()
            .unwrap_or(far)
            .min(far)
    }

    /// Does what is due now.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        self.expire_leases(now);
        self.plan_if_due(now);
    }

    /// Takes the link states of the data plane.
    pub(super) fn links_changed(&mut self, links: BTreeMap<ReplicaId, LinkState>) {
        self.links = links;
        self.changed = true;
    }

    /// Updates everything that follows from the state: the assigned measurements, the wanted states of the nodes, the data
    /// plane's target.
    pub(super) fn advance(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.assign_measurements();
            self.advance_rollout();
        }
    }
}

/// Returns the forecasts by model.
pub(super) fn by_model(forecasts: &[StoredForecast]) -> BTreeMap<ModelId, StoredForecast> {
    forecasts
        .iter()
        .map(|forecast| (forecast.model.clone(), forecast.clone()))
        .collect()
}

/// Returns the stored policy; the default one if none is stored or this version does not have it.
fn stored_policy(name: Option<&str>) -> &'static PolicyEntry {
    let default = || {
        packhorse_placement::policy(packhorse_placement::DEFAULT_POLICY)
            .expect("the default policy is in the table")
    };
    let Some(name) = name else { return default() };
    packhorse_placement::policy(name).unwrap_or_else(|e| {
        tracing::warn!(error = %e, "the stored policy does not exist in this version; the default is used");
        default()
    })
}

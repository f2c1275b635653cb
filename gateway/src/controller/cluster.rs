//! The state of the cluster, as one task owns it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, DeviceKind, Discipline, Generation, ModelId, ModelSpec, NodeName, ProfileTable,
    Program, ReplicaId,
};
use packhorse_contention::PairTable;
use packhorse_control::rollout::{EarlierReplica, PlacedReplica};
use packhorse_placement::{PolicyEntry, PolicyOptions};
use tokio::time::Instant;

use super::{
    ControllerConfig, fitting::Fitting, measuring::Measuring, nodes::Node, observing::Observing,
    options::stored_options, planning::Planning, rolling::Published,
};
use crate::{
    driver::{DataPlane, LinkState},
    store::{Settings, Store, StoreError, StoredForecast, StoredPlan, StoredReplica},
};

/// How many stored plans are looked through for replicas that may still run after a restart in the middle of a rollout.
const PLANS_REMEMBERED: u32 = 16;

/// Everything the control plane knows.
pub(super) struct Cluster {
    pub(super) config: ControllerConfig,
    pub(super) store: Store,
    pub(super) data_plane: DataPlane,
    /// Counts the gateway's starts.
    pub(super) epoch: u64,
    pub(super) models: BTreeMap<ModelId, Model>,
    pub(super) nodes: BTreeMap<NodeName, Node>,
    pub(super) profiles: ProfileTable,
    pub(super) policy: &'static PolicyEntry,
    /// How it decides.
    pub(super) options: PolicyOptions,
    pub(super) discipline: Discipline,
    pub(super) planning: Planning,
    pub(super) plan: CurrentPlan,
    pub(super) measuring: Measuring,
    pub(super) observing: Observing,
    pub(super) fitting: Fitting,
    /// What was measured of pairs that share a device of a kind.
    pub(super) pairs: BTreeMap<DeviceKind, PairTable>,
    /// What is left of earlier plans.
    pub(super) earlier: Vec<EarlierReplica>,
    /// Replicas of the plan that wait for memory which earlier ones hold.
    pub(super) waiting: BTreeSet<ReplicaId>,
    pub(super) links: BTreeMap<ReplicaId, LinkState>,
    pub(super) published: Published,
    /// Until then, nodes that the plan uses are given time to report after the gateway's start.
    pub(super) settled_by: Instant,
    /// Something that the rollout looks at has changed.
    pub(super) changed: bool,
}

/// A registered model.
pub(super) struct Model {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) program: Arc<Program>,
    pub(super) artifact_bytes: u64,
    /// Why it cannot be served as it is registered.
    pub(super) failure: Option<String>,
}

/// The newest plan.
#[derive(Default)]
pub(super) struct CurrentPlan {
    /// As it is stored; none before the first.
    pub(super) stored: Option<StoredPlan>,
    /// Its replicas, with what their nodes need to know.
    pub(super) replicas: Vec<PlacedReplica>,
    /// What it promises; newer than the stored forecasts where a later solve came to the same placement.
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
    /// Reads back what is stored and begins a new epoch.
    pub(super) async fn restore(
        config: ControllerConfig,
        store: Store,
        data_plane: DataPlane,
    ) -> Result<Self, StoreError> {
        let given = Settings {
            policy: config.policy.map(|policy| policy.name.to_owned()),
            options: None,
            discipline: config.discipline,
        };
        store.put_settings(&given).await?;
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
        let plans = store.plans(None, PLANS_REMEMBERED).await?;
        let mut cluster = Self {
            epoch,
            models,
            nodes,
            profiles: store.profiles().await?,
            policy,
            options: stored_options(settings.options.as_ref()),
            discipline: settings.discipline.unwrap_or_default(),
            planning: Planning::default(),
            plan: CurrentPlan::default(),
            measuring: Measuring::default(),
            observing: Observing::new(),
            fitting: Fitting::default(),
            pairs: store.pairs().await?,
            earlier: Vec::new(),
            waiting: BTreeSet::new(),
            links: BTreeMap::new(),
            published: Published::default(),
            settled_by: now + config.lease,
            changed: true,
            config,
            store,
            data_plane,
        };
        cluster.learn_from_pairs();
        cluster.remember(plans, &after_plan);
        cluster.request_plan("the gateway started".to_owned());
        tracing::info!(
            epoch,
            models = cluster.models.len(),
            nodes = cluster.nodes.len(),
            replicas = cluster.plan.replicas.len(),
            policy = policy.name,
            "read the cluster's state back"
        );
        Ok(cluster)
    }

    /// Takes the newest plan up again, and what earlier ones may have left running.
    fn remember(&mut self, plans: Vec<StoredPlan>, after_plan: &BTreeMap<ModelId, Generation>) {
        let mut known = BTreeSet::new();
        let mut newest = true;
        for plan in plans {
            let mut replicas = Vec::new();
            for stored in &plan.replicas {
                // A model that was removed and registered again is another one, whatever its name.
                let same = after_plan
                    .get(&stored.model)
                    .is_some_and(|newest| *newest < plan.generation);
                if same && known.insert(stored.id) {
                    replicas.extend(self.placed(stored));
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

    fn placed(&self, stored: &StoredReplica) -> Option<PlacedReplica> {
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

    /// When there is something to do again even if nothing happens.
    pub(super) fn next_wake(&self) -> Instant {
        let far = Instant::now() + Duration::from_hours(1);
        let leases = self.nodes.values().filter_map(Node::lease_ends);
        leases
            .chain(self.planning_due())
            .min()
            .unwrap_or(far)
            .min(far)
    }

    /// Does what the clock says is due.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        self.expire_leases(now);
        self.plan_if_due(now);
    }

    /// Takes what the data plane says of its connections.
    pub(super) fn links_changed(&mut self, links: BTreeMap<ReplicaId, LinkState>) {
        self.links = links;
        self.changed = true;
    }

    /// Moves everything that follows from the state: what is measured where, what is wanted of every node, what is served.
    pub(super) fn advance(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.assign_measurements();
            self.roll();
        }
    }
}

pub(super) fn by_model(forecasts: &[StoredForecast]) -> BTreeMap<ModelId, StoredForecast> {
    forecasts
        .iter()
        .map(|forecast| (forecast.model.clone(), forecast.clone()))
        .collect()
}

fn stored_policy(name: Option<&str>) -> &'static PolicyEntry {
    let default = || {
        packhorse_placement::policy(packhorse_placement::DEFAULT_POLICY)
            .expect("the default policy is in the table")
    };
    let Some(name) = name else { return default() };
    packhorse_placement::policy(name).unwrap_or_else(|e| {
        tracing::warn!(error = %e, "the stored policy does not exist in this version; the default takes its place");
        default()
    })
}

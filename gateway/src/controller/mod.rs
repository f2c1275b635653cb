//! The control plane: one task owns the state of the cluster and executes the commands of HTTP handlers and agents. On every
//! change it plans again and rolls the plan out.
//!
//! The state is [`Cluster`]; each file here implements one subject of it. The decisions themselves are in pure crates: placement
//! policies in `placement`, the rollout in `control`. Policies run on threads of their own, so that a slow policy delays plans and
//! nothing else.

mod cluster;
mod device_observer;
mod draft;
mod explanation;
mod measurements;
mod memory_limits;
mod model_state;
mod models;
mod nodes;
mod pairs;
mod plan_reason;
mod planning;
mod planning_input;
mod planning_trouble;
mod preview;
mod rollout;
mod views;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use packhorse_api::{
    ModelChange, ModelView, NodeView, PlanPreview, PlanPreviewRequest, PlanView, PolicyChange,
    PolicyView,
    agent::{AgentStatus, LeaseGrant, LeaseRequest},
};
use packhorse_cluster::{
    DeviceKind, Discipline, ModelName, ModelSpec, ModelVersion, NodeName, ProfileTable, ReplicaId,
    WantedState,
};
use packhorse_contention::PairTable;
use packhorse_kernels::KernelTable;
use packhorse_placement::PolicyEntry;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    task::JoinError,
};
use tokio_util::sync::CancellationToken;

use crate::{
    driver::{DataPlane, LinkState},
    events::EventLog,
    store::{Scheduling, Store, StoreError},
};
use cluster::Cluster;

pub use explanation::ExplainError;
pub(crate) use models::slo_from_ms;
pub use models::{ModelError, RegisterError};
pub use nodes::{LeaseError, NodeError, StatusError, WantedError};
pub use pairs::PairsError;
pub use planning::PolicyError;
pub use planning_trouble::PlanningError;
pub use preview::PreviewError;
pub(crate) use preview::diff;
pub(crate) use views::plan_view;

/// The number of commands that may wait before their senders wait.
const COMMAND_QUEUE: usize = 256;
/// The largest number of previews and explanations that run at once. Each keeps a core busy for seconds, beside planning itself.
const MAX_PREVIEWS: usize = 4;

/// The settings of the control plane.
#[derive(Clone, Copy)]
pub struct ControllerConfig {
    /// The duration of a node's lease.
    pub lease: Duration,
    /// The time after which a measurement begins no further batch size.
    pub profile_time_limit: Duration,
    /// The time limit of a policy.
    pub solve_budget: Duration,
    /// The longest time for which the discipline `fixed-wait` holds an open batch.
    pub max_batch_wait: Duration,
    /// The placement policy; none for the stored one.
    pub policy: Option<&'static PolicyEntry>,
    /// The dispatch discipline; none for the stored one.
    pub discipline: Option<Discipline>,
}

/// A handle to the control plane. Clones share one control plane.
#[derive(Clone, Debug)]
pub struct Controller {
    commands: mpsc::Sender<Command>,
    /// One permit for each preview or explanation that may run.
    preview_permits: Arc<Semaphore>,
    stop: CancellationToken,
}

/// The control plane has ended, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gateway is shutting down")]
pub struct Stopped;

/// Too many previews and explanations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at most {MAX_PREVIEWS} previews and explanations run at once; retry in a few seconds")]
pub struct Busy;

/// A command that the owner of the state executes. It answers over a channel of its own.
type Command = Box<dyn for<'a> FnOnce(&'a mut Cluster) -> BoxFuture<'a, ()> + Send>;

impl Controller {
    /// Restores the stored state, begins a new epoch, and starts the task.
    ///
    /// # Errors
    /// If the database fails or contains a row that this version cannot read.
    pub async fn start(
        config: ControllerConfig,
        store: Store,
        data_plane: DataPlane,
        events: EventLog,
    ) -> Result<Self, StoreError> {
        let links = data_plane.links();
        let cluster = Cluster::restore(config, store, data_plane, events).await?;
        let (commands, received) = mpsc::channel(COMMAND_QUEUE);
        let stop = CancellationToken::new();
        tokio::spawn(run(cluster, received, links, stop.clone()));
        Ok(Self {
            commands,
            preview_permits: Arc::new(Semaphore::new(MAX_PREVIEWS)),
            stop,
        })
    }

    /// Ends the task. Everything that it has acknowledged is stored. Nodes and workers continue unchanged.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.commands.closed().await;
    }

    /// Registers a version of a model, durably.
    pub async fn register(
        &self,
        spec: ModelSpec,
    ) -> Result<Result<ModelView, RegisterError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.register(spec)))
            .await
    }

    /// Returns all models.
    pub async fn models(&self) -> Result<Vec<ModelView>, Stopped> {
        self.read(|cluster| cluster.model_views()).await
    }

    /// Returns a version of a model, the newest if none is given.
    pub async fn model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Result<ModelView, ModelError>, Stopped> {
        self.read(move |cluster| {
            let id = cluster.find_model(&name, version)?;
            cluster.model_view(&id)
        })
        .await
    }

    /// Changes the SLO, rate or queue limit of a version of a model, the newest if none is given.
    pub async fn change_model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
        change: ModelChange,
    ) -> Result<Result<ModelView, ModelError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.change_model(name, version, change)))
            .await
    }

    /// Removes a version of a model, or all versions if none is given.
    pub async fn remove_model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Result<(), ModelError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.remove_model(name, version)))
            .await
    }

    /// Returns all profiles.
    pub async fn profiles(&self) -> Result<ProfileTable, Stopped> {
        self.read(|cluster| cluster.profiles.clone()).await
    }

    /// Returns the recorded kernels of a model, in all its versions.
    pub async fn kernels(
        &self,
        model: ModelName,
    ) -> Result<Result<KernelTable, StoreError>, Stopped> {
        self.execute(move |cluster| Box::pin(async move { cluster.store.kernels(&model).await }))
            .await
    }

    /// Adds profiles. They replace existing ones of the same model and kind of device.
    pub async fn import_profiles(
        &self,
        profiles: ProfileTable,
    ) -> Result<Result<(), StoreError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.import_profiles(profiles)))
            .await
    }

    /// Returns the measured pairs of a kind of device.
    pub async fn pairs(&self, kind: DeviceKind) -> Result<PairTable, Stopped> {
        self.read(move |cluster| cluster.pairs.get(&kind).cloned().unwrap_or_default())
            .await
    }

    /// Replaces the measured pairs of a kind of device.
    pub async fn import_pairs(
        &self,
        kind: DeviceKind,
        pairs: PairTable,
    ) -> Result<Result<(), PairsError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.import_pairs(kind, pairs)))
            .await
    }

    /// Returns all nodes.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, Stopped> {
        self.read(|cluster| cluster.node_views()).await
    }

    /// Changes the scheduling of a node.
    pub async fn schedule_node(
        &self,
        node: NodeName,
        scheduling: Scheduling,
    ) -> Result<Result<NodeView, NodeError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.schedule_node(node, scheduling)))
            .await
    }

    /// Returns the current plan, if there is one.
    pub async fn plan(&self) -> Result<Option<PlanView>, Stopped> {
        self.read(|cluster| cluster.plan_view()).await
    }

    /// Returns the current plan with an explanation of what limits each model and what would serve it.
    pub async fn explained_plan(&self) -> Result<Result<PlanView, ExplainError>, Stopped> {
        let permit = match self.preview_permit() {
            Ok(permit) => permit,
            Err(busy) => return Ok(Err(busy.into())),
        };
        match self.read(|cluster| cluster.explanation_input()).await? {
            Ok(input) => Ok(input.run(permit).await),
            Err(e) => Ok(Err(e)),
        }
    }

    /// Returns the plan that a policy would make if the cluster were different. Changes nothing.
    pub async fn preview(
        &self,
        request: PlanPreviewRequest,
    ) -> Result<Result<PlanPreview, PreviewError>, Stopped> {
        let permit = match self.preview_permit() {
            Ok(permit) => permit,
            Err(busy) => return Ok(Err(busy.into())),
        };
        let input = self.read(move |cluster| cluster.preview_input(&request));
        match input.await? {
            Ok(input) => Ok(input.run(permit).await),
            Err(e) => Ok(Err(e)),
        }
    }

    fn preview_permit(&self) -> Result<OwnedSemaphorePermit, Busy> {
        let permits = Arc::clone(&self.preview_permits);
        permits.try_acquire_owned().map_err(|_| Busy)
    }

    /// Returns the policy, its options and the discipline.
    pub async fn policy(&self) -> Result<PolicyView, Stopped> {
        self.read(|cluster| cluster.policy_view()).await
    }

    /// Changes the policy, its options or the discipline.
    pub async fn change_policy(
        &self,
        change: PolicyChange,
    ) -> Result<Result<PolicyView, PolicyError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.change_policy(change)))
            .await
    }

    /// Grants or renews the lease of a node.
    pub async fn lease(
        &self,
        node: NodeName,
        request: LeaseRequest,
    ) -> Result<Result<LeaseGrant, LeaseError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.lease(node, request)))
            .await
    }

    /// Takes the status of a node.
    pub async fn status(
        &self,
        node: NodeName,
        status: AgentStatus,
    ) -> Result<Result<(), StatusError>, Stopped> {
        self.execute(move |cluster| Box::pin(cluster.status(node, status)))
            .await
    }

    /// Waits until the wanted state of a node is newer than `known` (epoch and revision), at most for `wait`, and returns it.
    pub async fn wanted(
        &self,
        node: NodeName,
        known: (u64, u64),
        wait: Duration,
    ) -> Result<Result<WantedState, WantedError>, Stopped> {
        let subscribed = self.read(move |cluster| cluster.subscribe_wanted(&node));
        let mut wanted = match subscribed.await? {
            Ok(wanted) => wanted,
            Err(e) => return Ok(Err(e)),
        };
        let newer = wanted.wait_for(|wanted| {
            wanted
                .as_ref()
                .is_some_and(|state| (state.epoch, state.revision) > known)
        });
        if let Ok(Err(_)) = tokio::time::timeout(wait, newer).await {
            return Err(Stopped);
        }
        let state = wanted.borrow().clone();
        Ok(state.ok_or(WantedError::NotReported))
    }

    /// Reads the state.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Cluster) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        self.execute(move |cluster| {
            let result = read(cluster);
            Box::pin(std::future::ready(result))
        })
        .await
    }

    /// Has the owner of the state execute a command. The command runs to its end even if the caller no longer waits for the answer.
    async fn execute<T: Send + 'static>(
        &self,
        execute: impl for<'a> FnOnce(&'a mut Cluster) -> BoxFuture<'a, T> + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        let command: Command = Box::new(move |cluster| {
            Box::pin(async move {
                // The caller may no longer wait.
                let _ = answer.send(execute(cluster).await);
            })
        });
        self.commands.send(command).await.map_err(|_| Stopped)?;
        answered.await.map_err(|_| Stopped)
    }
}

/// Executes commands and everything that falls due, until the controller stops.
async fn run(
    mut cluster: Cluster,
    mut commands: mpsc::Receiver<Command>,
    mut links: watch::Receiver<BTreeMap<ReplicaId, LinkState>>,
    stop: CancellationToken,
) {
    loop {
        cluster.advance();
        let (wake, period_end) = (cluster.next_wake(), cluster.observer.period_end());
        tokio::select! {
            () = stop.cancelled() => return,
            command = commands.recv() => match command {
                Some(command) => command(&mut cluster).await,
                None => return,
            },
            Ok(()) = links.changed() => {
                let now = links.borrow_and_update().clone();
                cluster.links_changed(now);
            }
            outcome = cluster.next_outcome() => cluster.adopt(outcome).await,
            () = tokio::time::sleep_until(period_end) => cluster.observe().await,
            () = tokio::time::sleep_until(wake) => cluster.tick(),
        }
    }
}

/// Runs a computation on a thread of its own, which holds the permit until the computation ends, even if the caller no longer
/// waits.
async fn run_with_permit<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let task = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        compute()
    });
    task.await
}

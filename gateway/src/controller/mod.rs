//! The control plane: one task owns the state of the cluster, handlers and agents ask it, and on every change it plans anew and
//! moves what runs towards the plan.
//!
//! The state is [`Cluster`], split by subject over the files here; the decisions themselves are pure and elsewhere: placement
//! policies in `placement`, make before break in `control`. Policies think on a thread of their own, so that a slow one delays
//! plans and nothing else.

mod cluster;
mod explaining;
mod fitting;
mod measuring;
mod models;
mod nodes;
mod observing;
mod options;
mod pairs;
mod planning;
mod preview;
mod question;
mod rolling;
mod state;
mod views;

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use packhorse_api::{
    ModelChange, ModelView, NodeView, PlanPreview, PlanPreviewRequest, PlanView, PolicyChange,
    PolicyView,
    agent::{AgentStatus, LeaseGrant, LeaseRequest},
};
use packhorse_cluster::{
    DeviceKind, Discipline, ModelId, ModelName, ModelSpec, ModelVersion, NodeName, ProfileTable,
    WantedState,
};
use packhorse_contention::PairTable;
use packhorse_kernels::KernelTable;
use packhorse_placement::PolicyEntry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    driver::DataPlane,
    store::{Scheduling, Store, StoreError},
};
use cluster::Cluster;

pub use explaining::ExplainError;
pub(crate) use models::slo_of_ms;
pub use models::{ModelError, RegisterError};
pub use nodes::{LeaseError, NodeError, StatusError, WantedError};
pub use options::OptionsError;
pub use pairs::PairsError;
pub use planning::PolicyError;
pub use preview::PreviewError;
pub(crate) use preview::diff;
pub(crate) use views::plan_view;

/// What the control plane is started with.
#[derive(Clone, Copy)]
pub struct ControllerConfig {
    /// How long a node counts as there without a word from its agent.
    pub lease: Duration,
    /// After this long a measurement begins no further batch size.
    pub profile_time_limit: Duration,
    /// How long a policy may think.
    pub solve_budget: Duration,
    /// How long the discipline `fixed-wait` holds an open batch at most.
    pub max_batch_wait: Duration,
    /// The placement policy, if it shall be another than the stored one.
    pub policy: Option<&'static PolicyEntry>,
    /// The dispatch discipline, if it shall be another than the stored one.
    pub discipline: Option<Discipline>,
}

/// A handle to the control plane. Clones speak to the same one.
#[derive(Clone, Debug)]
pub struct Controller {
    asks: mpsc::Sender<Ask>,
    /// A place for each preview and explanation that may be thought about at a time.
    thoughts: Arc<Semaphore>,
    stop: CancellationToken,
}

/// The control plane has ended, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gateway is stopping")]
pub struct Stopped;

/// As many previews and explanations are being thought about as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{THOUGHTS} previews and explanations are being thought about, which is the most at a time: try again in a few seconds"
)]
pub struct Busy;

/// Something to be done with the state, by its owner. It answers over a channel of its own.
type Ask = Box<dyn for<'a> FnOnce(&'a mut Cluster) -> BoxFuture<'a, ()> + Send>;

/// How many asks may wait before those who ask do.
const ASKS_WAITING: usize = 256;
/// How many previews and explanations may be thought about at a time: each keeps a core busy for seconds, beside the plan that
/// is wanted.
const THOUGHTS: usize = 4;

impl Controller {
    /// Reads back what is stored, begins a new epoch, and starts the task.
    ///
    /// # Errors
    /// If the database fails or holds what this version cannot read.
    pub async fn start(
        config: ControllerConfig,
        store: Store,
        data_plane: DataPlane,
    ) -> Result<Self, StoreError> {
        let links = data_plane.links();
        let cluster = Cluster::restore(config, store, data_plane).await?;
        let (asks, waiting) = mpsc::channel(ASKS_WAITING);
        let stop = CancellationToken::new();
        tokio::spawn(run(cluster, waiting, links, stop.clone()));
        Ok(Self {
            asks,
            thoughts: Arc::new(Semaphore::new(THOUGHTS)),
            stop,
        })
    }

    /// Ends the task. What it has acknowledged is stored; nodes and workers go on as they are.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.asks.closed().await;
    }

    /// Registers a version of a model, durably.
    pub async fn register(
        &self,
        spec: ModelSpec,
    ) -> Result<Result<ModelView, RegisterError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.register(spec)))
            .await
    }

    /// All models.
    pub async fn models(&self) -> Result<Vec<ModelView>, Stopped> {
        self.look(|cluster| cluster.model_views()).await
    }

    /// A version of a model, the newest if none is named.
    pub async fn model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Result<ModelView, ModelError>, Stopped> {
        self.look(move |cluster| {
            let id = cluster.find_model(&name, version)?;
            cluster.model_view(&id)
        })
        .await
    }

    /// Changes what is promised of a version of a model, the newest if none is named.
    pub async fn change_model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
        change: ModelChange,
    ) -> Result<Result<ModelView, ModelError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.change_model(name, version, change)))
            .await
    }

    /// Removes a version of a model, or all of them if none is named.
    pub async fn remove_model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Result<(), ModelError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.remove_model(name, version)))
            .await
    }

    /// All profiles.
    pub async fn profiles(&self) -> Result<ProfileTable, Stopped> {
        self.look(|cluster| cluster.profiles.clone()).await
    }

    /// The kernels that were recorded of a model, in all its versions.
    pub async fn kernels(
        &self,
        model: ModelName,
    ) -> Result<Result<KernelTable, StoreError>, Stopped> {
        self.ask(move |cluster| Box::pin(async move { cluster.store.kernels(&model).await }))
            .await
    }

    /// Adds profiles, replacing those there are for the same model and kind of device.
    pub async fn import_profiles(
        &self,
        profiles: ProfileTable,
    ) -> Result<Result<(), StoreError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.import_profiles(profiles)))
            .await
    }

    /// The pairs that were measured on a kind of device; none where nobody has.
    pub async fn pairs(&self, kind: DeviceKind) -> Result<PairTable, Stopped> {
        self.look(move |cluster| cluster.pairs.get(&kind).cloned().unwrap_or_default())
            .await
    }

    /// Takes pairs that were measured on a kind of device, in the place of those there are.
    pub async fn import_pairs(
        &self,
        kind: DeviceKind,
        pairs: PairTable,
    ) -> Result<Result<(), PairsError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.import_pairs(kind, pairs)))
            .await
    }

    /// All nodes.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, Stopped> {
        self.look(|cluster| cluster.node_views()).await
    }

    /// Says what shall be placed on a node.
    pub async fn schedule_node(
        &self,
        node: NodeName,
        scheduling: Scheduling,
    ) -> Result<Result<NodeView, NodeError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.schedule_node(node, scheduling)))
            .await
    }

    /// The current plan, if there is one.
    pub async fn plan(&self) -> Result<Option<PlanView>, Stopped> {
        self.look(|cluster| cluster.plan_view()).await
    }

    /// The current plan, with what bounds each model and what would serve it.
    pub async fn explained_plan(&self) -> Result<Result<PlanView, ExplainError>, Stopped> {
        let place = match self.place_to_think() {
            Ok(place) => place,
            Err(busy) => return Ok(Err(busy.into())),
        };
        match self.look(|cluster| cluster.explaining()).await? {
            Ok(explaining) => Ok(explaining.answer(place).await),
            Err(e) => Ok(Err(e)),
        }
    }

    /// What would be planned if something were different. Changes nothing.
    pub async fn preview(
        &self,
        request: PlanPreviewRequest,
    ) -> Result<Result<PlanPreview, PreviewError>, Stopped> {
        let place = match self.place_to_think() {
            Ok(place) => place,
            Err(busy) => return Ok(Err(busy.into())),
        };
        match self.look(move |cluster| cluster.preview(&request)).await? {
            Ok(preview) => Ok(preview.answer(place).await),
            Err(e) => Ok(Err(e)),
        }
    }

    fn place_to_think(&self) -> Result<OwnedSemaphorePermit, Busy> {
        let thoughts = Arc::clone(&self.thoughts);
        thoughts.try_acquire_owned().map_err(|_| Busy)
    }

    /// How models are placed and requests dispatched.
    pub async fn policy(&self) -> Result<PolicyView, Stopped> {
        self.look(|cluster| cluster.policy_view()).await
    }

    /// Changes how models are placed and requests dispatched.
    pub async fn change_policy(
        &self,
        change: PolicyChange,
    ) -> Result<Result<PolicyView, PolicyError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.change_policy(change)))
            .await
    }

    /// Takes or renews the lease of a node.
    pub async fn lease(
        &self,
        node: NodeName,
        request: LeaseRequest,
    ) -> Result<Result<LeaseGrant, LeaseError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.lease(node, request)))
            .await
    }

    /// Takes what an agent reports of its node.
    pub async fn status(
        &self,
        node: NodeName,
        status: AgentStatus,
    ) -> Result<Result<(), StatusError>, Stopped> {
        self.ask(move |cluster| Box::pin(cluster.status(node, status)))
            .await
    }

    /// What is wanted of a node, as soon as it is newer than `known` (epoch and revision), or after `wait` what it is then.
    pub async fn wanted(
        &self,
        node: NodeName,
        known: (u64, u64),
        wait: Duration,
    ) -> Result<Result<WantedState, WantedError>, Stopped> {
        let looked = self.look(move |cluster| cluster.wanted(&node)).await?;
        let mut wanted = match looked {
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

    /// Looks at the state.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Cluster) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        self.ask(move |cluster| {
            let seen = look(cluster);
            Box::pin(std::future::ready(seen))
        })
        .await
    }

    /// Has something done with the state by its owner. It is done to its end even if nobody waits for the answer any more.
    async fn ask<T: Send + 'static>(
        &self,
        act: impl for<'a> FnOnce(&'a mut Cluster) -> BoxFuture<'a, T> + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        let ask: Ask = Box::new(move |cluster| {
            Box::pin(async move {
                // Who asked may have gone.
                let _ = answer.send(act(cluster).await);
            })
        });
        self.asks.send(ask).await.map_err(|_| Stopped)?;
        answered.await.map_err(|_| Stopped)
    }
}

async fn run(
    mut cluster: Cluster,
    mut asks: mpsc::Receiver<Ask>,
    mut links: watch::Receiver<
        std::collections::BTreeMap<packhorse_cluster::ReplicaId, crate::driver::LinkState>,
    >,
    stop: CancellationToken,
) {
    loop {
        cluster.advance();
        let (wake, period_end) = (cluster.next_wake(), cluster.observing.due());
        tokio::select! {
            () = stop.cancelled() => return,
            ask = asks.recv() => match ask {
                Some(ask) => ask(&mut cluster).await,
                None => return,
            },
            Ok(()) = links.changed() => {
                let now = links.borrow_and_update().clone();
                cluster.links_changed(now);
            }
            solved = cluster.solved() => cluster.adopt(solved).await,
            () = tokio::time::sleep_until(period_end) => cluster.observe().await,
            () = tokio::time::sleep_until(wake) => cluster.tick(),
        }
    }
}

/// The name of a model as it is spoken of in reasons.
fn spoken(model: &ModelId) -> String {
    format!("model {model}")
}

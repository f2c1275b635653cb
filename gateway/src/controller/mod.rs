//! The control plane: one task owns the state machine of `packhorse-control` and carries out its effects.
//!
//! Commands of HTTP handlers and agents, states of the data plane's links, solved plans and stored writes reach the task as messages.
//! It never waits for what takes long: writes are carried out by a task of their own, policies run on threads of their own.

mod acts;
mod batch_times;
mod consequences;
mod cure_previews;
mod cures;
mod explanation;
mod finding_views;
mod outcome;
mod permits;
mod preview;
mod replica_state;
mod settings;
mod sizing;
mod solver;
mod task;
mod telling;
mod views;
mod wanted;
mod writer;

use std::{sync::Arc, time::Duration};

use packhorse_api::{
    AuditActor, BatchTimeView, ImportedProfiles, ModelView, NodeView, PlanPreview,
    PlanPreviewRequest, PlanView, PolicyView,
    agent::{GpuStatus, LeaseGrant},
};
use packhorse_cluster::{
    DeviceKind, Generation, ModelId, ModelName, ModelSpec, ModelVersion, NodeName, Profile,
    ProfileSource, ProfileTable, Scheduling, WantedState,
};
use packhorse_contention::PairTable;
use packhorse_control::{
    Command, CommandError, LeaseClaim, ModelSpecChange, NodeReport, PlanReason, PlanningInput,
    RepositoryProblem, SplitChange,
    record::{PlanOutcome, Settings},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    audit::Act,
    driver::{DataPlane, LinkChange},
    events::{EventLog, Findings},
    store::{Store, StoreError},
    tasks::Tasks,
};
use permits::MAX_PREVIEWS;
use task::{Message, Task};

pub use consequences::Rehearsal;
pub use explanation::ExplainError;
pub use permits::Busy;
pub use preview::PreviewError;
pub(crate) use preview::diff;
pub use settings::ControllerConfig;
pub(crate) use settings::slo_from_ms;
pub(crate) use views::plan_view;
pub use wanted::WantedError;

/// The number of messages that may wait before their senders wait.
const MESSAGE_QUEUE: usize = 1024;
/// A handle to the control plane. Clones share one control plane.
#[derive(Clone, Debug)]
pub struct Controller {
    messages: mpsc::Sender<Message>,
    solve_budget: Duration,
    /// One permit for each preview or explanation that may run.
    preview_permits: Arc<Semaphore>,
    /// Who sends this handle's commands; `None` for agents.
    actor: Option<AuditActor>,
    stop: CancellationToken,
    ended: CancellationToken,
}

/// The control plane has ended, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gateway is shutting down")]
pub struct Stopped;

impl Controller {
    /// Restores the stored state, begins a new epoch, and starts the task.
    ///
    /// # Errors
    /// If the database fails or contains a row that this version cannot read.
    pub async fn start(
        config: ControllerConfig,
        store: Store,
        data_plane: DataPlane,
        links: mpsc::UnboundedReceiver<LinkChange>,
        events: EventLog,
        findings: Findings,
        tasks: &Tasks,
    ) -> Result<Self, StoreError> {
        let stop = CancellationToken::new();
        let (messages, received) = mpsc::channel(MESSAGE_QUEUE);
        let task = Task::restore(&config, store, data_plane, events, findings, tasks).await?;
        let ended = CancellationToken::new();
        let running = task.run(received, links, stop.clone());
        let guard = ended.clone().drop_guard();
        let stopping = tasks.stopping();
        tasks.spawn("control plane", async move {
            let guard = guard;
            running.await;
            drop(guard);
            // It also ends with the data plane, whose end is then the one to tell.
            stopping.await;
        });
        Ok(Self {
            messages,
            ended,
            solve_budget: config.solve_budget,
            preview_permits: Arc::new(Semaphore::new(MAX_PREVIEWS)),
            actor: None,
            stop,
        })
    }

    /// Ends the task. Everything that it has acknowledged is stored. Nodes and workers continue unchanged.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.ended.cancelled().await;
    }

    /// Returns a handle whose commands are recorded as acts of this actor.
    #[must_use]
    pub fn by(&self, actor: AuditActor) -> Self {
        Self {
            actor: Some(actor),
            ..self.clone()
        }
    }

    /// Registers a version of a model, durably. `artifact_bytes` is the size of its file.
    pub async fn register(
        &self,
        spec: ModelSpec,
        artifact_bytes: u64,
    ) -> Result<Result<ModelView, CommandError>, Stopped> {
        let id = spec.program.model.clone();
        let command = Command::Register(Box::new(spec), artifact_bytes);
        self.command(command, move |task| task.model_view(&id))
            .await
    }

    /// Registers a version of a model like [`Self::register`], in the place of one of the same name and version if there is one.
    pub async fn replace(
        &self,
        spec: ModelSpec,
        artifact_bytes: u64,
    ) -> Result<Result<ModelView, CommandError>, Stopped> {
        let id = spec.program.model.clone();
        let command = Command::Replace(Box::new(spec), artifact_bytes);
        self.command(command, move |task| task.model_view(&id))
            .await
    }

    /// Says what is wrong with the folder of models, in place of what was wrong with it before.
    pub async fn report_repository(
        &self,
        problems: Vec<RepositoryProblem>,
    ) -> Result<Result<(), CommandError>, Stopped> {
        let command = Command::ReportRepository(problems);
        self.command(command, |_| Ok(())).await
    }

    /// Returns all models.
    pub async fn models(&self) -> Result<Vec<ModelView>, Stopped> {
        self.read(Task::model_views).await
    }

    /// Returns a version of a model, the newest if none is given.
    pub async fn model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Result<ModelView, CommandError>, Stopped> {
        self.read(move |task| task.find_model_view(&name, version))
            .await
    }

    /// Changes a version of a model, the newest if none is given.
    pub async fn change_model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
        change: ModelSpecChange,
    ) -> Result<Result<ModelView, CommandError>, Stopped> {
        let command = Command::ChangeModel(name.clone(), version, change);
        self.command(command, move |task| task.find_model_view(&name, version))
            .await
    }

    /// Changes how a model's requests are split over its versions. Returns its newest version.
    pub async fn change_split(
        &self,
        name: ModelName,
        change: SplitChange,
    ) -> Result<Result<ModelView, CommandError>, Stopped> {
        let command = Command::Split(name.clone(), change);
        self.command(command, move |task| task.find_model_view(&name, None))
            .await
    }

    /// Removes a version of a model, or all versions if none is given.
    pub async fn remove_model(
        &self,
        name: ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Result<(), CommandError>, Stopped> {
        let command = Command::RemoveModel(name, version);
        self.command(command, |_| Ok(())).await
    }

    /// Returns all profiles.
    pub async fn profiles(&self) -> Result<ProfileTable, Stopped> {
        self.read(|task| task.controller().profiles().clone()).await
    }

    /// Returns the times of the batches of a model in all its versions, in its profiles and as they were observed.
    pub async fn batch_times(
        &self,
        name: ModelName,
    ) -> Result<Result<Vec<BatchTimeView>, CommandError>, Stopped> {
        self.read(move |task| task.batch_time_views(&name)).await
    }

    /// Adds profiles. They replace existing ones of the same model and kind of device, but estimates replace no measured ones.
    pub async fn import_profiles(
        &self,
        profiles: ProfileTable,
    ) -> Result<Result<ImportedProfiles, CommandError>, Stopped> {
        let given = profiles.clone();
        self.command(Command::ImportProfiles(profiles), move |task| {
            let present = task.controller().profiles();
            let is_left_out = |(id, kind, profile): &(&ModelId, &DeviceKind, &Profile)| {
                profile.source() == ProfileSource::Estimated && present.is_measured(id, kind)
            };
            let left_out = given.iter().filter(is_left_out).count();
            Ok(ImportedProfiles {
                imported: given.len() - left_out,
                left_out,
            })
        })
        .await
    }

    /// Returns the measured pairs of a kind of device.
    pub async fn pairs(&self, kind: DeviceKind) -> Result<PairTable, Stopped> {
        self.read(move |task| task.controller().pairs(&kind).cloned().unwrap_or_default())
            .await
    }

    /// Replaces the measured pairs of a kind of device.
    pub async fn import_pairs(
        &self,
        kind: DeviceKind,
        pairs: PairTable,
    ) -> Result<Result<(), CommandError>, Stopped> {
        self.command(Command::ImportPairs(kind, pairs), |_| Ok(()))
            .await
    }

    /// Returns all nodes.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, Stopped> {
        self.read(Task::node_views).await
    }

    /// Changes the scheduling of a node. A drain may be given a time after which it no longer waits for models that have no place
    /// elsewhere.
    pub async fn schedule_node(
        &self,
        node: NodeName,
        scheduling: Scheduling,
        time: Option<Duration>,
    ) -> Result<Result<NodeView, CommandError>, Stopped> {
        let command = Command::ScheduleNode(node.clone(), scheduling, time);
        self.command(command, move |task| task.node_view(&node))
            .await
    }

    /// Removes a node that holds no lease.
    pub async fn remove_node(&self, node: NodeName) -> Result<Result<(), CommandError>, Stopped> {
        self.command(Command::RemoveNode(node), |_| Ok(())).await
    }

    /// Returns the current plan, if there is one.
    pub async fn plan(&self) -> Result<Option<PlanView>, Stopped> {
        self.read(Task::plan_view).await
    }

    /// Returns the number of the current plan, and the requests since it was adopted or the gateway was started.
    pub async fn plan_outcome(&self) -> Result<Option<(Generation, PlanOutcome)>, Stopped> {
        self.read(|task| {
            let controller = task.controller();
            Some((controller.plan()?.generation, controller.plan_outcome()))
        })
        .await
    }

    /// Returns the current plan with an explanation of what limits each model and what would serve it.
    pub async fn explained_plan(&self) -> Result<Result<PlanView, ExplainError>, Stopped> {
        let permit = match self.preview_permit() {
            Ok(permit) => permit,
            Err(busy) => return Ok(Err(busy.into())),
        };
        match self.read(Task::explanation_input).await? {
            Ok(input) => Ok(input.run(permit, self.solve_budget).await),
            Err(e) => Ok(Err(e)),
        }
    }

    /// Returns the input of the policy if a plan were made now.
    pub async fn planning_input(&self) -> Result<PlanningInput, Stopped> {
        self.read(|task| {
            let controller = task.controller();
            let policy = controller.policy().to_owned();
            controller.planning_input(policy, PlanReason::Preview.into())
        })
        .await
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
        let input = self.read(move |task| task.preview_input(&request));
        match input.await? {
            Ok(input) => Ok(input.run(permit, self.solve_budget).await),
            Err(e) => Ok(Err(e)),
        }
    }

    /// Checks commands that are about to be executed one after the other, so that their consequences can be told. Changes nothing. The state
    /// is copied for this only if a permit is free: the copy takes the task's time.
    pub async fn rehearse(
        &self,
        commands: Vec<Command>,
    ) -> Result<Result<Rehearsal, CommandError>, Stopped> {
        let permit = match self.preview_permit() {
            Ok(permit) => permit,
            Err(busy) => {
                let checked = self.read(move |task| {
                    let controller = task.controller();
                    controller.check_all(controller.now(), commands)
                });
                return Ok(checked.await?.map(|()| Rehearsal::refused(busy)));
            }
        };
        let checked = self.read(move |task| {
            let controller = task.controller();
            controller.dry_run(controller.now(), commands)
        });
        let rehearsal = |dry_run| Rehearsal::new(dry_run, permit, self.solve_budget);
        Ok(checked.await?.map(rehearsal))
    }

    fn preview_permit(&self) -> Result<OwnedSemaphorePermit, Busy> {
        let permits = Arc::clone(&self.preview_permits);
        permits.try_acquire_owned().map_err(|_| Busy)
    }

    /// Returns the policy, its options and the discipline.
    pub async fn policy(&self) -> Result<PolicyView, Stopped> {
        self.read(Task::policy_view).await
    }

    /// Changes the policy to another one of [`packhorse_placement::policy`], its options or the discipline.
    pub async fn change_policy(
        &self,
        change: Settings,
    ) -> Result<Result<PolicyView, CommandError>, Stopped> {
        let command = Command::ChangeSettings(change);
        self.command(command, |task| Ok(task.policy_view())).await
    }

    /// Grants or renews the lease of a node.
    pub async fn lease(
        &self,
        node: NodeName,
        claim: LeaseClaim,
    ) -> Result<Result<LeaseGrant, CommandError>, Stopped> {
        let command = Command::TakeLease(node, claim);
        self.command(command, |task| Ok(task.grant())).await
    }

    /// Takes the report of a node, and the readings of its GPUs.
    pub async fn report(
        &self,
        node: NodeName,
        report: NodeReport,
        gpus: Vec<GpuStatus>,
    ) -> Result<Result<(), CommandError>, Stopped> {
        let command = Command::Report(node.clone(), report);
        self.command(command, move |task| {
            task.set_gpus(&node, gpus);
            Ok(())
        })
        .await
    }

    /// Waits until the wanted state of a node is newer than `known` (epoch and revision), at most for `wait`, and returns it.
    pub async fn wanted(
        &self,
        node: NodeName,
        known: (u64, u64),
        wait: Duration,
    ) -> Result<Result<Arc<WantedState>, WantedError>, Stopped> {
        let subscribed = self.read(move |task| task.subscribe_wanted(&node));
        let mut wanted: watch::Receiver<Option<Arc<WantedState>>> = match subscribed.await? {
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

    /// Has the task execute a command, and reads the state once its change is durable. The command is executed even if the caller no
    /// longer waits for the answer.
    async fn command<T: Send + 'static>(
        &self,
        command: Command,
        read: impl FnOnce(&Task) -> Result<T, CommandError> + Send + 'static,
    ) -> Result<Result<T, CommandError>, Stopped> {
        let (answer, answered) = oneshot::channel();
        let then = Box::new(move |task: &Task, result: Result<(), CommandError>| {
            // The caller may no longer wait.
            let _ = answer.send(result.and_then(|()| read(task)));
        });
        let actor = self.actor.as_ref();
        let act = actor.and_then(|actor| Act::of_command(actor, &command));
        let message = Message::Command(Box::new((command, act)), then);
        self.messages.send(message).await.map_err(|_| Stopped)?;
        answered.await.map_err(|_| Stopped)
    }

    /// Takes the permits of all previews.
    #[cfg(test)]
    pub(crate) fn preview_permits(&self) -> Vec<OwnedSemaphorePermit> {
        std::iter::from_fn(|| self.preview_permit().ok()).collect()
    }

    /// Has the task panic.
    #[cfg(test)]
    pub(crate) async fn panic(&self) {
        let read = self.read::<()>(|_| panic!("a test asked for it"));
        assert_eq!(read.await, Err(Stopped));
    }

    /// Reads the state.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Task) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        let message = Message::Read(Box::new(move |task: &Task| {
            let _ = answer.send(read(task));
        }));
        self.messages.send(message).await.map_err(|_| Stopped)?;
        answered.await.map_err(|_| Stopped)
    }
}

//! From what is wanted of a node and what runs there to the next action: the agent's loop, without its hands.
//!
//! The driver tells a [`Reconciler`] what happens ([`Event`]), does what it says ([`Action`]) and reports the outcome as another
//! event. Whatever happened before, what runs becomes what is wanted: missing workers are started, dead ones started again after
//! a pause, unwanted ones told to finish and then killed, workers of an earlier agent adopted.
//!
//! Nothing is started on a device while an unwanted process there has not ended: the gateway counts what it does not want any
//! more as gone when it gives a device's memory away.
//!
//! A device that fails takes all its workers with it, whoever caused it: they are killed at once, and started again when the device
//! is well and the last of them has ended. Those of other devices serve on.

mod artifacts;
mod task;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use packhorse_cluster::{
    ArtifactDigest, ByteCount, Capacity, DeviceKind, ModelId, ProfileProgress, Program, ReplicaId,
    ReplicaStatus, Time, WantedProfile, WantedReplica, WantedState,
};

use serde::{Deserialize, Serialize};

use artifacts::Artifacts;
use task::{Ending, Phase, Run, TaskBook};

/// What one worker process is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// It serves a replica.
    Serve(WantedReplica),
    /// It makes a measurement.
    Measure(WantedProfile),
}

/// Which task; at most one process per task runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskId {
    /// Serving this replica.
    Replica(ReplicaId),
    /// Measuring this model on this kind of device.
    Measurement(ModelId, DeviceKind),
}

impl Task {
    /// Which task it is.
    pub fn id(&self) -> TaskId {
        match self {
            Self::Serve(replica) => TaskId::Replica(replica.id),
            Self::Measure(profile) => {
                TaskId::Measurement(profile.program.model.clone(), profile.device_kind.clone())
            }
        }
    }

    /// What it runs.
    pub fn program(&self) -> &Program {
        match self {
            Self::Serve(replica) => &replica.program,
            Self::Measure(profile) => &profile.program,
        }
    }

    /// The device, by its name within the node.
    pub fn device(&self) -> &str {
        match self {
            Self::Serve(replica) => &replica.device,
            Self::Measure(profile) => &profile.device,
        }
    }

    /// Whether a process that does one does the other.
    fn runs_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Serve(one), Self::Serve(other)) => one.runs_as(other),
            _ => self == other,
        }
    }

    fn measures(&self) -> bool {
        matches!(self, Self::Measure(_))
    }
}

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum WorkerReport {
    /// It loads the program and warms up.
    Loading,
    /// Serve only: it takes batches.
    Ready {
        /// Where it listens.
        address: SocketAddr,
        /// Memory it needs, where that is known.
        memory: Option<ByteCount>,
        /// What it is capable of; none of a worker that does not say yet.
        #[serde(default)]
        capacity: Option<Capacity>,
    },
    /// Serve only: it answers what it has and ends.
    Draining,
    /// Profile only: it measures.
    Measuring {
        /// Batch sizes measured so far.
        done: u32,
        /// Batch sizes to measure in all.
        total: u32,
    },
    /// Profile only: it has measured and ends.
    Measured {
        /// Batch sizes measured.
        done: u32,
        /// Batch sizes to measure in all; more than `done` where the time ran out.
        total: u32,
        /// The profile, in the CSV contract.
        csv: String,
        /// The kernels that were recorded with it, as CSV, where the device runs kernels.
        #[serde(default)]
        kernels: Option<String>,
    },
    /// It gives up and ends.
    Failed {
        /// Why, for people; names no paths.
        reason: String,
        /// Whether starting it again with the same task is bound to fail again: the program cannot be served as registered.
        permanent: bool,
    },
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The gateway granted the lease in this epoch: nothing older is obeyed from now on.
    Leased {
        /// The gateway's epoch.
        epoch: u64,
    },
    /// The gateway said what is wanted.
    Wanted(WantedState),
    /// The artifact is in the cache: found there at the start, or fetched.
    Fetched(ArtifactDigest),
    /// The artifact could not be fetched.
    FetchFailed(ArtifactDigest, String),
    /// A worker of an earlier agent still runs.
    Found(Task, u32),
    /// The process was started and has this id.
    Started(TaskId, u32),
    /// The process could not be started.
    StartFailed(TaskId, String),
    /// The worker's report changed.
    Reported(TaskId, WorkerReport),
    /// The process ended; with the cause, for people.
    Exited(TaskId, String),
    /// The device, by its name within the node, cannot compute any more, and nothing that runs there will; with the cause, for
    /// people.
    DeviceFailed(String, String),
    /// The device takes workers again.
    DeviceRecovered(String),
    /// The agent ends and takes its workers along: from now on nothing is wanted.
    StopAll,
}

/// Something to do. The outcome comes back as an [`Event`] where one is named.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Fetch into the cache: [`Event::Fetched`] or [`Event::FetchFailed`].
    Fetch(ArtifactDigest),
    /// Remove from the cache.
    Evict(ArtifactDigest),
    /// Start a worker: [`Event::Started`] or [`Event::StartFailed`].
    Start(Task),
    /// Tell the worker to finish what it has and end: [`Event::Exited`].
    Terminate(TaskId),
    /// Kill the worker: [`Event::Exited`].
    Kill(TaskId),
    /// Remove what is left of a task that has no process and is not wanted.
    Forget(TaskId),
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From telling a worker to finish until it is killed.
    pub drain: Duration,
    /// From a worker's start until it is ready.
    pub load: Duration,
    /// What a measurement may take beyond its own time limit, loading included.
    pub measure_grace: Duration,
}

/// Makes what runs on a node equal what is wanted of it.
///
/// Contract: `now` never goes back. After every [`handle`](Self::handle) and whenever [`wakeup`](Self::wakeup) has passed, the
/// driver calls [`poll`](Self::poll) and does everything it returns, in order.
#[derive(Debug)]
pub struct Reconciler {
    devices: BTreeSet<String>,
    /// Why a device takes no workers, of those that do not.
    failed_devices: BTreeMap<String, String>,
    limits: Limits,
    epoch: u64,
    applied: Option<(u64, u64)>,
    wanted: BTreeMap<TaskId, Task>,
    stopping: bool,
    tasks: BTreeMap<TaskId, TaskBook>,
    artifacts: Artifacts,
}

impl Reconciler {
    /// For a node with these devices. Until the first wanted state it starts and stops nothing.
    pub fn new(devices: impl IntoIterator<Item = String>, limits: Limits) -> Self {
        Self {
            devices: devices.into_iter().collect(),
            failed_devices: BTreeMap::new(),
            limits,
            epoch: 0,
            applied: None,
            wanted: BTreeMap::new(),
            stopping: false,
            tasks: BTreeMap::new(),
            artifacts: Artifacts::default(),
        }
    }

    /// The newest epoch seen: nothing older is obeyed.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Epoch and revision of the wanted state that is being made true; zeros before the first.
    pub fn applied(&self) -> (u64, u64) {
        self.applied.unwrap_or_default()
    }

    /// Whether no process is left.
    pub fn is_idle(&self) -> bool {
        !self.tasks.values().any(TaskBook::has_process)
    }

    /// Takes note of what happened.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Leased { epoch } => self.epoch = self.epoch.max(epoch),
            Event::Wanted(state) => self.want(state),
            Event::Fetched(digest) => self.artifacts.fetched(digest),
            Event::FetchFailed(digest, reason) => self.artifacts.failed(now, digest, reason),
            Event::Found(task, pid) => {
                let mut book = TaskBook::new(task);
                book.phase = Phase::Running(Run::new(pid, now));
                self.tasks.insert(book.task.id(), book);
            }
            Event::Started(id, pid) => {
                if let Some(book) = self.tasks.get_mut(&id) {
                    book.phase = Phase::Running(Run::new(pid, now));
                }
            }
            Event::StartFailed(id, reason) => {
                if let Some(book) = self.tasks.get_mut(&id) {
                    book.back_off(now, reason);
                }
            }
            Event::Reported(id, report) => {
                if let Some(book) = self.tasks.get_mut(&id) {
                    book.reported(now, report);
                }
            }
            Event::Exited(id, cause) => {
                if let Some(book) = self.tasks.get_mut(&id) {
                    book.exited(now, cause);
                }
            }
            Event::DeviceFailed(device, cause) => {
                self.failed_devices.insert(device, cause);
            }
            Event::DeviceRecovered(device) => {
                self.failed_devices.remove(&device);
            }
            Event::StopAll => {
                self.stopping = true;
                self.wanted.clear();
            }
        }
    }

    fn want(&mut self, state: WantedState) {
        let version = (state.epoch, state.revision);
        if self.stopping || state.epoch < self.epoch || self.applied.is_some_and(|a| version <= a) {
            return;
        }
        self.epoch = state.epoch;
        self.applied = Some(version);
        let serve = state.replicas.into_iter().map(Task::Serve);
        let measure = state.profiles.into_iter().map(Task::Measure);
        self.wanted = serve.chain(measure).map(|task| (task.id(), task)).collect();
    }

    /// What is to be done now.
    pub fn poll(&mut self, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.applied.is_some() || self.stopping {
            self.drop_unwanted(&mut actions);
            self.admit_wanted();
        }
        self.end_processes(now, &mut actions);
        let (used, missing) = self.digests();
        actions.extend(missing.into_iter().filter_map(|digest| {
            self.artifacts
                .fetch(now, digest)
                .then_some(Action::Fetch(digest))
        }));
        if self.applied.is_some() {
            let unused = self.artifacts.evict_unused(&used);
            actions.extend(unused.into_iter().map(Action::Evict));
        }
        self.start_processes(now, &mut actions);
        actions
    }

    /// When [`poll`](Self::poll) has something to do although nothing happens.
    pub fn wakeup(&self) -> Option<Time> {
        let tasks = self
            .tasks
            .values()
            .filter_map(|book| book.wakeup(&self.limits));
        tasks.chain(self.artifacts.wakeup()).min()
    }

    fn is_wanted(&self, book: &TaskBook) -> bool {
        let undecided = self.applied.is_none() && !self.stopping;
        let wanted = self.wanted.get(&book.task.id());
        undecided || wanted.is_some_and(|wanted| wanted.runs_as(&book.task))
    }

    fn drop_unwanted(&mut self, actions: &mut Vec<Action>) {
        let leaving: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, book)| !self.is_wanted(book) && !book.has_process())
            .map(|(id, _)| id.clone())
            .collect();
        for id in leaving {
            self.tasks.remove(&id);
            actions.push(Action::Forget(id));
        }
    }

    fn admit_wanted(&mut self) {
        for (id, task) in &self.wanted {
            self.tasks.entry(id.clone()).or_insert_with(|| {
                let mut book = TaskBook::new(task.clone());
                if !self.devices.contains(task.device()) {
                    book.phase = Phase::Over;
                    book.reason = Some(format!("this node has no device {:?}", task.device()));
                }
                book
            });
        }
    }

    /// Unwanted workers, and those that take too long or have failed for good, are told to end, and killed when they do not. Those
    /// of a failed device can do neither and are killed.
    fn end_processes(&mut self, now: Time, actions: &mut Vec<Action>) {
        let unwanted: BTreeSet<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, book)| !self.is_wanted(book))
            .map(|(id, _)| id.clone())
            .collect();
        for (id, book) in &mut self.tasks {
            let overdue = book.overdue(now, &self.limits);
            let failed = book.failed_for_good();
            let failed_device = self.failed_devices.get(book.task.device());
            let Phase::Running(run) = &mut book.phase else {
                continue;
            };
            let killed = matches!(run.ending, Some(Ending { kill_at: None, .. }));
            if let Some(cause) = failed_device.filter(|_| !killed) {
                run.ending = Some(Ending::with_device(cause.clone()));
                actions.push(Action::Kill(id.clone()));
                continue;
            }
            match &mut run.ending {
                None => {
                    if unwanted.contains(id) || failed {
                        run.ending = Some(Ending::new(now + self.limits.drain, None));
                        actions.push(Action::Terminate(id.clone()));
                    } else if let Some(reason) = overdue {
                        // It does not react any more: asking it first would only take longer.
                        run.ending = Some(Ending::killed(reason));
                        actions.push(Action::Kill(id.clone()));
                    }
                }
                Some(ending) => {
                    if ending.kill_at.is_some_and(|at| at <= now) {
                        ending.kill_at = None;
                        actions.push(Action::Kill(id.clone()));
                    }
                }
            }
        }
    }

    /// The artifacts that tasks use, and those of them that waiting tasks lack.
    fn digests(&self) -> (BTreeSet<ArtifactDigest>, BTreeSet<ArtifactDigest>) {
        let digest = |book: &TaskBook| book.task.program().artifact;
        let waiting = self
            .tasks
            .values()
            .filter(|book| book.waits() && self.is_wanted(book));
        (
            self.tasks.values().map(digest).collect(),
            waiting.map(digest).collect(),
        )
    }

    fn start_processes(&mut self, now: Time, actions: &mut Vec<Action>) {
        let mut closed: BTreeSet<String> = self.failed_devices.keys().cloned().collect();
        let mut measured: BTreeSet<String> = BTreeSet::new();
        for book in self.tasks.values().filter(|book| book.has_process()) {
            if !self.is_wanted(book) || book.ends_with_device() {
                closed.insert(book.task.device().to_owned());
            }
            if book.task.measures() {
                measured.insert(book.task.device().to_owned());
            }
        }
        for book in self.tasks.values_mut().filter(|book| book.may_start(now)) {
            let device = book.task.device();
            let taken = book.task.measures() && measured.contains(device);
            let free = !taken && !closed.contains(device);
            if free && self.artifacts.has(book.task.program().artifact) {
                if book.task.measures() {
                    measured.insert(device.to_owned());
                }
                book.start();
                actions.push(Action::Start(book.task.clone()));
            }
        }
    }

    /// Every replica the node has, wanted or not.
    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        let of = |book: &TaskBook| match &book.task {
            Task::Serve(replica) => {
                Some(book.replica_status(replica.id, &self.artifacts, &self.failed_devices))
            }
            Task::Measure(_) => None,
        };
        self.tasks.values().filter_map(of).collect()
    }

    /// Every measurement under way, or finished and still wanted.
    pub fn profiles(&self) -> Vec<ProfileProgress> {
        let of = |book: &TaskBook| match &book.task {
            Task::Serve(_) => None,
            Task::Measure(profile) => Some(book.progress(profile)),
        };
        self.tasks.values().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests;

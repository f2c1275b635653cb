//! The agent's decision loop.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    ArtifactDigest, InspectionResult, ProfileProgress, ReplicaStatus, Time, WantedState,
};

use crate::{
    Action, Event, Limits, Reason, ServedReplicas, Task, TaskId,
    artifacts::Artifacts,
    record::{Ending, Phase, Run, TaskRecord},
};

/// Decides which workers are started and stopped, so that the running workers become the wanted ones.
///
/// Contract: `now` never decreases. After every [`handle`](Self::handle) and whenever [`wakeup`](Self::wakeup) has passed, the
/// driver calls [`poll`](Self::poll) and executes all actions that it returns, in order.
#[derive(Debug)]
pub struct Reconciler {
    /// The names of the node's devices.
    devices: BTreeSet<String>,
    /// The cause of each failed device, by its name.
    failed_devices: BTreeMap<String, String>,
    limits: Limits,
    /// The newest epoch seen.
    epoch: u64,
    /// The epoch and revision of the current wanted state; none before the first.
    applied: Option<(u64, u64)>,
    wanted: BTreeMap<TaskId, Task>,
    /// True once the agent has begun to stop all workers.
    stopping: bool,
    tasks: BTreeMap<TaskId, TaskRecord>,
    /// The workers of the former cluster that serve on although the present one does not want them, and until when.
    kept: BTreeSet<TaskId>,
    kept_until: Time,
    artifacts: Artifacts,
}

impl Reconciler {
    /// Creates the reconciler of a node with these devices. It starts and stops no worker before the first wanted state.
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
            kept: BTreeSet::new(),
            kept_until: Time::ZERO,
            artifacts: Artifacts::default(),
        }
    }

    /// Returns the newest epoch seen; wanted states of older epochs are ignored.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the epoch and revision of the current wanted state; zeros before the first.
    pub fn applied(&self) -> (u64, u64) {
        self.applied.unwrap_or_default()
    }

    /// Returns true if no process is left.
    pub fn is_idle(&self) -> bool {
        !self.tasks.values().any(TaskRecord::has_process)
    }

    /// Takes an event into account.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Leased { epoch } => self.epoch = self.epoch.max(epoch),
            Event::ClusterChanged { epoch } => {
                self.epoch = epoch;
                self.applied = None;
                self.wanted.clear();
                self.keep_workers(now);
            }
            Event::Wanted(state) => self.set_wanted(state),
            Event::Fetched(digest) => self.artifacts.fetched(digest),
            Event::ArtifactGone(id, digest) => {
                self.artifacts.gone(digest);
                if let Some(record) = self.tasks.get_mut(&id) {
                    record.phase = Phase::Waiting;
                }
            }
            Event::FetchFailed(digest, error) => {
                self.artifacts.fetch_failed(now, digest, error);
            }
            Event::Found(task, pid) => {
                let mut record = TaskRecord::new(task);
                record.phase = Phase::Running(Run::new(pid, now));
                self.tasks.insert(record.task.id(), record);
            }
            Event::Started(id, pid) => {
                if let Some(record) = self.tasks.get_mut(&id) {
                    record.phase = Phase::Running(Run::new(pid, now));
                }
            }
            Event::StartFailed(id, error) => {
                if let Some(record) = self.tasks.get_mut(&id) {
                    record.back_off(now, Reason::StartFailed(error));
                }
            }
            Event::Reported(id, report) => {
                if let Some(record) = self.tasks.get_mut(&id) {
                    record.reported(now, report);
                }
            }
            Event::ReportsFail(id, reason) => {
                if let Some(record) = self.tasks.get_mut(&id) {
                    record.reports_fail(reason);
                }
            }
            Event::Exited(id, cause) => {
                if let Some(record) = self.tasks.get_mut(&id) {
                    record.exited(now, cause);
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

    /// Replaces the wanted state, unless the new one is older or the agent is stopping.
    fn set_wanted(&mut self, state: WantedState) {
        let version = (state.epoch, state.revision);
        if self.stopping || state.epoch < self.epoch || self.applied.is_some_and(|a| version <= a) {
            return;
        }
        self.epoch = state.epoch;
        self.applied = Some(version);
        let serve = ServedReplicas::by_worker(state.replicas);
        let serve = serve.into_iter().map(Task::Serve);
        let measure = state.profiles.into_iter().map(Task::Measure);
        let inspect = state.inspections.into_iter().map(Task::Inspect);
        let tasks = serve.chain(measure).chain(inspect);
        self.wanted = tasks.map(|task| (task.id(), task)).collect();
        // From now on they are the present cluster's own.
        self.kept.retain(|id| !self.wanted.contains_key(id));
    }

    /// Keeps the workers that serve for the grace time of a cluster that is not there any more.
    fn keep_workers(&mut self, now: Time) {
        let serving = self.tasks.iter();
        let serving = serving.filter(|(_, record)| matches!(record.task, Task::Serve(_)));
        self.kept = serving.map(|(id, _)| id.clone()).collect();
        self.kept_until = now + self.limits.former_cluster;
    }

    /// Gives up the workers of the former cluster once their time is over, and those that have ended or whose devices the present
    /// cluster needs.
    fn give_up_kept(&mut self, now: Time) {
        if self.stopping || now >= self.kept_until {
            self.kept.clear();
            return;
        }
        let runs = |id: &TaskId| self.tasks.get(id).is_some_and(TaskRecord::has_process);
        let waiting = self.wanted.iter().filter(|(id, _)| !runs(id));
        let needed: BTreeSet<&str> = waiting.filter_map(|(_, task)| task.device()).collect();
        self.kept.retain(|id| {
            let record = self.tasks.get(id).filter(|record| record.has_process());
            let device = record.and_then(|record| record.task.device());
            device.is_some_and(|device| !needed.contains(device))
        });
    }

    /// Returns the actions that are due now.
    pub fn poll(&mut self, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        self.give_up_kept(now);
        if self.applied.is_some() || self.stopping {
            self.forget_unwanted(&mut actions);
            self.add_wanted();
        }
        self.end_processes(now, &mut actions);
        let needed = self.needed_artifacts();
        actions.extend(needed.into_iter().filter_map(|digest| {
            self.artifacts
                .begin_fetch(now, digest)
                .then_some(Action::Fetch(digest))
        }));
        if self.applied.is_some() {
            let unused = self.artifacts.evict_unused(&self.artifacts_in_use());
            actions.extend(unused.into_iter().map(Action::Evict));
        }
        for record in self.tasks.values_mut() {
            record.end_back_off(now);
        }
        self.start_processes(&mut actions);
        actions
    }

    /// Returns the time at which [`poll`](Self::poll) may return actions even if no event comes; none if only an event can change
    /// that.
    pub fn wakeup(&self) -> Option<Time> {
        let tasks = self
            .tasks
            .values()
            .filter_map(|record| record.wakeup(&self.limits));
        let needed = self.needed_artifacts();
        let kept = (!self.kept.is_empty()).then_some(self.kept_until);
        tasks
            .chain(self.artifacts.wakeup(&needed))
            .chain(kept)
            .min()
    }

    /// Returns true if the task is wanted, if no wanted state has come yet that could say otherwise, or if its cluster's grace time lasts.
    fn is_wanted(&self, record: &TaskRecord) -> bool {
        let undecided = self.applied.is_none() && !self.stopping;
        let wanted = self.wanted.get(&record.task.id());
        let kept = || self.kept.contains(&record.task.id());
        undecided || kept() || wanted.is_some_and(|wanted| wanted.runs_as(&record.task))
    }

    /// Removes the unwanted tasks that have no process.
    fn forget_unwanted(&mut self, actions: &mut Vec<Action>) {
        let leaving: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, record)| !self.is_wanted(record) && !record.has_process())
            .map(|(id, _)| id.clone())
            .collect();
        for id in leaving {
            self.tasks.remove(&id);
            actions.push(Action::Forget(id));
        }
    }

    /// Adds a record for each wanted task that has none, and takes over the attempts of the others.
    fn add_wanted(&mut self) {
        for (id, task) in &self.wanted {
            let record = self.tasks.entry(id.clone()).or_insert_with(|| {
                let mut record = TaskRecord::new(task.clone());
                if let Some(device) = task.device()
                    && !self.devices.contains(device)
                {
                    record.finish(Reason::NoDevice(device.to_owned()));
                }
                record
            });
            record.take_planned(task);
            record.take_attempt(task);
        }
    }

    /// Ends the processes that are to end. Unwanted workers and those that have failed permanently are told to end, and killed
    /// when they do not end in time. Workers that exceed a time limit and those of a failed device would not react, and are
    /// killed at once.
    fn end_processes(&mut self, now: Time, actions: &mut Vec<Action>) {
        let unwanted: BTreeSet<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, record)| !self.is_wanted(record))
            .map(|(id, _)| id.clone())
            .collect();
        for (id, record) in &mut self.tasks {
            let exceeded_limit = record.exceeded_limit(now, &self.limits);
            let failed = record.failed_permanently();
            let attempt = self.wanted.get(id).map_or(0, Task::attempt);
            let outdated = record.is_outdated(attempt);
            let device = record.task.device();
            let device_failure = device.and_then(|device| self.failed_devices.get(device));
            let Phase::Running(run) = &mut record.phase else {
                continue;
            };
            let killed = matches!(run.ending, Some(Ending { kill_at: None, .. }));
            if let Some(cause) = device_failure.filter(|_| !killed) {
                run.ending = Some(Ending::killed(Reason::DeviceFailed(cause.clone())));
                actions.push(Action::Kill(id.clone()));
                continue;
            }
            match &mut run.ending {
                None => {
                    if unwanted.contains(id) || failed {
                        run.ending = Some(Ending::terminated(now + self.limits.drain));
                        actions.push(Action::Terminate(id.clone()));
                    } else if let Some(reason) = exceeded_limit {
                        run.ending = Some(Ending::killed(reason));
                        actions.push(Action::Kill(id.clone()));
                    } else if outdated {
                        record.restart(now + self.limits.drain);
                        actions.push(Action::Terminate(id.clone()));
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

    /// Returns the artifacts of all tasks.
    fn artifacts_in_use(&self) -> BTreeSet<ArtifactDigest> {
        let all = self.tasks.values();
        all.flat_map(|record| record.task.artifacts()).collect()
    }

    /// Returns the artifacts of the wanted tasks that need a process.
    fn needed_artifacts(&self) -> BTreeSet<ArtifactDigest> {
        let waiting = { self.tasks.values() }
            .filter(|record| record.needs_process() && self.is_wanted(record));
        waiting.flat_map(|record| record.task.artifacts()).collect()
    }

    /// Starts the processes that artifacts and devices allow. Nothing is started on a device that has failed or has a process
    /// that must end first. At most one measurement runs on a device, and at most one inspection, which has no device, on the node.
    fn start_processes(&mut self, actions: &mut Vec<Action>) {
        let mut closed: BTreeSet<Option<String>> =
            self.failed_devices.keys().cloned().map(Some).collect();
        let mut taken: BTreeSet<Option<String>> = BTreeSet::new();
        for record in self.tasks.values().filter(|record| record.has_process()) {
            let device = record.task.device().map(str::to_owned);
            if record.task.has_result() {
                taken.insert(device.clone());
            }
            if !self.is_wanted(record) || record.ends_with_device() {
                closed.insert(device);
            }
        }
        for record in self.tasks.values_mut().filter(|record| record.may_start()) {
            let device = record.task.device().map(str::to_owned);
            let waits = record.task.has_result() && taken.contains(&device);
            let free = !waits && !closed.contains(&device);
            if free && self.artifacts.are_present(&record.task) {
                if record.task.has_result() {
                    taken.insert(device);
                }
                record.start();
                actions.push(Action::Start(record.task.clone()));
            }
        }
    }

    /// Returns the status of every replica on the node, wanted or not.
    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        let status = |record: &TaskRecord| match &record.task {
            Task::Serve(replicas) => {
                let status = |id| record.replica_status(id, &self.artifacts, &self.failed_devices);
                // A worker may serve on for some of its replicas only.
                let wanted = match self.wanted.get(&record.task.id()) {
                    Some(Task::Serve(wanted)) => wanted,
                    _ => replicas,
                };
                let ids = replicas.iter().map(|replica| replica.id);
                let ids = ids.filter(|id| wanted.iter().any(|wanted| wanted.id == *id));
                ids.map(status).collect()
            }
            Task::Measure(_) | Task::Inspect(_) => Vec::new(),
        };
        self.tasks.values().flat_map(status).collect()
    }

    /// Returns the progress of every measurement that runs, or is finished and still wanted.
    pub fn profiles(&self) -> Vec<ProfileProgress> {
        let progress = |record: &TaskRecord| match &record.task {
            Task::Serve(_) | Task::Inspect(_) => None,
            Task::Measure(profile) => Some(record.progress(profile)),
        };
        self.tasks.values().filter_map(progress).collect()
    }

    /// Returns the results of the inspections that have ended and are still wanted.
    pub fn inspections(&self) -> Vec<InspectionResult> {
        let result = |record: &TaskRecord| match &record.task {
            Task::Serve(_) | Task::Measure(_) => None,
            Task::Inspect(program) => record.inspection_result(&program.model),
        };
        self.tasks.values().filter_map(result).collect()
    }
}

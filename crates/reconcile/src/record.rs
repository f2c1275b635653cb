//! The state of one task: waiting, running, restarted after failures, finished.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    InspectionResult, ModelId, ProfileProgress, ReplicaId, ReplicaState, ReplicaStatus, Time,
    WantedProfile, WorkerKind,
};

use crate::{
    ExitCause, Limits, Reason, Task, WorkerReport, artifacts::Artifacts, backoff::backoff,
};

/// The time for which a worker must be ready to count as healthy. The next failure of a healthy worker counts as its first.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

/// The signals by which a process is killed from outside: SIGKILL, which is also the kernel's where memory runs out, and SIGTERM.
const KILLS: [i32; 2] = [9, 15];

/// The phase of a task.
#[derive(Debug)]
pub(crate) enum Phase {
    /// There is no process; one is started as soon as artifact and device allow.
    Waiting,
    /// The process died; no other one is started before this time.
    BackingOff(Time),
    /// The driver was told to start a process.
    Starting,
    /// There is a process.
    Running(Run),
    /// There is no process, and none will be started: the task failed permanently, or has its result.
    Finished,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Run {
    /// The process id.
    pub(crate) pid: u32,
    /// The time of the process's start, or that at which it began to load.
    since: Time,
    /// The time of the first report that the worker is ready; none if its last report says otherwise.
    ready_since: Option<Time>,
    /// The reason why the worker cannot report; none if it can.
    reports_fail: Option<String>,
    /// Set once the process was told to end, or killed.
    pub(crate) ending: Option<Ending>,
}

/// The end of a process that was told to end, or killed.
#[derive(Debug)]
pub(crate) struct Ending {
    /// The time at which the process is killed if it has not ended; none once it was killed.
    pub(crate) kill_at: Option<Time>,
    /// The failure for which the process is ended; none if it is merely unwanted, or has reported the failure itself.
    failure: Option<Reason>,
}

impl Ending {
    /// The end of a process that was told to end and is killed at this time if it has not.
    pub(crate) fn terminated(kill_at: Time) -> Self {
        Self {
            kill_at: Some(kill_at),
            failure: None,
        }
    }

    /// The end of a process that was killed for a failure.
    pub(crate) fn killed(failure: Reason) -> Self {
        Self {
            kill_at: None,
            failure: Some(failure),
        }
    }

    /// Returns true if the process was killed because its device failed.
    fn device_failed(&self) -> bool {
        matches!(self.failure, Some(Reason::DeviceFailed(_)))
    }
}

impl Run {
    /// A process that runs from now on.
    pub(crate) fn new(pid: u32, now: Time) -> Self {
        Self {
            pid,
            since: now,
            ready_since: None,
            reports_fail: None,
            ending: None,
        }
    }
}

/// A task with its state.
#[derive(Debug)]
pub(crate) struct TaskRecord {
    /// The task.
    pub(crate) task: Task,
    /// The task's phase.
    pub(crate) phase: Phase,
    /// The reason of the last failure.
    reason: Option<Reason>,
    /// The last report of the running process, or of the last one.
    report: Option<WorkerReport>,
    /// The number of restarts after failures.
    restarts: u32,
    /// The number of failures in a row, without a healthy worker between them.
    failures: u32,
}

impl TaskRecord {
    /// A task without a process.
    pub(crate) fn new(task: Task) -> Self {
        Self {
            task,
            phase: Phase::Waiting,
            reason: None,
            report: None,
            restarts: 0,
            failures: 0,
        }
    }

    /// Takes over the number of restarts that the gateway has asked for. The process of an earlier attempt is left alone: it has to end
    /// first ([`Self::is_outdated`]). A task that had failed permanently is tried again. A lower number is that of a gateway that has
    /// lost its count, and is no reason to restart.
    pub(crate) fn take_attempt(&mut self, wanted: &Task) {
        let rises = wanted.attempt() > self.task.attempt();
        if rises && self.has_process() {
            return;
        }
        self.task.take_attempts(wanted);
        if rises && matches!(self.phase, Phase::Finished) {
            self.phase = Phase::Waiting;
            self.report = None;
        }
    }

    /// Takes over what the gateway plans for the next process: the memory, which changes when a measurement has replaced an estimate, and the
    /// replicas that are still wanted.
    pub(crate) fn take_planned(&mut self, wanted: &Task) {
        if let (Task::Serve(task), Task::Serve(wanted)) = (&mut self.task, wanted)
            && matches!(self.phase, Phase::Waiting | Phase::BackingOff(_))
            && wanted.runs_as(task)
        {
            let attempts = task.clone();
            task.clone_from(wanted);
            task.take_attempts(&attempts);
        }
    }

    /// Returns true if the task has a process that the gateway wants restarted.
    pub(crate) fn is_outdated(&self, wanted: u64) -> bool {
        self.has_process() && wanted > self.task.attempt()
    }

    /// Notes that the process is told to end, so that another one takes its place.
    pub(crate) fn restart(&mut self, kill_at: Time) {
        if let Phase::Running(run) = &mut self.phase {
            run.ending = Some(Ending::terminated(kill_at));
            self.restarts = self.restarts.saturating_add(1);
            self.reason = Some(Reason::RestartRequested);
        }
    }

    /// Returns true if there is a process, or the driver was told to start one.
    pub(crate) fn has_process(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Running(_))
    }

    /// Returns true if the process was killed because its device failed, and has not ended yet.
    pub(crate) fn ends_with_device(&self) -> bool {
        match &self.phase {
            Phase::Running(run) => run.ending.as_ref().is_some_and(Ending::device_failed),
            _ => false,
        }
    }

    /// Returns true if the task has no process and needs one.
    pub(crate) fn needs_process(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::BackingOff(_))
    }

    /// Returns true if a process may be started now, as far as the task itself is concerned.
    pub(crate) fn may_start(&self) -> bool {
        matches!(self.phase, Phase::Waiting)
    }

    /// Ends a back-off that is over. From then on the task waits for artifact and device only, which no time ends.
    pub(crate) fn end_back_off(&mut self, now: Time) {
        if matches!(self.phase, Phase::BackingOff(until) if until <= now) {
            self.phase = Phase::Waiting;
            self.restarts = self.restarts.saturating_add(1);
        }
    }

    /// Notes that the driver is told to start a process.
    pub(crate) fn start(&mut self) {
        self.phase = Phase::Starting;
        self.report = None;
    }

    /// Takes the worker's report.
    pub(crate) fn reported(&mut self, now: Time, report: WorkerReport) {
        if let Phase::Running(run) = &mut self.phase {
            let ready = matches!(report, WorkerReport::Ready { .. });
            if report == WorkerReport::Loading {
                // It may have waited for the programs of others.
                run.since = now;
            }
            run.ready_since = ready.then(|| run.ready_since.unwrap_or(now));
        }
        self.report = Some(report);
    }

    /// Notes that the worker cannot report, or that it can again.
    pub(crate) fn reports_fail(&mut self, reason: Option<String>) {
        if let Phase::Running(run) = &mut self.phase {
            run.reports_fail = reason;
        }
    }

    /// Returns the reason why the worker cannot report, if it cannot.
    fn cannot_report(&self) -> Option<Reason> {
        match &self.phase {
            Phase::Running(run) => run.reports_fail.clone().map(Reason::CannotReport),
            _ => None,
        }
    }

    /// Returns true if the worker reported that a restart would fail again.
    pub(crate) fn failed_permanently(&self) -> bool {
        matches!(
            self.report,
            Some(WorkerReport::Failed {
                permanent: true,
                ..
            })
        )
    }

    /// Returns the time limit that the process has exceeded, as the reason to kill it; none if it has not.
    pub(crate) fn exceeded_limit(&self, now: Time, limits: &Limits) -> Option<Reason> {
        let limit = self.time_limit(limits);
        let deadline = self.deadline(limits)?;
        let reason = match self.task {
            Task::Serve(_) => Reason::NotReady(limit),
            Task::Measure(_) => Reason::NotMeasured(limit),
            Task::Inspect(_) => Reason::NotInspected(limit),
        };
        (deadline <= now).then_some(reason)
    }

    fn time_limit(&self, limits: &Limits) -> Duration {
        match &self.task {
            Task::Serve(_) => limits.load,
            Task::Measure(profile) => {
                Duration::from_millis(profile.time_limit_ms).saturating_add(limits.measure_grace)
            }
            Task::Inspect(_) => limits.inspect,
        }
    }

    /// Returns the time by which the running process must be ready, or have its result.
    fn deadline(&self, limits: &Limits) -> Option<Time> {
        match &self.phase {
            Phase::Running(_) if self.report == Some(WorkerReport::Waiting) => None,
            Phase::Running(run) if run.ending.is_none() && run.ready_since.is_none() => {
                Some(run.since + self.time_limit(limits))
            }
            _ => None,
        }
    }

    /// Returns the time at which the state changes even if no event comes; none if only an event changes it.
    pub(crate) fn wakeup(&self, limits: &Limits) -> Option<Time> {
        match &self.phase {
            Phase::BackingOff(until) => Some(*until),
            Phase::Running(Run {
                ending: Some(ending),
                ..
            }) => ending.kill_at,
            _ => self.deadline(limits),
        }
    }

    /// Notes that the process has ended.
    pub(crate) fn exited(&mut self, now: Time, cause: ExitCause) {
        let Phase::Running(run) = &self.phase else {
            return;
        };
        let (failure, unwanted, device_failed) = match &run.ending {
            Some(ending) => (
                ending.failure.clone(),
                ending.failure.is_none(),
                ending.device_failed(),
            ),
            None => (None, false, false),
        };
        let killed_by_others = run.ending.is_none()
            && matches!(cause, ExitCause::Signal(signal) if KILLS.contains(&signal));
        let is_anothers = match &cause {
            ExitCause::WithNeighbour(_) => true,
            ExitCause::AfterOthers(_) => run.ending.is_none(),
            _ => false,
        };
        let healthy = run
            .ready_since
            .is_some_and(|since| now.saturating_since(since) >= HEALTHY_AFTER);
        if healthy {
            self.failures = 0;
        }
        let reported = self.reported_failure();
        if self.failed_permanently() {
            self.finish(reported.unwrap_or(Reason::Exited(cause)));
        } else if matches!(
            self.report,
            Some(WorkerReport::Measured { .. } | WorkerReport::Inspected { .. })
        ) {
            self.phase = Phase::Finished;
        } else if is_anothers && !unwanted {
            // Perhaps it has done nothing wrong, and begins again at once.
            self.reason = Some(Reason::Exited(cause));
            self.phase = Phase::Waiting;
            self.report = None;
            self.restarts = self.restarts.saturating_add(1);
        } else if unwanted {
            // If the task is wanted again by now, a new process starts without a delay.
            self.phase = Phase::Waiting;
            self.report = None;
        } else {
            let cannot_report = self.cannot_report();
            // A measurement that a failed device or a full disk has interrupted is no finding about its program, nor is one that somebody
            // else has killed once.
            let interrupted =
                device_failed || cannot_report.is_some() || killed_by_others && self.failures == 0;
            let reason = cannot_report.or(failure).or(reported);
            let reason = reason.unwrap_or(Reason::Exited(cause));
            if self.task.has_result() && !interrupted {
                self.finish(reason);
            } else {
                self.back_off(now, reason);
            }
        }
    }

    /// Notes a failure; the next process starts after a delay.
    pub(crate) fn back_off(&mut self, now: Time, reason: Reason) {
        self.reason = Some(reason);
        self.phase = Phase::BackingOff(now + backoff(self.failures));
        self.failures = self.failures.saturating_add(1);
    }

    /// Notes a failure after which no process will be started.
    pub(crate) fn finish(&mut self, reason: Reason) {
        self.reason = Some(reason);
        self.phase = Phase::Finished;
    }

    /// Returns the failure that the worker reported, if it reported one.
    fn reported_failure(&self) -> Option<Reason> {
        match &self.report {
            Some(WorkerReport::Failed { reason, .. }) => Some(Reason::Reported(reason.clone())),
            _ => None,
        }
    }

    /// Returns the reason why the task waits for a process, if it waits and the reason is known.
    fn waiting_reason(
        &self,
        artifacts: &Artifacts,
        failed_devices: &BTreeMap<String, String>,
    ) -> Option<Reason> {
        let device = self.task.device();
        let device_failure = device.and_then(|device| failed_devices.get(device));
        match self.phase {
            Phase::Waiting | Phase::BackingOff(_) if device_failure.is_some() => {
                device_failure.cloned().map(Reason::DeviceFailed)
            }
            Phase::Waiting if artifacts.are_present(&self.task) => Some(Reason::DeviceOccupied),
            Phase::Waiting => artifacts
                .fetch_error(&self.task)
                .map(|error| Reason::FetchFailed(error.to_owned())),
            _ => None,
        }
    }

    fn state(&self, artifacts: &Artifacts) -> ReplicaState {
        match &self.phase {
            Phase::Waiting if !artifacts.are_present(&self.task) => ReplicaState::Fetching,
            Phase::Waiting | Phase::Starting => ReplicaState::Loading,
            Phase::BackingOff(_) => ReplicaState::BackingOff,
            Phase::Finished => ReplicaState::Failed,
            Phase::Running(run) if run.ending.is_some() => ReplicaState::Draining,
            Phase::Running(run) if run.reports_fail.is_some() => ReplicaState::BackingOff,
            Phase::Running(_) => match &self.report {
                Some(WorkerReport::Ready { .. }) => ReplicaState::Ready,
                Some(WorkerReport::Draining) => ReplicaState::Draining,
                Some(WorkerReport::Failed { permanent, .. }) if *permanent => ReplicaState::Failed,
                Some(WorkerReport::Failed { .. }) => ReplicaState::BackingOff,
                _ => ReplicaState::Loading,
            },
        }
    }

    fn pid(&self) -> Option<u32> {
        match &self.phase {
            Phase::Running(run) => Some(run.pid),
            _ => None,
        }
    }

    /// Returns the status that the node reports of the replica that the task serves.
    pub(crate) fn replica_status(
        &self,
        id: ReplicaId,
        artifacts: &Artifacts,
        failed_devices: &BTreeMap<String, String>,
    ) -> ReplicaStatus {
        let state = self.state(artifacts);
        let verification = match &self.report {
            Some(WorkerReport::Ready { verification, .. }) => verification.clone(),
            _ => None,
        };
        let (address, local_path, memory_bytes, capacity) = match &self.report {
            Some(WorkerReport::Ready {
                address,
                local_path,
                also,
                memory,
                capacity,
                ..
            }) => match also.iter().find(|also| also.replica == id) {
                // The memory is that of the whole worker, and counts once.
                Some(also) => (Some(also.address), also.local_path.clone(), None, *capacity),
                None => (Some(*address), local_path.clone(), *memory, *capacity),
            },
            _ => (None, None, None, None),
        };
        let reason = self
            .waiting_reason(artifacts, failed_devices)
            .or_else(|| self.cannot_report())
            .or_else(|| self.reported_failure())
            .or_else(|| self.reason.clone())
            .filter(|_| state != ReplicaState::Ready);
        ReplicaStatus {
            id,
            state,
            address: address.filter(|_| state == ReplicaState::Ready),
            local_path: local_path.filter(|_| state == ReplicaState::Ready),
            pid: self.pid(),
            restarts: self.restarts,
            reason: reason.map(|reason| reason.to_string()),
            memory_bytes,
            capacity,
            verification,
            worker: self.wanted_kind(),
        }
    }

    /// Returns the kind of worker that the gateway wants.
    fn wanted_kind(&self) -> WorkerKind {
        match &self.task {
            Task::Serve(replicas) if replicas.first().pooled => WorkerKind::Pool,
            _ => WorkerKind::Own,
        }
    }

    /// Returns the result that the node reports of the inspection of this model's program; `None` until it has ended.
    pub(crate) fn inspection_result(&self, model: &ModelId) -> Option<InspectionResult> {
        let (operators, error) = match (&self.phase, &self.report) {
            (Phase::Finished, Some(WorkerReport::Inspected { operators })) => {
                (Some(operators.clone()), None)
            }
            (Phase::Finished, _) => (None, self.reason.as_ref().map(ToString::to_string)),
            _ => return None,
        };
        Some(InspectionResult {
            model: model.clone(),
            operators,
            error,
        })
    }

    /// Returns the progress that the node reports of the measurement that the task makes.
    pub(crate) fn progress(&self, profile: &WantedProfile) -> ProfileProgress {
        let (done, total, csv, kernels, operators) = match &self.report {
            Some(WorkerReport::Measuring {
                done,
                total,
                operators,
            }) => (*done, *total, None, None, operators.clone()),
            Some(WorkerReport::Measured {
                done,
                total,
                csv,
                kernels,
                operators,
            }) => (
                *done,
                *total,
                Some(csv.clone()),
                kernels.clone(),
                operators.clone(),
            ),
            _ => (0, 0, None, None, None),
        };
        let failed = matches!(self.phase, Phase::Finished) && csv.is_none();
        ProfileProgress {
            model: profile.program.model.clone(),
            device_kind: profile.device_kind.clone(),
            done,
            total,
            csv,
            kernels,
            operators,
            error: self
                .reason
                .as_ref()
                .filter(|_| failed)
                .map(ToString::to_string),
        }
    }
}

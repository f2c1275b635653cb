//! One task on its way: waiting, running, dead and started again, over.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ProfileProgress, ReplicaId, ReplicaState, ReplicaStatus, Time, WantedProfile,
};

use super::{Artifacts, Limits, Task, WorkerReport};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A worker that was ready for so long is healthy: its next death is a first one.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

/// How long to wait before the next attempt after so many failures before this one: doubling up to a limit.
pub(super) fn pause(failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures.min(20)).unwrap_or(u32::MAX);
    FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
}

#[derive(Debug)]
pub(super) enum Phase {
    /// No process; it is started as soon as artifact and device allow.
    Waiting,
    /// The process died; no other is started before this.
    BackingOff(Time),
    /// The driver was told to start a process.
    Starting,
    /// There is a process.
    Running(Run),
    /// No process, and none will be started: failed for good, or measured.
    Over,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) pid: u32,
    since: Time,
    ready_since: Option<Time>,
    pub(super) ending: Option<Ending>,
}

/// The process was told to end, or killed.
#[derive(Debug)]
pub(super) struct Ending {
    /// When it is killed if it has not ended; none once it was.
    pub(super) kill_at: Option<Time>,
    /// What it is ended for, where that is its failure.
    failure: Option<String>,
    /// It ends because its device failed.
    with_device: bool,
}

impl Ending {
    pub(super) fn new(kill_at: Time, failure: Option<String>) -> Self {
        Self {
            kill_at: Some(kill_at),
            failure,
            with_device: false,
        }
    }

    pub(super) fn killed(failure: String) -> Self {
        Self {
            kill_at: None,
            failure: Some(failure),
            with_device: false,
        }
    }

    pub(super) fn with_device(cause: String) -> Self {
        Self {
            with_device: true,
            ..Self::killed(cause)
        }
    }
}

impl Run {
    pub(super) fn new(pid: u32, now: Time) -> Self {
        Self {
            pid,
            since: now,
            ready_since: None,
            ending: None,
        }
    }
}

/// What is known of one task.
#[derive(Debug)]
pub(super) struct TaskBook {
    pub(super) task: Task,
    pub(super) phase: Phase,
    /// Why there is no worker, or not yet again.
    pub(super) reason: Option<String>,
    /// What the worker said last; of the process that runs, or of the last one.
    report: Option<WorkerReport>,
    restarts: u32,
    /// Deaths in a row without health between.
    failures: u32,
}

impl TaskBook {
    pub(super) fn new(task: Task) -> Self {
        Self {
            task,
            phase: Phase::Waiting,
            reason: None,
            report: None,
            restarts: 0,
            failures: 0,
        }
    }

    pub(super) fn has_process(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Running(_))
    }

    /// Whether its process was killed because the device failed, and has not ended yet.
    pub(super) fn ends_with_device(&self) -> bool {
        match &self.phase {
            Phase::Running(run) => run.ending.as_ref().is_some_and(|ending| ending.with_device),
            _ => false,
        }
    }

    /// Whether it has no process and wants one.
    pub(super) fn waits(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::BackingOff(_))
    }

    pub(super) fn may_start(&self, now: Time) -> bool {
        match self.phase {
            Phase::Waiting => true,
            Phase::BackingOff(until) => until <= now,
            Phase::Starting | Phase::Running(_) | Phase::Over => false,
        }
    }

    pub(super) fn start(&mut self) {
        if matches!(self.phase, Phase::BackingOff(_)) {
            self.restarts = self.restarts.saturating_add(1);
        }
        self.phase = Phase::Starting;
        self.report = None;
    }

    pub(super) fn reported(&mut self, now: Time, report: WorkerReport) {
        if let Phase::Running(run) = &mut self.phase {
            let ready = matches!(report, WorkerReport::Ready { .. });
            run.ready_since = ready.then(|| run.ready_since.unwrap_or(now));
        }
        self.report = Some(report);
    }

    /// Whether the worker said that starting it again would not help.
    pub(super) fn failed_for_good(&self) -> bool {
        matches!(
            self.report,
            Some(WorkerReport::Failed {
                permanent: true,
                ..
            })
        )
    }

    /// Why the process has had its time, if it has.
    pub(super) fn overdue(&self, now: Time, limits: &Limits) -> Option<String> {
        let limit = self.time_limit(limits);
        let late = self.deadline(limits).is_some_and(|at| at <= now);
        late.then(|| match self.task {
            Task::Serve(_) => format!("not ready {} s after its start", limit.as_secs()),
            Task::Measure(_) => format!("no measurement within {} s", limit.as_secs()),
        })
    }

    fn time_limit(&self, limits: &Limits) -> Duration {
        match &self.task {
            Task::Serve(_) => limits.load,
            Task::Measure(profile) => {
                Duration::from_millis(profile.time_limit_ms).saturating_add(limits.measure_grace)
            }
        }
    }

    /// When the running process must be ready, or finished.
    fn deadline(&self, limits: &Limits) -> Option<Time> {
        match &self.phase {
            Phase::Running(run) if run.ending.is_none() && run.ready_since.is_none() => {
                Some(run.since + self.time_limit(limits))
            }
            _ => None,
        }
    }

    pub(super) fn wakeup(&self, limits: &Limits) -> Option<Time> {
        match &self.phase {
            Phase::BackingOff(until) => Some(*until),
            Phase::Running(Run {
                ending: Some(ending),
                ..
            }) => ending.kill_at,
            _ => self.deadline(limits),
        }
    }

    pub(super) fn exited(&mut self, now: Time, cause: String) {
        let Phase::Running(run) = &self.phase else {
            return;
        };
        let reported = match &self.report {
            Some(WorkerReport::Failed { reason, .. }) => Some(reason.clone()),
            _ => None,
        };
        let told = run.ending.as_ref();
        let failure = told.and_then(|ending| ending.failure.clone());
        let with_device = told.is_some_and(|ending| ending.with_device);
        let healthy = run
            .ready_since
            .is_some_and(|since| now.saturating_since(since) >= HEALTHY_AFTER);
        if healthy {
            self.failures = 0;
        }
        if self.failed_for_good() {
            self.over(reported.unwrap_or(cause));
        } else if matches!(self.report, Some(WorkerReport::Measured { .. })) {
            self.phase = Phase::Over;
        } else if told.is_some() && failure.is_none() {
            // It was not wanted. Should it be again by now, it starts afresh.
            self.phase = Phase::Waiting;
            self.report = None;
        } else {
            let reason = failure.or(reported).unwrap_or(cause);
            // A measurement says nothing of its program when the device failed.
            if self.task.measures() && !with_device {
                self.over(reason);
            } else {
                self.back_off(now, reason);
            }
        }
    }

    pub(super) fn back_off(&mut self, now: Time, reason: String) {
        self.reason = Some(reason);
        self.phase = Phase::BackingOff(now + pause(self.failures));
        self.failures = self.failures.saturating_add(1);
    }

    fn over(&mut self, reason: String) {
        self.reason = Some(reason);
        self.phase = Phase::Over;
    }

    /// Why it waits, where it does.
    fn waiting_for(
        &self,
        artifacts: &Artifacts,
        failed_devices: &BTreeMap<String, String>,
    ) -> Option<String> {
        let digest = self.task.program().artifact;
        let failed_device = failed_devices.get(self.task.device());
        match self.phase {
            Phase::Waiting | Phase::BackingOff(_) if failed_device.is_some() => {
                failed_device.cloned()
            }
            Phase::Waiting if artifacts.has(digest) => {
                Some("waits for its turn on the device".to_owned())
            }
            Phase::Waiting => artifacts.reason(digest).map(ToOwned::to_owned),
            _ => None,
        }
    }

    fn state(&self, artifacts: &Artifacts) -> ReplicaState {
        match &self.phase {
            Phase::Waiting if !artifacts.has(self.task.program().artifact) => {
                ReplicaState::Fetching
            }
            Phase::Waiting | Phase::Starting => ReplicaState::Loading,
            Phase::BackingOff(_) => ReplicaState::BackingOff,
            Phase::Over => ReplicaState::Failed,
            Phase::Running(run) if run.ending.is_some() => ReplicaState::Draining,
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

    pub(super) fn replica_status(
        &self,
        id: ReplicaId,
        artifacts: &Artifacts,
        failed_devices: &BTreeMap<String, String>,
    ) -> ReplicaStatus {
        let state = self.state(artifacts);
        let (address, memory_bytes, capacity) = match &self.report {
            Some(WorkerReport::Ready {
                address,
                memory,
                capacity,
            }) => (Some(*address), *memory, *capacity),
            _ => (None, None, None),
        };
        let reported = match &self.report {
            Some(WorkerReport::Failed { reason, .. }) => Some(reason.clone()),
            _ => None,
        };
        let reason = self
            .waiting_for(artifacts, failed_devices)
            .or(reported)
            .or_else(|| self.reason.clone());
        ReplicaStatus {
            id,
            state,
            address: address.filter(|_| state == ReplicaState::Ready),
            pid: self.pid(),
            restarts: self.restarts,
            reason: reason.filter(|_| state != ReplicaState::Ready),
            memory_bytes,
            capacity,
        }
    }

    pub(super) fn progress(&self, profile: &WantedProfile) -> ProfileProgress {
        let (done, total, csv, kernels) = match &self.report {
            Some(WorkerReport::Measuring { done, total }) => (*done, *total, None, None),
            Some(WorkerReport::Measured {
                done,
                total,
                csv,
                kernels,
            }) => (*done, *total, Some(csv.clone()), kernels.clone()),
            _ => (0, 0, None, None),
        };
        let failed = matches!(self.phase, Phase::Over) && csv.is_none();
        ProfileProgress {
            model: profile.program.model.clone(),
            device_kind: profile.device_kind.clone(),
            done,
            total,
            csv,
            kernels,
            error: self.reason.clone().filter(|_| failed),
        }
    }
}

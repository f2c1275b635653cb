//! The supervisor of one GPU's MPS daemon.

use std::time::Duration;

use packhorse_reconcile::Event;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    control::{Control, ControlError},
    failure::MpsFailure,
    sharing::GpuSharing,
};
use crate::process::Process;

/// The number of successive checks that the daemon may leave unanswered.
const MAX_MISSED_CHECKS: u32 = 3;

/// The intervals and time limits of a supervisor.
#[derive(Clone, Copy, Debug)]
pub(super) struct SupervisorTimes {
    /// The interval between two checks of the daemon.
    pub(super) check: Duration,
    /// The time from the daemon's start until it must answer.
    pub(super) start: Duration,
    /// The time that a failed server has to recover. Its clients are killed at once, after which it recovers by itself.
    pub(super) recovery: Duration,
    /// The pause after the first failed start of a daemon. It doubles with each failure, up to `longest_pause`.
    pub(super) first_pause: Duration,
    /// The longest pause between two starts.
    pub(super) longest_pause: Duration,
}

impl Default for SupervisorTimes {
    fn default() -> Self {
        Self {
            check: Duration::from_secs(1),
            start: Duration::from_secs(10),
            recovery: Duration::from_secs(30),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_mins(1),
        }
    }
}

/// Keeps the daemon of one GPU running, and reports when the workers on the GPU cannot continue.
#[derive(Debug)]
pub(super) struct Supervisor {
    device: String,
    control: Control,
    times: SupervisorTimes,
    sharing: watch::Sender<GpuSharing>,
    events: mpsc::Sender<Event>,
    /// True from the event that the device failed until the event that it recovered.
    failed: bool,
}

impl Supervisor {
    /// Creates a supervisor, which does nothing until [`Supervisor::run`].
    pub(super) fn new(
        device: String,
        control: Control,
        times: SupervisorTimes,
        sharing: watch::Sender<GpuSharing>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            device,
            control,
            times,
            sharing,
            events,
            failed: false,
        }
    }

    /// Supervises the daemon. Never returns.
    pub(super) async fn run(mut self) {
        let mut pause = self.times.first_pause;
        loop {
            match self.start().await {
                Ok(mut daemon) => {
                    tracing::info!(self.device, pid = daemon.pid(), "MPS daemon runs");
                    self.set_sharing(GpuSharing::Mps).await;
                    let failure = self.watch(&mut daemon).await;
                    tracing::error!(self.device, cause = %failure, "MPS daemon lost");
                    self.report_failure(&failure).await;
                    daemon.kill().await;
                    pause = self.times.first_pause;
                }
                Err(failure) => {
                    tracing::warn!(
                        self.device,
                        reason = %failure,
                        "no MPS: replicas time-slice the GPU"
                    );
                    self.set_sharing(GpuSharing::TimeSliced(failure)).await;
                    sleep(pause).await;
                    pause = (pause * 2).min(self.times.longest_pause);
                }
            }
        }
    }

    /// Publishes the sharing of the GPU. After a failure this is the recovery: workers can be started again.
    async fn set_sharing(&mut self, sharing: GpuSharing) {
        self.sharing.send_replace(sharing);
        if std::mem::take(&mut self.failed) {
            self.send_event(Event::DeviceRecovered(self.device.clone()))
                .await;
        }
    }

    async fn report_failure(&mut self, failure: &MpsFailure) {
        if !std::mem::replace(&mut self.failed, true) {
            let event = Event::DeviceFailed(self.device.clone(), failure.to_string());
            self.send_event(event).await;
        }
    }

    async fn send_event(&self, event: Event) {
        // The receiver lives as long as the process.
        let _ = self.events.send(event).await;
    }

    /// Returns a daemon that answers: that of an earlier agent, or a new one.
    async fn start(&self) -> Result<Process, MpsFailure> {
        let found = self.control.find();
        if let Some(daemon) = found.map_err(|e| MpsFailure::Control(e.to_string()))? {
            let has_right_user = self.control.has_right_user(&daemon);
            if has_right_user && self.control.servers().await.is_ok() {
                return Ok(daemon);
            }
            let problem = if has_right_user {
                "does not answer"
            } else {
                "runs as another user than workers now do"
            };
            tracing::warn!(
                pid = daemon.pid(),
                "MPS daemon of an earlier agent {problem}"
            );
            daemon.kill().await;
            if !has_right_user && let Err(error) = self.control.empty_pipe() {
                tracing::warn!(%error, "the files of that daemon are not removed");
            }
        }
        let control_failure = |e: ControlError| MpsFailure::Control(e.to_string());
        let mut daemon = self.control.spawn().map_err(control_failure)?;
        let limit = self.times.start;
        let last_line = || self.control.last_line();
        let failure = tokio::select! {
            failure = daemon.wait() => MpsFailure::DaemonEnded { failure, last_line: last_line() },
            answered = timeout(limit, self.wait_for_answer()) => match answered {
                Ok(()) => return Ok(daemon),
                Err(_) => MpsFailure::DaemonSilent { limit, last_line: last_line() },
            }
        };
        daemon.kill().await;
        Err(failure)
    }

    async fn wait_for_answer(&self) {
        while self.control.servers().await.is_err() {
            sleep(self.times.check / 20).await;
        }
    }

    /// Returns when the daemon has ended or is no longer usable. A failed server alone gets time to recover.
    async fn watch(&mut self, daemon: &mut Process) -> MpsFailure {
        let mut missed = 0;
        let mut failed_since: Option<Instant> = None;
        loop {
            tokio::select! {
                failure = daemon.wait() => {
                    return MpsFailure::DaemonEnded { failure, last_line: None };
                }
                () = sleep(self.times.check) => {}
            }
            self.control.shorten_output();
            match self.control.servers().await {
                Err(e) => {
                    missed += 1;
                    if missed == MAX_MISSED_CHECKS {
                        return MpsFailure::Control(e.to_string());
                    }
                }
                Ok(servers) => {
                    missed = 0;
                    let failed = servers.iter().find(|server| server.failed);
                    match (failed, failed_since) {
                        (Some(server), None) => {
                            tracing::error!(self.device, server.pid, "MPS server failed");
                            failed_since = Some(Instant::now());
                            self.report_failure(&MpsFailure::ServerFailed).await;
                        }
                        (Some(_), Some(since)) if since.elapsed() > self.times.recovery => {
                            return MpsFailure::ServerNotRecovered;
                        }
                        (None, Some(_)) => {
                            tracing::info!(self.device, "MPS server recovered");
                            failed_since = None;
                            self.set_sharing(GpuSharing::Mps).await;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

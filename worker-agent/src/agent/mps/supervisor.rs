//! The watch over one device's MPS daemon.

use std::time::Duration;

use packhorse_reconcile::Event;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};

use super::{Sharing, control::Control};
use crate::agent::process::{Process, ProcessFailure};

/// How often, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Between two looks at the daemon.
    pub(super) look: Duration,
    /// From the daemon's start until it must answer.
    pub(super) start: Duration,
    /// How long a server may stay failed after its device has. Its clients are killed at once, which mends it.
    pub(super) mend: Duration,
    /// Before the second attempt at a daemon that does not come up; doubles up to `longest_pause`.
    pub(super) first_pause: Duration,
    /// At most between two attempts.
    pub(super) longest_pause: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(1),
            start: Duration::from_secs(10),
            mend: Duration::from_secs(30),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_mins(1),
        }
    }
}

/// Looks that the daemon may leave unanswered in a row.
const MISSED_LOOKS: u32 = 3;

/// Keeps a daemon running for one device, and tells when what runs there cannot go on.
#[derive(Debug)]
pub(super) struct Supervisor {
    device: String,
    control: Control,
    pace: Pace,
    sharing: watch::Sender<Sharing>,
    events: mpsc::Sender<Event>,
    /// The agent has been told that the device failed, and not yet that it recovered.
    failed: bool,
}

impl Supervisor {
    pub(super) fn new(
        device: String,
        control: Control,
        pace: Pace,
        sharing: watch::Sender<Sharing>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            device,
            control,
            pace,
            sharing,
            events,
            failed: false,
        }
    }

    /// Never ends by itself.
    pub(super) async fn run(mut self) {
        let mut pause = self.pace.first_pause;
        loop {
            match self.start().await {
                Ok(mut daemon) => {
                    tracing::info!(self.device, pid = daemon.pid(), "MPS daemon runs");
                    self.share(Sharing::Mps).await;
                    let cause = self.watch(&mut daemon).await;
                    tracing::error!(self.device, cause, "MPS daemon lost");
                    self.fail(cause).await;
                    daemon.kill().await;
                    pause = self.pace.first_pause;
                }
                Err(reason) => {
                    tracing::warn!(
                        self.device,
                        reason,
                        "no MPS: replicas take turns on the GPU"
                    );
                    self.share(Sharing::TimeSliced(reason)).await;
                    sleep(pause).await;
                    pause = (pause * 2).min(self.pace.longest_pause);
                }
            }
        }
    }

    /// Workers can be started again, and this is what they get.
    async fn share(&mut self, sharing: Sharing) {
        self.sharing.send_replace(sharing);
        if std::mem::take(&mut self.failed) {
            self.tell(Event::DeviceRecovered(self.device.clone())).await;
        }
    }

    async fn fail(&mut self, cause: String) {
        if !std::mem::replace(&mut self.failed, true) {
            self.tell(Event::DeviceFailed(self.device.clone(), cause))
                .await;
        }
    }

    async fn tell(&self, event: Event) {
        // The receiver lives as long as the process does.
        let _ = self.events.send(event).await;
    }

    /// The daemon, once it answers: that of an earlier agent, or a new one.
    async fn start(&self) -> Result<Process, String> {
        let found = self.control.find().map_err(|e| e.to_string())?;
        if let Some(daemon) = found {
            if self.control.servers().await.is_ok() {
                return Ok(daemon);
            }
            tracing::warn!(
                pid = daemon.pid(),
                "MPS daemon of an earlier agent does not answer"
            );
            daemon.kill().await;
        }
        let mut daemon = self.control.spawn().map_err(|e| e.to_string())?;
        let limit = self.pace.start;
        let came_up = tokio::select! {
            cause = daemon.ended() => Err(end_of_daemon(cause)),
            answered = timeout(limit, self.answered()) => {
                answered.map_err(|_| format!("did not answer within {limit:?}"))
            }
        };
        let Err(cause) = came_up else {
            return Ok(daemon);
        };
        daemon.kill().await;
        let words = self.control.last_words();
        let words = words.map_or_else(String::new, |words| format!(": {words}"));
        Err(format!("the MPS daemon {cause}{words}"))
    }

    async fn answered(&self) {
        while self.control.servers().await.is_err() {
            sleep(self.pace.look / 20).await;
        }
    }

    /// Returns when the daemon has ended or is of no use any more: why. A failed server alone is waited for.
    async fn watch(&mut self, daemon: &mut Process) -> String {
        let mut missed = 0;
        let mut failed_since: Option<Instant> = None;
        loop {
            tokio::select! {
                cause = daemon.ended() => {
                    let cause = end_of_daemon(cause);
                    return format!("the MPS daemon {cause}");
                }
                () = sleep(self.pace.look) => {}
            }
            match self.control.servers().await {
                Err(e) => {
                    missed += 1;
                    if missed == MISSED_LOOKS {
                        return e.to_string();
                    }
                }
                Ok(servers) => {
                    missed = 0;
                    let failed = servers.iter().find(|server| server.failed);
                    match (failed, failed_since) {
                        (Some(server), None) => {
                            tracing::error!(self.device, server.pid, "MPS server failed");
                            failed_since = Some(Instant::now());
                            self.fail(
                                "a fatal fault of one of the replicas on this GPU".to_owned(),
                            )
                            .await;
                        }
                        (Some(_), Some(since)) if since.elapsed() > self.pace.mend => {
                            return "the MPS server stays failed".to_owned();
                        }
                        (None, Some(_)) => {
                            tracing::info!(self.device, "MPS server mended");
                            failed_since = None;
                            self.share(Sharing::Mps).await;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Completes "the MPS daemon …" with the way in which it ended.
fn end_of_daemon(failure: Option<ProcessFailure>) -> String {
    failure.map_or_else(|| "ended".to_owned(), |failure| failure.to_string())
}

#[cfg(test)]
mod tests;

//! The watch over the hand-over folder of one task: it passes on the worker's reports, and that there can be none.

use packhorse_reconcile::{Event, TaskId, WorkerReport};
use packhorse_worker_agent::handoff::{Handoff, StatusMark, WorkerStatus};
use tokio::sync::mpsc;

/// The watch over one hand-over folder.
pub(super) struct StatusWatch {
    /// The task.
    pub(super) id: TaskId,
    /// The hand-over folder.
    pub(super) handoff: Handoff,
    /// The last status that was passed on.
    pub(super) last_status: Option<WorkerStatus>,
    /// The receiver of the worker's reports.
    pub(super) events: mpsc::Sender<Event>,
    /// The reason why the worker cannot report, if it cannot.
    pub(super) obstacle: Option<String>,
    /// The mark of the status that was read last.
    pub(super) seen: Option<StatusMark>,
}

impl StatusWatch {
    /// Returns the last report.
    pub(super) fn report(&self) -> Option<&WorkerReport> {
        self.last_status.as_ref().map(|status| &status.phase)
    }

    /// Returns true if the last report is that the worker is ready.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.report(), Some(WorkerReport::Ready { .. }))
    }

    /// Passes on an event. The receiver lives as long as the process.
    pub(super) async fn send(&self, event: Event) {
        let _ = self.events.send(event).await;
    }

    /// Finds out whether the worker could report, which it cannot say itself.
    pub(super) async fn probe(&mut self) {
        let obstacle = self.handoff.status_obstacle();
        self.set_obstacle(obstacle.map(|error| error.to_string()))
            .await;
    }

    async fn set_obstacle(&mut self, obstacle: Option<String>) {
        if self.obstacle == obstacle {
            return;
        }
        if let Some(obstacle) = &obstacle {
            tracing::warn!(error = obstacle, "a worker cannot write its status");
        }
        self.obstacle.clone_from(&obstacle);
        self.send(Event::ReportsFail(self.id.clone(), obstacle))
            .await;
    }

    /// Passes on the status of this process if it has changed.
    pub(super) async fn read(&mut self, pid: u32) {
        // A node may have a thousand that do not change for hours.
        let mark = self.handoff.status_mark();
        if mark.is_none() || self.seen == mark {
            return;
        }
        let Some(status) = current_status(&self.handoff, pid) else {
            return;
        };
        self.seen = mark;
        if self.last_status.as_ref() != Some(&status) {
            self.set_obstacle(None).await;
            let event = Event::Reported(self.id.clone(), status.phase.clone());
            self.last_status = Some(status);
            self.send(event).await;
        }
    }
}

/// Returns the status in the hand-over folder if this process wrote it.
pub(super) fn current_status(handoff: &Handoff, pid: u32) -> Option<WorkerStatus> {
    match handoff.read_status() {
        Ok(status) => status.filter(|status| status.process.pid == pid),
        Err(e) => {
            tracing::warn!(pid, error = %e, "status of a worker not read");
            None
        }
    }
}

//! The last day of all models and devices: a task that samples them every ten seconds, and the files that keep it over a restart.

mod files;
mod log;
mod marks;
mod sampler;

use std::path::PathBuf;

use packhorse_history::History;
use tokio::task::JoinHandle;

use self::{files::Files, sampler::Sampler};
use crate::{driver::DataPlane, events::EventLog, tasks::Tasks};

pub use self::log::HistoryLog;

/// The memory of the history, in bytes.
const LIMIT: usize = 64 << 20;

/// Reads what the folder has, and starts the task that goes on with it. What cannot be read is left out, and what cannot be written is in memory
/// alone: the history keeps no gateway from serving.
pub(crate) async fn start(
    folder: PathBuf,
    (data_plane, events): (&DataPlane, &EventLog),
    tasks: &Tasks,
) -> (HistoryLog, JoinHandle<()>) {
    let read = tokio::task::spawn_blocking(move || {
        let mut files = Files::new(folder);
        let mut history = History::new(LIMIT);
        files.restore(&mut history);
        (history, files)
    });
    let (history, files) = read.await.unwrap_or_else(|e| {
        tracing::error!(error = %e, "the history is not read");
        (History::new(LIMIT), Files::nowhere())
    });
    let log = HistoryLog::new(history);
    let sampler = Sampler::new(data_plane.clone(), events.clone(), log.clone(), files);
    let task = tasks.spawn("history sampler", sampler.run());
    (log, task)
}

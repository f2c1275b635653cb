//! The reused workers of the node, of which each does one measurement, or inspection, after the other.
//!
//! To start a process and to load libtorch takes longer than to measure a small program. Therefore a process is kept for the next task of its
//! device for a while. It is told the hand-over folder of each task through its standard input, and ends with it: when it is not used any more,
//! and with the agent. One that ends during a task has not done it. If it had done others before, the task begins again in a process of its
//! own, so that none is blamed for another.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, PipeWriter, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use packhorse_reconcile::{ExitCause, TaskId};
use tokio::{sync::watch, time::sleep};

use crate::{
    mutex::lock,
    process::{Process, ProcessFailure, Signaller},
    worker_watch::exit_cause,
};

/// The time for which a process without a task is kept for the next one.
const KEPT_FOR: Duration = Duration::from_secs(15);

/// The reused workers of the node.
#[derive(Debug, Default)]
pub(super) struct ReusedWorkers {
    /// The processes, by their names: those of their devices, and that of the inspections.
    workers: BTreeMap<String, ReusedWorker>,
    /// The tasks that get a process of their own next.
    apart: Arc<Mutex<BTreeSet<TaskId>>>,
}

/// A process that does one task after the other.
#[derive(Debug)]
struct ReusedWorker {
    pid: u32,
    signaller: Signaller,
    input: Arc<Mutex<Input>>,
    log: PathBuf,
    end: watch::Receiver<Option<End>>,
}

/// The standard input of a process.
#[derive(Debug)]
struct Input {
    /// The writer; `None` once the process was told to end.
    pipe: Option<PipeWriter>,
    /// The number of tasks that it was given.
    given: u64,
}

/// The end of a process.
#[derive(Clone, Copy, Debug)]
struct End(Option<ProcessFailure>);

/// A task that a reused worker was given, for the watch over it.
#[derive(Debug)]
pub(super) struct GivenTask {
    id: TaskId,
    pid: u32,
    signaller: Signaller,
    log: PathBuf,
    is_first: bool,
    apart: Arc<Mutex<BTreeSet<TaskId>>>,
    end: watch::Receiver<Option<End>>,
}

impl ReusedWorkers {
    /// Returns true if a reused worker may begin the task: none has ended during it.
    pub(super) fn admits(&self, id: &TaskId) -> bool {
        !lock(&self.apart).contains(id)
    }

    /// Adds a process with this log, which reads the folders of its tasks from the pipe.
    pub(super) fn add(&mut self, name: String, process: Process, pipe: PipeWriter, log: PathBuf) {
        let (ended, end) = watch::channel(None);
        let input = Input {
            pipe: Some(pipe),
            given: 0,
        };
        let worker = ReusedWorker {
            pid: process.pid(),
            signaller: process.signaller(),
            input: Arc::new(Mutex::new(input)),
            log,
            end,
        };
        self.workers.insert(name, worker);
        tokio::spawn(async move {
            let mut process = process;
            let failure = process.wait().await;
            tracing::info!(pid = process.pid(), ?failure, "reused worker ended");
            // Without a task nobody listens.
            let _ = ended.send(Some(End(failure)));
        });
    }

    /// Gives a task with this hand-over folder, which is prepared, to the process of this name; `None` if there is none that takes it.
    pub(super) fn give(&self, name: &str, id: &TaskId, folder: &Path) -> Option<GivenTask> {
        let worker = self.workers.get(name)?;
        let given = lock(&worker.input).write(folder).ok()?;
        let input = Arc::clone(&worker.input);
        tokio::spawn(async move {
            sleep(KEPT_FOR).await;
            let mut input = lock(&input);
            if input.given == given {
                // It ends after its task, if that takes longer.
                input.pipe = None;
            }
        });
        Some(GivenTask {
            id: id.clone(),
            pid: worker.pid,
            signaller: worker.signaller.clone(),
            log: worker.log.clone(),
            is_first: given == 1,
            apart: Arc::clone(&self.apart),
            end: worker.end.clone(),
        })
    }

    /// Gives no more tasks to the process of this name, which ends.
    pub(super) fn close(&self, name: &str) {
        if let Some(worker) = self.workers.get(name) {
            lock(&worker.input).pipe = None;
        }
    }

    /// Forgets a task.
    pub(super) fn forget(&self, id: &TaskId) {
        lock(&self.apart).remove(id);
    }
}

impl Input {
    /// Writes the folder of the next task, and returns the number of tasks so far.
    fn write(&mut self, folder: &Path) -> io::Result<u64> {
        let pipe = self.pipe.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let line = [folder.as_os_str().as_bytes(), b"\n"].concat();
        pipe.write_all(&line)?;
        self.given += 1;
        Ok(self.given)
    }
}

impl GivenTask {
    /// Returns the process.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns what signals the process.
    pub(super) fn signaller(&self) -> Signaller {
        self.signaller.clone()
    }

    /// Waits for the end of the process, and returns its cause as that of the task's end.
    pub(super) async fn ended(mut self) -> ExitCause {
        let ended = self.end.wait_for(Option::is_some).await;
        let failure = ended.ok().and_then(|end| (*end)?.0);
        let cause = exit_cause(failure, &self.log);
        if self.is_first {
            return cause;
        }
        lock(&self.apart).insert(self.id.clone());
        ExitCause::AfterOthers(Box::new(cause))
    }
}

//! The pool workers of the node, of which each runs replicas of one device, and their members.
//!
//! To the reconciler a member is a worker like any other: it starts, reports and ends. Here its start is a line in the file that its pool
//! worker reads, and its end that of its status, or of the process. The process ends for all its members at once. Those for whose model it
//! worked then are the ones that the end is blamed on; a model that is blamed often gets a process of its own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use packhorse_cluster::{ModelId, ReplicaId};
use packhorse_reconcile::ExitCause;
use packhorse_worker_agent::handoff::{Handoff, HandoffError, Members, Work};
use tokio::sync::watch;

use crate::{
    blame_file::BlameFile,
    mutex::lock,
    process::{Process, ProcessFailure, Signaller},
    worker_user::WorkerUser,
    worker_watch::exit_cause,
};

/// The number of ends of its pool worker after which a model gets a process of its own.
const MOST_BLAMED: u32 = 2;

/// The pool workers of the node.
#[derive(Debug)]
pub(super) struct Pools {
    worker_user: WorkerUser,
    /// The pool workers, by the names of their devices.
    workers: BTreeMap<String, PoolWorker>,
    /// The number of the last start of a member.
    last_start: u64,
    blamed: Arc<BlameFile>,
}

/// A pool worker.
#[derive(Debug)]
struct PoolWorker {
    handoff: Handoff,
    pid: u32,
    signaller: Signaller,
    members: Members,
    /// The model because of which the process was killed.
    killed_for: Arc<Mutex<Option<ModelId>>>,
    end: watch::Receiver<Option<PoolEnd>>,
}

/// The end of a pool worker.
#[derive(Clone, Debug)]
struct PoolEnd {
    cause: ExitCause,
    /// The models to blame; empty if nothing is known.
    blamed: Vec<ModelId>,
}

/// A member that was begun, for the watch over it.
#[derive(Debug)]
pub(super) struct Member {
    pid: u32,
    signaller: Signaller,
    end: watch::Receiver<Option<PoolEnd>>,
}

impl Member {
    /// Returns the process of the pool worker.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns what signals that process.
    pub(super) fn signaller(&self) -> Signaller {
        self.signaller.clone()
    }

    /// Waits for the end of the pool worker, and returns its cause as that of a member with this model.
    pub(super) async fn ended(&mut self, model: &ModelId) -> ExitCause {
        let ended = self.end.wait_for(Option::is_some).await;
        let end = ended.ok().and_then(|end| end.clone());
        end.map_or(ExitCause::Ended, |end| end.cause_for(model))
    }
}

impl Pools {
    /// Creates the node's set of pool workers, which is empty, for processes of this user.
    pub(super) fn new(worker_user: WorkerUser, blamed: BlameFile) -> Self {
        Self {
            worker_user,
            workers: BTreeMap::new(),
            last_start: 0,
            blamed: Arc::new(blamed),
        }
    }

    /// Returns true if a model may run beside others in one process.
    pub(super) fn admits(&self, model: &ModelId) -> bool {
        self.blamed.ends(model) < MOST_BLAMED
    }

    /// Returns true if the device has a pool worker that has not ended.
    pub(super) fn is_running(&self, device: &str) -> bool {
        let worker = self.workers.get(device);
        worker.is_some_and(|worker| worker.end.borrow().is_none())
    }

    /// Adds a pool worker with these members, which was started or is that of an earlier agent, and waits for its end.
    pub(super) fn add(
        &mut self,
        device: String,
        handoff: Handoff,
        process: Process,
        members: Members,
    ) {
        let last = members.values().copied().max().unwrap_or(0);
        self.last_start = self.last_start.max(last);
        let (ended, end) = watch::channel(None);
        let worker = PoolWorker {
            handoff: handoff.clone(),
            pid: process.pid(),
            signaller: process.signaller(),
            members,
            killed_for: Arc::default(),
            end,
        };
        let (killed_for, blamed) = (Arc::clone(&worker.killed_for), Arc::clone(&self.blamed));
        self.workers.insert(device, worker);
        tokio::spawn(async move {
            let mut process = process;
            let failure = process.wait().await;
            let killed_for = lock(&killed_for).take();
            let end = PoolEnd {
                blamed: killed_for.map_or_else(|| to_blame(failure, &handoff), |model| vec![model]),
                cause: exit_cause(failure, &handoff.log_path()),
            };
            tracing::info!(pid = process.pid(), cause = %end.cause, "pool worker ended");
            for model in &end.blamed {
                let times = blamed.blame(model);
                tracing::warn!(model.name = %model, times, "a pool worker ended while it worked for a model");
            }
            // Without members nobody listens.
            let _ = ended.send(Some(end));
        });
    }

    /// Returns the hand-over folder of the device's pool worker.
    pub(super) fn handoff(&self, device: &str) -> &Handoff {
        &self.workers[device].handoff
    }

    /// Begins a member of the device's pool worker, whose folder is prepared.
    ///
    /// # Errors
    /// The file with the members cannot be written.
    pub(super) fn begin(
        &mut self,
        device: &str,
        replica: ReplicaId,
    ) -> Result<Member, HandoffError> {
        let worker = self.workers.get_mut(device).expect("it was added");
        let mut members = worker.members.clone();
        self.last_start += 1;
        members.insert(replica, self.last_start);
        worker.write(&members, &self.worker_user)?;
        worker.members = members;
        Ok(worker.member())
    }

    /// Returns the members of a pool worker that was added with them.
    pub(super) fn members(&self, device: &str) -> impl Iterator<Item = (ReplicaId, Member)> {
        let worker = &self.workers[device];
        let ids = worker.members.keys().copied();
        ids.map(|replica| (replica, worker.member()))
    }

    /// Tells a member to answer its batches and end.
    pub(super) fn end(&mut self, device: &str, replica: ReplicaId) {
        let Some(worker) = self.workers.get_mut(device) else {
            return;
        };
        worker.members.remove(&replica);
        if let Err(error) = worker.write(&worker.members, &self.worker_user) {
            // It is killed when its time is over, which ends the process.
            tracing::warn!(%error, %replica, "a member was not told to end");
        }
    }

    /// Kills the pool worker because of one of its members.
    pub(super) fn kill(&self, device: &str, model: &ModelId) {
        if let Some(worker) = self.workers.get(device) {
            *lock(&worker.killed_for) = Some(model.clone());
            worker.signaller.kill();
        }
    }

    /// Removes a member that has ended. A pool worker without members is killed, and its folder can be removed if this returns it.
    pub(super) fn forget(&mut self, device: &str, replica: ReplicaId) -> Option<Handoff> {
        let worker = self.workers.get_mut(device)?;
        if worker.members.remove(&replica).is_some()
            && let Err(error) = worker.write(&worker.members, &self.worker_user)
        {
            tracing::warn!(%error, "the members of a pool worker were not written");
        }
        if !worker.members.is_empty() {
            return None;
        }
        let worker = self.workers.remove(device)?;
        worker.signaller.kill();
        Some(worker.handoff)
    }
}

impl PoolWorker {
    /// Tells the process its members.
    fn write(&self, members: &Members, user: &WorkerUser) -> Result<(), HandoffError> {
        self.handoff
            .write_members(members, |file| user.let_read(file))
    }

    fn member(&self) -> Member {
        Member {
            pid: self.pid,
            signaller: self.signaller.clone(),
            end: self.end.clone(),
        }
    }
}

/// Returns the models for which a pool worker worked when it failed or was killed, as the kernel does where memory runs out; none if it ended
/// otherwise.
fn to_blame(failure: Option<ProcessFailure>, handoff: &Handoff) -> Vec<ModelId> {
    if failure.is_none() {
        return Vec::new();
    }
    let notes = [Work::Running, Work::Loading].into_iter();
    notes.filter_map(|work| handoff.read_note(work)).collect()
}

impl PoolEnd {
    /// Returns the cause of the end as that of a member with this model.
    fn cause_for(self, model: &ModelId) -> ExitCause {
        match self.blamed.first() {
            Some(neighbour) if !self.blamed.contains(model) => {
                ExitCause::WithNeighbour(neighbour.to_string())
            }
            _ => self.cause,
        }
    }
}

//! The agent's state folder: `artifacts/`; `replicas/ID/`, `profiles/KIND/MODEL/` and `inspections/MODEL/`, which are hand-over folders with
//! an additional `wanted.json`, from which a later agent reads why the worker was started; `mps/`, the folders of the MPS daemons;
//! `simulated/`, those of simulated devices; `locks/`, the files whose locks give the workers of a device their turns; and `cluster.json`,
//! the cluster that the agent obeys. A folder has one agent.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use packhorse_cluster::{Program, WantedProfile, WantedReplica};
use packhorse_reconcile::{ServedReplicas, Task, TaskId};
use packhorse_service::{StateDir, StateDirError};
use packhorse_worker_agent::handoff::Handoff;
use serde::{Deserialize, Serialize};

use crate::fence_file::FenceFile;

const INSTANCE_DIGITS: usize = 32;
/// The folders of hand-over folders.
const HANDOFFS: [&str; 3] = ["replicas", "profiles", "inspections"];
/// The folder of the devices' locks.
const LOCKS: &str = "locks";

/// A state folder that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenStateError {
    /// The folder cannot be locked or written.
    #[error(transparent)]
    State(#[from] StateDirError),
    /// The folder belongs to a gateway, whose files the agent would take for its own.
    #[error("--state-dir: {} is the state folder of a gateway; choose another folder for the agent", path.display())]
    Gateway {
        /// The folder.
        path: PathBuf,
    },
}

/// The agent's state folder, locked until this is dropped.
#[derive(Debug)]
pub(super) struct StateFolder {
    dir: Arc<StateDir>,
}

/// The content of `wanted.json`: what a hand-over folder's worker was started for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    Replica(WantedReplica),
    Replicas(Vec<WantedReplica>),
    Profile(WantedProfile),
    Inspection(Program),
}

impl StateFolder {
    /// Locks the folder, and creates it if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Self, OpenStateError> {
        if path.join("packhorse.db").exists() {
            let path = path.to_owned();
            return Err(OpenStateError::Gateway { path });
        }
        let dir = Arc::new(StateDir::open(path)?);
        for folder in HANDOFFS.into_iter().chain(["artifacts", LOCKS]) {
            let path = dir.path().join(folder);
            fs::create_dir_all(&path).map_err(|source| StateDirError::Io { path, source })?;
        }
        Ok(Self { dir })
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the random identity of this folder's agents, which is created once. It distinguishes them from other agents that claim the
    /// same node, so that an agent takes over the lease of its predecessor at once.
    pub(super) fn instance(&self) -> Result<String, StateDirError> {
        let path = self.root().join("instance");
        match fs::read_to_string(&path) {
            Ok(instance) if instance.len() == INSTANCE_DIGITS => return Ok(instance),
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StateDirError::Io { path, source });
            }
            _ => {}
        }
        let instance = format!("{:0INSTANCE_DIGITS$x}", rand::random::<u128>());
        self.dir.write("instance", instance.as_bytes())?;
        Ok(instance)
    }

    /// Returns the file with the cluster that the agent obeys.
    pub(super) fn fence_file(&self) -> Result<FenceFile, StateDirError> {
        FenceFile::open(Arc::clone(&self.dir))
    }

    /// Returns the folder of the artifact cache.
    pub(super) fn artifacts(&self) -> PathBuf {
        self.root().join("artifacts")
    }

    /// Returns the folder of the MPS daemons' folders.
    pub(super) fn mps(&self) -> PathBuf {
        self.root().join("mps")
    }

    /// Returns the file with the lock of a device.
    pub(super) fn device_lock(&self, device: &str) -> PathBuf {
        self.root().join(LOCKS).join(device)
    }

    /// Returns the folder that the workers of a simulated device share.
    pub(super) fn simulated_device(&self, device: &str) -> PathBuf {
        self.root().join("simulated").join(device)
    }

    /// Returns the path of a task's hand-over folder.
    pub(super) fn handoff_dir(&self, id: &TaskId) -> PathBuf {
        match id {
            TaskId::Replica(id) => self.root().join("replicas").join(id.to_string()),
            TaskId::Measurement(model, kind) => self
                .root()
                .join("profiles")
                .join(kind.as_str())
                .join(model.to_string()),
            TaskId::Inspection(model) => self.root().join("inspections").join(model.to_string()),
        }
    }

    /// Prepares the hand-over folder of a task for a new process. The log of the previous process is kept as `worker.log.old`.
    pub(super) fn prepare(&self, task: &Task) -> io::Result<Handoff> {
        let dir = self.handoff_dir(&task.id());
        fs::create_dir_all(&dir)?;
        let handoff = Handoff::new(&dir);
        ignore_missing(fs::remove_file(dir.join("status.json")))?;
        // The temporary files of a killed worker are of no use to the next one.
        ignore_missing(fs::remove_dir_all(handoff.temporary_dir()))?;
        fs::create_dir(handoff.temporary_dir())?;
        ignore_missing(fs::rename(handoff.log_path(), dir.join("worker.log.old")))?;
        let wanted = match task {
            Task::Serve(replicas) if replicas.also().is_empty() => {
                Wanted::Replica(replicas.first().clone())
            }
            Task::Serve(replicas) => Wanted::Replicas(replicas.iter().cloned().collect()),
            Task::Measure(profile) => Wanted::Profile(profile.clone()),
            Task::Inspect(program) => Wanted::Inspection(program.clone()),
        };
        let text = serde_json::to_vec_pretty(&wanted).expect("a wanted state came as JSON");
        fs::write(dir.join("wanted.json"), text)?;
        Ok(handoff)
    }

    /// Returns the task that a hand-over folder's worker was started for; `None` if it cannot be read.
    pub(super) fn read_task(&self, dir: &Path) -> Option<Task> {
        let text = fs::read(dir.join("wanted.json")).ok()?;
        let task = match serde_json::from_slice(&text).ok()? {
            Wanted::Replica(replica) => Task::Serve(replica.into()),
            Wanted::Replicas(replicas) => Task::Serve(ServedReplicas::new(replicas)?),
            Wanted::Profile(profile) => Task::Measure(profile),
            Wanted::Inspection(program) => Task::Inspect(program),
        };
        (self.handoff_dir(&task.id()) == dir).then_some(task)
    }

    /// Returns true if the path is, or was, one of this folder's hand-over folders.
    pub(super) fn contains(&self, dir: &Path) -> bool {
        HANDOFFS
            .iter()
            .any(|folder| dir.starts_with(self.root().join(folder)))
    }

    /// Returns the paths of all hand-over folders.
    pub(super) fn handoff_dirs(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = subfolders(&self.root().join("replicas"))?;
        all.extend(subfolders(&self.root().join("inspections"))?);
        for kind in subfolders(&self.root().join("profiles"))? {
            all.extend(subfolders(&kind)?);
        }
        Ok(all)
    }

    /// Removes a hand-over folder with its content.
    pub(super) fn remove(&self, dir: &Path) {
        assert!(self.contains(dir), "only hand-over folders are removed");
        if let Err(e) = ignore_missing(fs::remove_dir_all(dir)) {
            tracing::warn!(folder = %dir.display(), error = %e, "hand-over folder not removed");
        }
    }
}

fn subfolders(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}

/// Turns the failure to find a file into a success.
fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_has_one_agent_and_is_never_the_gateways() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateFolder::open(dir.path()).unwrap();
        let instance = first.instance().unwrap();
        assert!(matches!(
            StateFolder::open(dir.path()),
            Err(OpenStateError::State(StateDirError::InUse { .. }))
        ));
        drop(first);
        let next = StateFolder::open(dir.path()).unwrap();
        assert_eq!(next.instance().unwrap(), instance);
        drop(next);
        fs::write(dir.path().join("packhorse.db"), "").unwrap();
        assert!(matches!(
            StateFolder::open(dir.path()),
            Err(OpenStateError::Gateway { .. })
        ));
    }
}

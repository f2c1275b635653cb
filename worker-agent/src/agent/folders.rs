//! The agent's state folder: `artifacts/`, `replicas/ID/` and `profiles/KIND/MODEL/`, the latter two hand-over folders that also
//! hold `wanted.json`, by which a later agent knows what the worker was started for; `mps/`, the folders of MPS daemons. One agent
//! per folder.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use packhorse_cluster::{WantedProfile, WantedReplica};
use packhorse_reconcile::{Task, TaskId};
use serde::{Deserialize, Serialize};

use crate::handoff::Handoff;

const INSTANCE_DIGITS: usize = 32;

/// Why a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenStateError {
    /// It cannot be made or written.
    #[error("--state-dir: {}: {source}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// Two agents would fight for the same workers.
    #[error("--state-dir: {} is in use by another agent{holder}", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Its process, where it is known.
        holder: String,
    },
    /// Its files would be taken for the agent's.
    #[error("--state-dir: {} is the state folder of a gateway; give the agent one of its own", path.display())]
    Gateway {
        /// The folder.
        path: PathBuf,
    },
}

/// The state folder, locked for as long as this lives.
#[derive(Debug)]
pub(super) struct Folders {
    root: PathBuf,
    _lock: Flock<File>,
}

/// What a hand-over folder's worker was started for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    Replica(WantedReplica),
    Profile(WantedProfile),
}

/// Makes the folder if there is none, and locks it.
pub(super) fn open(path: &Path) -> Result<Folders, OpenStateError> {
    let io_error = |source| OpenStateError::Io {
        path: path.to_owned(),
        source,
    };
    fs::create_dir_all(path).map_err(io_error)?;
    let root = fs::canonicalize(path).map_err(io_error)?;
    if root.join("packhorse.db").exists() {
        return Err(OpenStateError::Gateway { path: root });
    }
    let lock_path = root.join("agent.lock");
    let file = File::options()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(io_error)?;
    let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        if errno != nix::errno::Errno::EWOULDBLOCK {
            return io_error(errno.into());
        }
        let holder = fs::read_to_string(&lock_path).unwrap_or_default();
        OpenStateError::InUse {
            path: root.clone(),
            holder: match holder.trim() {
                "" => String::new(),
                pid => format!(" (process {pid})"),
            },
        }
    })?;
    lock.set_len(0).map_err(io_error)?;
    writeln!(lock, "{}", std::process::id()).map_err(io_error)?;
    for folder in ["artifacts", "replicas", "profiles"] {
        fs::create_dir_all(root.join(folder)).map_err(io_error)?;
    }
    Ok(Folders { root, _lock: lock })
}

impl Folders {
    /// What tells this folder's agents from others that claim the same node: random, and kept, so that an agent takes the lease
    /// over from the one before it at once.
    pub(super) fn instance(&self) -> io::Result<String> {
        let path = self.root.join("instance");
        match fs::read_to_string(&path) {
            Ok(instance) if instance.len() == INSTANCE_DIGITS => return Ok(instance),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let instance = format!("{:0INSTANCE_DIGITS$x}", rand::random::<u128>());
        fs::write(&path, &instance)?;
        Ok(instance)
    }

    /// Where artifacts are kept.
    pub(super) fn artifacts(&self) -> PathBuf {
        self.root.join("artifacts")
    }

    /// Where MPS daemons have their folders.
    pub(super) fn mps(&self) -> PathBuf {
        self.root.join("mps")
    }

    /// The hand-over folder of a task.
    pub(super) fn of(&self, id: &TaskId) -> PathBuf {
        match id {
            TaskId::Replica(id) => self.root.join("replicas").join(id.to_string()),
            TaskId::Measurement(model, kind) => self
                .root
                .join("profiles")
                .join(kind.as_str())
                .join(model.to_string()),
        }
    }

    /// An empty hand-over folder for a new process of this task; the log of the process before it is kept beside the new one.
    pub(super) fn prepare(&self, task: &Task) -> io::Result<Handoff> {
        let dir = self.of(&task.id());
        fs::create_dir_all(&dir)?;
        let handoff = Handoff::at(&dir);
        remove_if_there(&dir.join("status.json"))?;
        // What a killed worker has left is of no use to the next.
        let temporary = handoff.temporary_dir();
        match fs::remove_dir_all(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => fs::create_dir(&temporary)?,
        }
        match fs::rename(handoff.log_path(), dir.join("worker.log.old")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let wanted = match task {
            Task::Serve(replica) => Wanted::Replica(replica.clone()),
            Task::Measure(profile) => Wanted::Profile(profile.clone()),
        };
        let text = serde_json::to_vec_pretty(&wanted).expect("what is wanted came as JSON");
        fs::write(dir.join("wanted.json"), text)?;
        Ok(handoff)
    }

    /// What the worker of a hand-over folder was started for; `None` if that cannot be told any more.
    pub(super) fn task(&self, dir: &Path) -> Option<Task> {
        let text = fs::read(dir.join("wanted.json")).ok()?;
        let task = match serde_json::from_slice(&text).ok()? {
            Wanted::Replica(replica) => Task::Serve(replica),
            Wanted::Profile(profile) => Task::Measure(profile),
        };
        (self.of(&task.id()) == dir).then_some(task)
    }

    /// Whether this is, or was, one of our hand-over folders.
    pub(super) fn contains(&self, dir: &Path) -> bool {
        ["replicas", "profiles"]
            .iter()
            .any(|folder| dir.starts_with(self.root.join(folder)))
    }

    /// All hand-over folders there are.
    pub(super) fn all(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = subfolders(&self.root.join("replicas"))?;
        for kind in subfolders(&self.root.join("profiles"))? {
            all.extend(subfolders(&kind)?);
        }
        Ok(all)
    }

    /// Removes a hand-over folder with everything in it.
    pub(super) fn remove(&self, dir: &Path) {
        assert!(self.contains(dir), "only hand-over folders are removed");
        if let Err(e) = fs::remove_dir_all(dir)
            && e.kind() != io::ErrorKind::NotFound
        {
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

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_has_one_agent_and_is_never_the_gateways() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path()).unwrap();
        let instance = first.instance().unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("in use by another agent (process "),
            "{error}"
        );
        drop(first);
        let next = open(dir.path()).unwrap();
        assert_eq!(next.instance().unwrap(), instance);
        drop(next);
        fs::write(dir.path().join("packhorse.db"), "").unwrap();
        assert!(matches!(
            open(dir.path()),
            Err(OpenStateError::Gateway { .. })
        ));
    }
}

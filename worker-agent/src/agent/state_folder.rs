//! The agent's state folder: `artifacts/`; `replicas/ID/`, `profiles/KIND/MODEL/` and `inspections/MODEL/`, which are hand-over folders with
//! an additional `wanted.json`, from which a later agent reads why the worker was started, and `user`, as which user where that is not
//! the agent's; `pools/DEVICE/`, the hand-over folders of pool workers, with such a folder for each member in them; `reused/NAME/`, those of workers that do one
//! measurement or inspection after the other; `mps/`, the folders of the MPS daemons;
//! `simulated/`, those of simulated devices; `locks/`, the files whose locks give the workers of a device their turns; `cluster.json`,
//! the cluster that the agent obeys; and `blamed.json`, the models that ended pool workers. A folder has one agent.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use packhorse_cluster::{Program, ReplicaId, WantedProfile, WantedReplica};
use packhorse_reconcile::{ServedReplicas, Task, TaskId};
use packhorse_service::{StateDir, StateDirError};
use packhorse_worker_agent::handoff::{Handoff, read_regular, write_new};
use serde::{Deserialize, Serialize};

use crate::{blame_file::BlameFile, fence_file::FenceFile, worker_user::WorkerUser};

const INSTANCE_DIGITS: usize = 32;
/// The folders of hand-over folders.
const HANDOFFS: [&str; 5] = ["replicas", PROFILES, INSPECTIONS, POOLS, REUSED];
/// The folder of the measurements' folders.
const PROFILES: &str = "profiles";
/// The folder of the inspections' folders.
const INSPECTIONS: &str = "inspections";
/// The folder of the reused workers' folders.
const REUSED: &str = "reused";
/// The folder of the pool workers' folders.
const POOLS: &str = "pools";
/// The folder of the devices' locks.
const LOCKS: &str = "locks";
/// The folder of the artifact cache.
const ARTIFACTS: &str = "artifacts";
/// The folder of the simulated devices' folders.
const SIMULATED: &str = "simulated";
/// The file of a hand-over folder with the number of its worker's user.
const USER: &str = "user";

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
    worker_user: WorkerUser,
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
        for folder in HANDOFFS.into_iter().chain([ARTIFACTS, LOCKS]) {
            let path = dir.path().join(folder);
            fs::create_dir_all(&path).map_err(|source| StateDirError::Io { path, source })?;
        }
        Ok(Self {
            dir,
            worker_user: WorkerUser::default(),
        })
    }

    /// Shares with workers of this user what they need, and nothing else: from now on, and the files of these devices.
    ///
    /// # Errors
    /// The permissions cannot be changed.
    pub(super) fn share_with<'a>(
        &mut self,
        user: &WorkerUser,
        devices: impl IntoIterator<Item = &'a str>,
    ) -> io::Result<()> {
        self.worker_user = user.clone();
        if user.uid().is_none() {
            return Ok(());
        }
        let folders = HANDOFFS.into_iter().chain([ARTIFACTS, LOCKS, SIMULATED]);
        for folder in folders {
            let path = self.root().join(folder);
            fs::create_dir_all(&path)?;
            user.let_pass(&path)?;
        }
        for artifact in fs::read_dir(self.artifacts())? {
            user.let_read(&artifact?.path())?;
        }
        for device in devices {
            let lock = self.device_lock(device);
            File::options().create(true).append(true).open(&lock)?;
            user.let_write(&lock)?;
            let shared = self.simulated_device(device);
            fs::create_dir_all(&shared)?;
            user.let_create(&shared)?;
        }
        Ok(())
    }

    /// Returns the user of the workers.
    pub(super) fn worker_user(&self) -> &WorkerUser {
        &self.worker_user
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        self.root()
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

    /// Returns the file with the models that ended pool workers.
    pub(super) fn blame_file(&self) -> BlameFile {
        BlameFile::open(Arc::clone(&self.dir))
    }

    /// Returns the file with the cluster that the agent obeys.
    pub(super) fn fence_file(&self) -> Result<FenceFile, StateDirError> {
        FenceFile::open(Arc::clone(&self.dir))
    }

    /// Returns the folder of the artifact cache.
    pub(super) fn artifacts(&self) -> PathBuf {
        self.root().join(ARTIFACTS)
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
        self.root().join(SIMULATED).join(device)
    }

    /// Returns the path of a task's hand-over folder.
    pub(super) fn handoff_dir(&self, id: &TaskId) -> PathBuf {
        match id {
            TaskId::Replica(id) => self.root().join("replicas").join(id.to_string()),
            TaskId::Measurement(model, kind) => self
                .root()
                .join(PROFILES)
                .join(kind.as_str())
                .join(model.to_string()),
            TaskId::Inspection(model) => self.root().join(INSPECTIONS).join(model.to_string()),
        }
    }

    /// Returns the hand-over folder of the pool worker of a device.
    pub(super) fn pool(&self, device: &str) -> Handoff {
        Handoff::new(self.root().join(POOLS).join(device))
    }

    /// Returns the name of the device whose pool worker has this hand-over folder; `None` if it is that of something else.
    pub(super) fn device_of_pool(&self, dir: &Path) -> Option<String> {
        let is_pool = dir.parent() == Some(&self.root().join(POOLS));
        let name = dir.file_name().filter(|_| is_pool)?;
        name.to_str().map(str::to_owned)
    }

    /// Prepares the hand-over folder of a task for a new process. The log of the previous process is kept as `worker.log.old`.
    pub(super) fn prepare(&self, task: &Task) -> io::Result<Handoff> {
        let dir = self.handoff_dir(&task.id());
        fs::create_dir_all(&dir)?;
        let above = dir.ancestors().skip(1);
        for folder in above.take_while(|folder| self.contains(folder)) {
            self.worker_user.let_pass(folder)?;
        }
        let handoff = self.prepare_dir(&dir)?;
        write_wanted(&handoff, task)?;
        Ok(handoff)
    }

    /// Prepares the hand-over folder of a device's pool worker for a new process, like [`Self::prepare`].
    pub(super) fn prepare_pool(&self, device: &str) -> io::Result<Handoff> {
        self.prepare_shared(self.pool(device).dir())
    }

    /// Prepares the hand-over folder of a reused worker for a new process, like [`Self::prepare`].
    pub(super) fn prepare_reused(&self, name: &str) -> io::Result<Handoff> {
        self.prepare_shared(&self.root().join(REUSED).join(name))
    }

    /// Prepares the hand-over folder of a process that does several tasks.
    fn prepare_shared(&self, dir: &Path) -> io::Result<Handoff> {
        fs::create_dir_all(dir)?;
        self.prepare_dir(dir)
    }

    /// Returns the folders of the hand-over folders of measurements and inspections.
    pub(super) fn handoffs_of_results(&self) -> impl Iterator<Item = PathBuf> {
        let folders = [PROFILES, INSPECTIONS].into_iter();
        folders.map(|folder| self.root().join(folder))
    }

    /// Prepares the hand-over folder of a task that a pool worker shall do.
    pub(super) fn prepare_member(
        &self,
        pool: &Handoff,
        replica: ReplicaId,
        task: &Task,
    ) -> io::Result<Handoff> {
        let member = pool.member(replica);
        fs::create_dir_all(member.dir())?;
        let handoff = self.prepare_dir(member.dir())?;
        write_wanted(&handoff, task)?;
        Ok(handoff)
    }

    /// Prepares an existing folder for a new process.
    fn prepare_dir(&self, dir: &Path) -> io::Result<Handoff> {
        self.worker_user.let_create(dir)?;
        let handoff = Handoff::new(dir);
        // Whatever a worker has left is of no use to the next one, and may be a trap for the agent.
        empty(dir, &handoff.log_path())?;
        fs::create_dir(handoff.temporary_dir())?;
        self.worker_user.give(&handoff.temporary_dir())?;
        ignore_missing(fs::rename(handoff.log_path(), dir.join("worker.log.old")))?;
        if let Some(uid) = self.worker_user.uid() {
            write_new(&dir.join(USER), uid.to_string().as_bytes())?;
        }
        Ok(handoff)
    }

    /// Returns the task that a hand-over folder's worker was started for; `None` if it cannot be read.
    pub(super) fn read_task(&self, dir: &Path) -> Option<Task> {
        let text = read_regular(&dir.join("wanted.json")).ok()?;
        let task = match serde_json::from_slice(&text).ok()? {
            Wanted::Replica(replica) => Task::Serve(replica.into()),
            Wanted::Replicas(replicas) => Task::Serve(ServedReplicas::new(replicas)?),
            Wanted::Profile(profile) => Task::Measure(profile),
            Wanted::Inspection(program) => Task::Inspect(program),
        };
        let member = match task.id() {
            TaskId::Replica(id) => self
                .device_of_pool(dir.parent()?)
                .map(|device| self.pool(&device).member(id)),
            TaskId::Measurement(..) | TaskId::Inspection(_) => None,
        };
        let is_own = self.handoff_dir(&task.id()) == dir;
        (is_own || member.is_some_and(|member| member.dir() == dir)).then_some(task)
    }

    /// Returns the number of the user as which a hand-over folder's worker was started; `None` if that was the agent's.
    pub(super) fn read_user(dir: &Path) -> Option<u32> {
        let text = read_regular(&dir.join(USER)).ok()?;
        str::from_utf8(&text).ok()?.parse().ok()
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
        all.extend(subfolders(&self.root().join(POOLS))?);
        all.extend(subfolders(&self.root().join(REUSED))?);
        all.extend(subfolders(&self.root().join(INSPECTIONS))?);
        for kind in subfolders(&self.root().join(PROFILES))? {
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

/// Writes what a hand-over folder's worker is started for.
fn write_wanted(handoff: &Handoff, task: &Task) -> io::Result<()> {
    let wanted = match task {
        Task::Serve(replicas) if replicas.also().is_empty() => {
            Wanted::Replica(replicas.first().clone())
        }
        Task::Serve(replicas) => Wanted::Replicas(replicas.iter().cloned().collect()),
        Task::Measure(profile) => Wanted::Profile(profile.clone()),
        Task::Inspect(program) => Wanted::Inspection(program.clone()),
    };
    let text = serde_json::to_vec_pretty(&wanted).expect("a wanted state came as JSON");
    write_new(&handoff.dir().join("wanted.json"), &text)
}

/// Removes what a folder has, except for this file.
fn empty(folder: &Path, kept: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let is_folder = entry.file_type()?.is_dir();
        if is_folder {
            ignore_missing(fs::remove_dir_all(path))?;
        } else if path != kept {
            ignore_missing(fs::remove_file(path))?;
        }
    }
    Ok(())
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

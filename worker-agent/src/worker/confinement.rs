//! The confinement of a worker to its own files, by Landlock: a model is code of somebody else, and TorchScript alone can read any file of its
//! user (`aten::from_file`), such as the tokens and the database of a gateway on the same machine.
//!
//! It is entered once the worker listens and has read its secrets, before the program is loaded. From then on the process, and all threads and
//! processes that begin later, can read the libraries of the system and of libtorch, the model's file, what the kernel says of the machine; can write to the
//! worker's hand-over folder and to the files that the workers of its device share; can open NVIDIA's devices; and can neither make nor
//! accept new kinds of TCP connections, signal or trace other processes, or gain rights by a program that has them. What the kernel does not know
//! is left out.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use packhorse_worker_agent::handoff::{Execution, ExecutorChoice, Handoff};

/// The newest version of Landlock that is asked for.
const VERSION: ABI = ABI::V7;
/// The files that every program reads: libraries, and what the kernel says of the machine and of the process itself. A process of root could read the
/// environment of others in the rest of `/proc`.
const READ: [&str; 15] = [
    "/usr",
    "/lib",
    "/lib64",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/driver",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/self",
    "/proc/stat",
    "/proc/sys",
    "/sys",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
];
/// The files that every program writes.
const WRITTEN: [&str; 2] = ["/dev/null", "/dev/zero"];
/// The folder that a program on a GPU writes to, too: CUDA's shared memory. Clients' shared memory is there as well, so that others have no access.
const WRITTEN_ON_GPUS: &str = "/dev/shm";
/// The environment variables with folders that CUDA writes to: of an MPS server, and of compiled kernels.
const CUDA_FOLDERS: [&str; 3] = [
    "CUDA_CACHE_PATH",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PIPE_DIRECTORY",
];
/// The environment variable with the folders of libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The files of a worker.
#[derive(Debug)]
pub(crate) struct Confinement {
    read: BTreeSet<PathBuf>,
    written: BTreeSet<PathBuf>,
}

impl Confinement {
    /// Returns the files of a worker with these programs.
    pub(crate) fn new<'a>(
        handoff: &Handoff,
        executions: impl IntoIterator<Item = &'a Execution>,
    ) -> Self {
        let mut read: BTreeSet<PathBuf> = READ.iter().map(PathBuf::from).collect();
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        read.extend(libraries(&maps));
        let library_path = env::var_os(LIBRARY_PATH).unwrap_or_default();
        read.extend(env::split_paths(&library_path).filter(|path| path.is_absolute()));
        let mut written: BTreeSet<PathBuf> = WRITTEN.iter().map(PathBuf::from).collect();
        written.insert(handoff.dir().to_owned());
        for execution in executions {
            match &execution.executor {
                ExecutorChoice::Torch {
                    artifact,
                    cuda_device,
                } => {
                    if cuda_device.is_some() {
                        written.insert(PathBuf::from(WRITTEN_ON_GPUS));
                        let folders = CUDA_FOLDERS.iter().filter_map(env::var_os);
                        written.extend(folders.map(PathBuf::from));
                        written.extend(nvidia_devices());
                    }
                    read.insert(artifact.clone())
                }
                ExecutorChoice::Simulated { folder, .. } => {
                    // What does not exist cannot be allowed. If it cannot be made, the simulated device says why.
                    let _ = fs::create_dir_all(folder);
                    written.insert(folder.clone())
                }
            };
            let locks = execution.device_lock.as_deref().and_then(Path::parent);
            written.extend(locks.map(Path::to_owned));
        }
        Self { read, written }
    }

    /// Allows the files of these folders to be read, too.
    pub(crate) fn also_reading(mut self, folders: impl IntoIterator<Item = PathBuf>) -> Self {
        self.read.extend(folders);
        self
    }

    /// Allows these files and folders to be written, too. What does not exist cannot be allowed.
    pub(crate) fn also_writing(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.written.extend(paths);
        self
    }

    /// Confines this thread, and those that begin later.
    pub(crate) fn enter(&self) {
        match self.restrict() {
            Ok(RulesetStatus::NotEnforced) => tracing::warn!(
                "the kernel has no Landlock: the model can read and write what the worker's user can"
            ),
            Ok(status) => tracing::info!(confinement.status = ?status, "confined to its own files"),
            Err(error) => tracing::warn!(%error, "not confined to its own files"),
        }
    }

    fn restrict(&self) -> Result<RulesetStatus, RulesetError> {
        let status = Ruleset::default()
            .handle_access(AccessFs::from_all(VERSION))?
            .handle_access(AccessNet::from_all(VERSION))?
            .scope(Scope::from_all(VERSION))?
            .create()?
            .add_rules(path_beneath_rules(&self.read, AccessFs::from_read(VERSION)))?
            .add_rules(path_beneath_rules(
                &self.written,
                AccessFs::from_all(VERSION),
            ))?
            .restrict_self()?;
        Ok(status.ruleset)
    }
}

/// Returns the program, and the folders of the libraries that are mapped, beside which are those that they load later.
fn libraries(maps: &str) -> BTreeSet<PathBuf> {
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let allowed = paths.filter_map(|path| {
        let folder = path.parent().filter(|folder| folder.parent().is_some())?;
        let name = path.file_name()?.to_str()?;
        let is_library = name.contains(".so.") || path.extension().is_some_and(|end| end == "so");
        Some(if is_library { folder } else { path })
    });
    allowed.map(Path::to_owned).collect()
}

fn nvidia_devices() -> impl Iterator<Item = PathBuf> {
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten();
    devices.map(|entry| entry.path()).filter(|path| {
        path.as_os_str()
            .as_encoded_bytes()
            .starts_with(b"/dev/nvidia")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_where_they_are_mapped_from() {
        let maps = "\
            00400000-00452000 r-xp 00000000 08:02 173521 /opt/packhorse/bin/packhorse-worker\n\
            7f00-7f01 rw-p 00000000 00:00 0 \n\
            7f01-7f02 r--p 00000000 08:02 1 /srv/lib torch/lib/libc10.so\n\
            7f02-7f03 r-xp 00000000 00:00 0 [vdso]\n\
            7f03-7f04 r-xp 00000000 00:00 0 /file\n";
        let found = libraries(maps);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [
                PathBuf::from("/opt/packhorse/bin/packhorse-worker"),
                PathBuf::from("/srv/lib torch/lib")
            ]
        );
    }
}

//! The hand-over folder, through which an agent gives a worker process its task and the worker reports its status.
//!
//! Each worker process has a folder with three files: `task.json`, which the agent writes before it starts the worker;
//! `status.json`, which the worker replaces whenever its [`WorkerReport`] changes; and `worker.log`, the worker's output. The folder
//! also contains the worker's folder for temporary files, and `link.sock`, the Unix socket on which it listens for a gateway of its host.
//! Files are used instead of a pipe because a worker outlives its agent, and the next agent must find it. On SIGTERM a worker answers
//! the batches it has and exits.

mod environment;
mod log_limit;
mod members;
mod process_identity;
mod task;

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;

pub use environment::{exit_code, worker_environment};
pub use log_limit::{LOG_LIMIT, shorten_log};
pub use members::{Members, Work, WorkNote};
pub use packhorse_reconcile::WorkerReport;
pub use process_identity::ProcessIdentity;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
pub use task::{
    AlsoServed, Execution, ExecutorChoice, LinkSettings, MemberTask, Optimize, PipelineSettings,
    PoolTask, ProfileTask, ReusedTask, ServeTask,
};

/// The content of `status.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The process that wrote the status. If it no longer runs, the status is out of date.
    pub process: ProcessIdentity,
    /// The worker's report.
    pub phase: WorkerReport,
}

/// The mark of a status, by which it is told from others without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusMark {
    inode: u64,
    changed: (i64, i64),
}

/// A failure to use a file of the hand-over folder.
#[derive(Debug, thiserror::Error)]
pub enum HandoffError {
    /// The file could not be read or written.
    #[error("{file}: {source}")]
    Io {
        /// The name of the file.
        file: &'static str,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The file does not contain the expected JSON.
    #[error("{file}: {source}")]
    Format {
        /// The name of the file.
        file: &'static str,
        /// The position and the reason.
        #[source]
        source: serde_json::Error,
    },
}

/// The largest file of a hand-over folder that is read, in bytes.
const LARGEST_FILE: u64 = 64 << 20;
const TASK: &str = "task.json";
const STATUS: &str = "status.json";
/// The file that the agent writes to see whether the worker can write.
const PROBE: &str = "probe";
/// The bytes of that file: about those of a status.
const PROBE_BYTES: usize = 4096;
const LOG: &str = "worker.log";
const TEMPORARY: &str = "tmp";
const LINK_SOCKET: &str = "link.sock";

/// A hand-over folder.
#[derive(Clone, Debug)]
pub struct Handoff {
    dir: PathBuf,
}

impl Handoff {
    /// Creates a handle for the existing folder `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Returns the path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the file that receives the worker's standard output and standard error.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// Keeps the log within [`LOG_LIMIT`], and what is written within a second, until the process ends. Called by the worker.
    pub fn limit_log(&self) {
        log_limit::watch(&self.log_path());
    }

    /// Returns the path of the worker's task.
    pub fn task_path(&self) -> PathBuf {
        self.dir.join(TASK)
    }

    /// Returns the path of the worker's folder for temporary files. A package is unpacked there, and its files may stay.
    pub fn temporary_dir(&self) -> PathBuf {
        self.dir.join(TEMPORARY)
    }

    /// Returns the absolute path of the Unix socket on which the worker listens for its replica of this index, as others are told it; `None` if
    /// it is no text.
    pub fn link_socket(&self, index: usize) -> Option<String> {
        let folder = match index {
            0 => self.dir.clone(),
            _ => self.dir.join(index.to_string()),
        };
        let path = std::path::absolute(folder.join(LINK_SOCKET)).ok()?;
        path.into_os_string().into_string().ok()
    }

    /// Writes the worker's task: a [`ServeTask`], a [`ProfileTask`], or the [`Execution`] of a program to inspect. Called by the agent.
    pub fn write_task(&self, task: &impl Serialize) -> Result<(), HandoffError> {
        self.write(TASK, task)
    }

    /// Reads the worker's task: a [`ServeTask`] for `serve`, a [`ProfileTask`] for `profile`, an [`Execution`] for `operators`.
    pub fn read_task<T: DeserializeOwned>(&self) -> Result<T, HandoffError> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "the file does not exist");
        self.read(TASK)?.ok_or_else(|| HandoffError::Io {
            file: TASK,
            source: missing(),
        })
    }

    /// Writes the worker's status. Called by the worker.
    pub fn write_status(&self, status: &WorkerStatus) -> Result<(), HandoffError> {
        self.write(STATUS, status)
    }

    /// Reads the worker's last status; `None` before the worker has written one.
    pub fn read_status(&self) -> Result<Option<WorkerStatus>, HandoffError> {
        self.read(STATUS)
    }

    /// Returns a mark of the status, which is another one after each [`Self::write_status`]; `None` before the first.
    pub fn status_mark(&self) -> Option<StatusMark> {
        let file = self.dir.join(STATUS).symlink_metadata().ok()?;
        Some(StatusMark {
            inode: file.ino(),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }

    /// Replaces a file atomically: a reader sees the old or the new content, never a part.
    fn write(&self, file: &'static str, content: &impl Serialize) -> Result<(), HandoffError> {
        self.write_shared(file, content, |_| Ok(()))
    }

    /// Replaces a file atomically by one that this function has shared with its readers.
    fn write_shared(
        &self,
        file: &'static str,
        content: &impl Serialize,
        share: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(), HandoffError> {
        let text = serde_json::to_vec_pretty(content).expect("the hand-over structs are JSON");
        let temporary = self.dir.join(format!("{file}.new"));
        write_new(&temporary, &text)
            .and_then(|()| share(&temporary))
            .and_then(|()| fs::rename(&temporary, self.dir.join(file)))
            .map_err(|source| {
                // A part of it takes the room that the next attempt needs.
                let _ = fs::remove_file(&temporary);
                HandoffError::Io { file, source }
            })
    }

    /// Returns the reason why the worker cannot write its status now; `None` if it can. Called by the agent, to which a worker that cannot write
    /// says nothing.
    pub fn status_obstacle(&self) -> Option<HandoffError> {
        let probe = self.dir.join(PROBE);
        let written = write_new(&probe, &[0; PROBE_BYTES]).and_then(|()| self.check_room());
        let _ = fs::remove_file(&probe);
        written.err().map(|source| HandoffError::Io {
            file: STATUS,
            source,
        })
    }

    /// Returns an error if a worker finds no room in the folder: root, as whom the agent may run, has some of its own.
    fn check_room(&self) -> io::Result<()> {
        let space = rustix::fs::statvfs(&self.dir)?;
        if space.f_bavail.saturating_mul(space.f_frsize) < PROBE_BYTES as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn read<T: DeserializeOwned>(&self, file: &'static str) -> Result<Option<T>, HandoffError> {
        let text = match read_regular(&self.dir.join(file)) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(HandoffError::Io { file, source }),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| HandoffError::Format { file, source })
    }
}

/// Writes a file anew. The worker's model can write to its folder, too: a link that it leaves there is replaced, and not followed to a file of
/// the agent.
///
/// # Errors
/// The file cannot be removed or written.
pub fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(content)
}

/// Reads a file of a worker that is neither a link nor something that keeps its reader waiting.
///
/// # Errors
/// The file cannot be read, or is a link.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let mut content = Vec::new();
    file.take(LARGEST_FILE).read_to_end(&mut content)?;
    Ok(content)
}

/// Opens a file of a worker that is neither a link, also no hard one, nor something that keeps its reader waiting.
///
/// # Errors
/// The file cannot be opened, or is something else.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.nlink() <= 1 {
        Ok(file)
    } else {
        Err(io::Error::other("it is no regular file of one name"))
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ByteCount, Capacity, Verification};
    use packhorse_reconcile::AlsoListening;

    use super::*;

    #[test]
    fn a_link_that_a_model_leaves_in_its_folder_leads_the_agent_to_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::new(dir.path());
        let secret = tempfile::NamedTempFile::new().unwrap();
        fs::write(secret.path(), "{}").unwrap();
        for name in [PROBE, "task.json.new", STATUS] {
            std::os::unix::fs::symlink(secret.path(), dir.path().join(name)).unwrap();
        }
        assert!(handoff.read_status().is_err());
        assert!(handoff.status_obstacle().is_none());
        handoff.write_task(&1).unwrap();
        assert_eq!(fs::read_to_string(secret.path()).unwrap(), "{}");
        assert_eq!(handoff.read_task::<u32>().unwrap(), 1);
    }

    #[test]
    fn a_status_is_read_back_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::new(dir.path());
        assert_eq!(handoff.read_status().unwrap(), None);
        for phase in [
            WorkerReport::Loading,
            WorkerReport::Ready {
                address: "127.0.0.1:9".parse().unwrap(),
                local_path: Some("/run/w/link.sock".to_owned()),
                also: vec![AlsoListening {
                    replica: "1-1".parse().unwrap(),
                    address: "127.0.0.1:10".parse().unwrap(),
                    local_path: None,
                }],
                memory: Some(ByteCount::new(7)),
                capacity: Some(Capacity {
                    batch_size: 4,
                    in_flight: 2,
                    multiprocessors: None,
                }),
                verification: Some(Verification {
                    compared: 0,
                    not_compared: Some("random".to_owned()),
                    dropped: Vec::new(),
                }),
            },
            WorkerReport::Measured {
                done: 2,
                total: 3,
                csv: "a,b\n".to_owned(),
                kernels: Some("c\n".to_owned()),
                operators: Some("{}".to_owned()),
            },
            WorkerReport::Inspected {
                operators: "{}".to_owned(),
            },
            WorkerReport::Failed {
                reason: "no".to_owned(),
                permanent: true,
            },
        ] {
            let status = WorkerStatus {
                process: ProcessIdentity::current(),
                phase,
            };
            let before = handoff.status_mark();
            handoff.write_status(&status).unwrap();
            assert_ne!(handoff.status_mark(), before);
            assert_eq!(handoff.status_mark(), handoff.status_mark());
            assert_eq!(handoff.read_status().unwrap(), Some(status));
        }
    }

    #[test]
    fn reports_of_workers_one_version_apart_are_read() {
        let older = r#"{"phase":"measuring","done":1,"total":4}"#;
        let report: WorkerReport = serde_json::from_str(older).unwrap();
        let (done, total, operators) = (1, 4, None);
        assert_eq!(
            report,
            WorkerReport::Measuring {
                done,
                total,
                operators
            }
        );
        let newer =
            r#"{"phase":"measured","done":1,"total":1,"csv":"","operators":"{}","more":[1]}"#;
        let report: WorkerReport = serde_json::from_str(newer).unwrap();
        let WorkerReport::Measured { operators, .. } = report else {
            panic!("{report:?}")
        };
        assert_eq!(operators.as_deref(), Some("{}"));
    }

    #[test]
    fn a_torn_or_missing_task_is_an_error_that_names_the_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::new(dir.path());
        let missing = handoff.read_task::<ServeTask>().unwrap_err().to_string();
        fs::write(dir.path().join(TASK), "{\"replica\":").unwrap();
        let torn = handoff.read_task::<ServeTask>().unwrap_err().to_string();
        for message in [missing, torn] {
            assert!(message.starts_with("task.json: "), "{message}");
            assert!(!message.contains(dir.path().to_str().unwrap()), "{message}");
        }
    }
}

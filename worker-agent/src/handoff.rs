//! The hand-over folder: how an agent tells a worker process what to do, and how the worker tells what became of it.
//!
//! One folder per worker process, with three files: `task.json`, written by the agent before the worker starts;
//! `status.json`, replaced as a whole by the worker whenever its [`WorkerReport`] changes; `worker.log`, what the worker prints.
//! Beside them is the folder for the worker's temporary files.
//! Files instead of a pipe, because a worker outlives its agent and the next agent has to find it. SIGTERM asks a worker to
//! answer what it has and to exit.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use packhorse_cluster::{DeviceKind, Program, ReplicaId};
pub use packhorse_reconcile::WorkerReport;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// With what a worker process exits. Everything else (1, 2, 101, a signal) is a crash or a wrong command line.
pub mod exit_code {
    /// Drained after SIGTERM, or measured to the end.
    pub const DONE: u8 = 0;
    /// The status says `failed`, and whether starting again could help.
    pub const FAILED: u8 = 10;
    /// A batch ran longer than its limit. The batch, and those behind it, were answered with a failure.
    pub const BATCH_TIMED_OUT: u8 = 11;
}

/// What `packhorse-worker serve` does: runs one replica and answers its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeTask {
    /// Which replica this is; a gateway that expects another one hangs up.
    pub replica: ReplicaId,
    /// What runs, and on what.
    pub execution: Execution,
    /// The most rows of one batch, at most [`Program::rows_limit`].
    pub batch_size: u32,
    /// Where to listen for the gateway; with port 0 the status tells which port it became.
    pub listen: SocketAddr,
    /// Holds the secret shared with the gateway; without one the link is open to whoever reaches the address.
    pub link_secret_file: Option<PathBuf>,
    /// After this long in the module a batch counts as hung, and the process ends.
    pub batch_limit_ms: u64,
}

/// What `packhorse-worker profile` does: measures latency and memory for batch sizes 1, 2, 4, … up to the program's limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileTask {
    /// What runs, and on what.
    pub execution: Execution,
    /// What the device is called in the profile.
    pub device_kind: DeviceKind,
    /// After this long no further batch size is begun.
    pub time_limit_ms: u64,
}

/// A program on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Execution {
    /// What runs.
    pub program: Program,
    /// What runs it.
    pub executor: ExecutorChoice,
    /// Threads that one batch may use on the CPU, at least 1.
    pub threads: u32,
    /// How its batches follow each other.
    pub pipeline: Pipeline,
}

/// How the batches of a worker follow each other through receiving, copying in, computing, copying out and answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Batches that the worker takes before it has answered one, at least 1.
    pub in_flight: u32,
    /// Whether one batch is copied in or out while another is computed: three threads, and on a GPU three streams. Otherwise
    /// one thread does one thing after the other, on a GPU in one stream.
    pub streams: bool,
    /// Whether a GPU's work for the usual batch sizes is recorded once and played again (CUDA graphs).
    pub graphs: bool,
}

impl Pipeline {
    /// One batch computes, the next is there when it is done.
    pub const DEFAULT_IN_FLIGHT: u32 = 2;
    /// Each takes memory for its inputs and outputs.
    pub const MAX_IN_FLIGHT: u32 = 16;

    /// How many batches have memory at a time: those in flight, and one that is received.
    pub fn buffers(&self) -> usize {
        self.in_flight as usize + 1
    }
}

impl Default for Pipeline {
    /// As a CPU does best: its copies take no time, and handing over does.
    fn default() -> Self {
        Self {
            in_flight: Self::DEFAULT_IN_FLIGHT,
            streams: false,
            graphs: false,
        }
    }
}

/// What runs a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ExecutorChoice {
    /// libtorch.
    Torch {
        /// The TorchScript file, or package that was compiled ahead of time.
        artifact: PathBuf,
        /// Index of the CUDA device, as the worker's environment numbers them; none is the CPU.
        cuda_device: Option<u32>,
    },
    /// A clock: batches take as long as a profile says and answer zeros.
    Simulated {
        /// The kind of device that is simulated.
        device_kind: DeviceKind,
        /// Profiles in the CSV contract; one of them is of the program on that kind.
        profile_csv: String,
    },
}

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Who says so: a status whose process is gone is history.
    pub process: ProcessIdentity,
    /// Where it is.
    pub phase: WorkerReport,
}

/// A process, told apart from a later one that got the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// The process that has this number now; `None` if there is none, or only a zombie that nobody has waited for yet.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the command in parentheses and may itself hold spaces and parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        let start_ticks = fields.nth(18)?.parse().ok()?;
        Some(Self { pid, start_ticks })
    }

    /// This very process.
    pub fn current() -> Self {
        Self::of(std::process::id()).expect("a running process has its /proc/PID/stat")
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

/// Why a file of the hand-over could not be used.
#[derive(Debug, thiserror::Error)]
pub enum HandoffError {
    /// It could not be read or written.
    #[error("{file}: {source}")]
    Io {
        /// Which of the three files.
        file: &'static str,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// It holds something else than it should.
    #[error("{file}: {source}")]
    Format {
        /// Which of the three files.
        file: &'static str,
        /// Where and what.
        #[source]
        source: serde_json::Error,
    },
}

const TASK: &str = "task.json";
const STATUS: &str = "status.json";
const LOG: &str = "worker.log";
const TEMPORARY: &str = "tmp";

/// One hand-over folder.
#[derive(Clone, Debug)]
pub struct Handoff {
    dir: PathBuf,
}

impl Handoff {
    /// The folder at `dir`, which exists.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the worker's standard output and error go.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// The worker's own folder for temporary files: a package unpacks itself there, and may leave it behind.
    pub fn temporary_dir(&self) -> PathBuf {
        self.dir.join(TEMPORARY)
    }

    /// Agent: says what to do, a [`ServeTask`] or a [`ProfileTask`].
    pub fn write_task(&self, task: &impl Serialize) -> Result<(), HandoffError> {
        self.write(TASK, task)
    }

    /// What to do: [`ServeTask`] for `serve`, [`ProfileTask`] for `profile`.
    pub fn read_task<T: DeserializeOwned>(&self) -> Result<T, HandoffError> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "not there");
        self.read(TASK)?.ok_or_else(|| HandoffError::Io {
            file: TASK,
            source: missing(),
        })
    }

    /// Worker: says where it is.
    pub fn write_status(&self, status: &WorkerStatus) -> Result<(), HandoffError> {
        self.write(STATUS, status)
    }

    /// What the worker last said; `None` before its first word.
    pub fn read_status(&self) -> Result<Option<WorkerStatus>, HandoffError> {
        self.read(STATUS)
    }

    /// Replaces the file as a whole: a reader sees the old or the new content, never a part.
    fn write(&self, file: &'static str, content: &impl Serialize) -> Result<(), HandoffError> {
        let text = serde_json::to_vec_pretty(content).expect("the hand-over structs are JSON");
        let temporary = self.dir.join(format!("{file}.new"));
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, self.dir.join(file)))
            .map_err(|source| HandoffError::Io { file, source })
    }

    fn read<T: DeserializeOwned>(&self, file: &'static str) -> Result<Option<T>, HandoffError> {
        let text = match fs::read(self.dir.join(file)) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(HandoffError::Io { file, source }),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| HandoffError::Format { file, source })
    }
}

/// The environment variables a worker with so many threads is to be started with, beside what the agent's own environment
/// has.
///
/// glibc gives the memory of a network's activations back to the kernel after every batch and faults it in again, page by
/// page, at the next one: about half the time of a batch of a convolutional network on a CPU. With one arena on the heap, no
/// separate mappings and no trimming, memory is kept instead.
///
/// OpenMP's threads by default spin while they wait for each other, which assumes that the cores are theirs. Workers share
/// them: with two spinning workers and a busy neighbour on two cores a batch of 4 ms took 40 ms, and some took seconds.
///
/// A package's machine code takes its inputs' shapes for granted, unless it is told to look.
pub fn worker_environment(threads: u32) -> Vec<(&'static str, String)> {
    vec![
        ("MALLOC_ARENA_MAX", "1".to_owned()),
        ("MALLOC_MMAP_MAX_", "0".to_owned()),
        ("MALLOC_TRIM_THRESHOLD_", (1_u64 << 46).to_string()),
        ("MALLOC_TOP_PAD_", (16_u64 << 20).to_string()),
        ("OMP_NUM_THREADS", threads.to_string()),
        ("OMP_WAIT_POLICY", "PASSIVE".to_owned()),
        ("MKL_NUM_THREADS", threads.to_string()),
        ("AOTI_RUNTIME_CHECK_INPUTS", "1".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ByteCount, Capacity};

    use super::*;

    #[test]
    fn a_status_is_read_back_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::at(dir.path());
        assert_eq!(handoff.read_status().unwrap(), None);
        for phase in [
            WorkerReport::Loading,
            WorkerReport::Ready {
                address: "127.0.0.1:9".parse().unwrap(),
                memory: Some(ByteCount::new(7)),
                capacity: Some(Capacity {
                    batch_size: 4,
                    in_flight: 2,
                    multiprocessors: None,
                }),
            },
            WorkerReport::Measured {
                done: 2,
                total: 3,
                csv: "a,b\n".to_owned(),
                kernels: Some("c\n".to_owned()),
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
            handoff.write_status(&status).unwrap();
            assert_eq!(handoff.read_status().unwrap(), Some(status));
        }
    }

    #[test]
    fn a_torn_or_missing_task_is_an_error_that_names_the_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::at(dir.path());
        let missing = handoff.read_task::<ServeTask>().unwrap_err().to_string();
        fs::write(dir.path().join(TASK), "{\"replica\":").unwrap();
        let torn = handoff.read_task::<ServeTask>().unwrap_err().to_string();
        for message in [missing, torn] {
            assert!(message.starts_with("task.json: "), "{message}");
            assert!(!message.contains(dir.path().to_str().unwrap()), "{message}");
        }
    }

    #[test]
    fn a_process_is_alive_until_it_has_been_waited_for_or_died() {
        assert!(ProcessIdentity::current().is_alive());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap();
        assert!(identity.is_alive());
        assert!(
            !ProcessIdentity {
                start_ticks: identity.start_ticks + 1,
                ..identity
            }
            .is_alive()
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!identity.is_alive());
    }
}

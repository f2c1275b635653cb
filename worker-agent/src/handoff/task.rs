//! The tasks of a worker: serve a replica, serve those of a device that come and go, or measure a program.

use std::{net::SocketAddr, path::PathBuf};

use clap::ValueEnum;
use packhorse_cluster::{ByteCount, ComputeShare, DeviceKind, Program, ReplicaId};
use packhorse_tls::{LinkTls, ServerFiles};
use serde::{Deserialize, Serialize};

/// The task of `packhorse-worker serve`: run one replica and answer its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeTask {
    /// The replica's id. A gateway that expects another replica at this address closes the connection.
    pub replica: ReplicaId,
    /// The program and its device.
    pub execution: Execution,
    /// The other replicas that the process runs, whose programs begin with the same operators on the same weights.
    #[serde(default)]
    pub also: Vec<AlsoServed>,
    /// The most rows of a batch, at most [`Program::rows_limit`].
    pub batch_size: u32,
    /// The ways by which gateways reach the worker.
    pub links: LinkSettings,
    /// The time limit of a batch in the module, in milliseconds. A batch that exceeds it counts as hung, and the process ends.
    pub batch_limit_ms: u64,
}

/// The ways by which gateways reach a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    /// The address on which the worker listens for gateways. For port 0 the status contains the chosen port.
    pub listen: SocketAddr,
    /// True if the process runs as another user than the agent. Then it gets the secret through standard input, if there is one, because it cannot read
    /// the file, and the processes of its group connect to its Unix sockets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_user: bool,
    /// The file with the secret shared with gateways. Without one, anyone who reaches the address can use the worker.
    pub secret_file: Option<PathBuf>,
    /// TLS for gateways on other machines; `None` without.
    pub tls: Option<LinkTls<ServerFiles>>,
}

/// Another replica of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlsoServed {
    /// The replica's id.
    pub replica: ReplicaId,
    /// Its program, on the same device as the first.
    pub execution: Execution,
}

/// The task of `packhorse-worker pool`: run replicas of a device in one process, as [`Handoff::read_members`](super::Handoff::read_members) names them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolTask {
    /// The ways by which gateways reach the replicas.
    pub links: LinkSettings,
    /// The overlap of successive batches, of whichever replicas.
    pub pipeline: PipelineSettings,
    /// The time limit of a batch in the module, in milliseconds. A batch that exceeds it counts as hung, and the process ends.
    pub batch_limit_ms: u64,
    /// The memory of the device that the process may have, with the weights of its programs there; `None` for as much as there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<ByteCount>,
    /// The index of the CUDA device in the worker's environment, whose memory counts; `None` is the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_device: Option<u32>,
    /// True if the device is simulated: the memory that is planned for what is on it counts, and not that of the process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The bytes that weights in memory and not on the device may have together. Programs beyond them leave memory, and are loaded again from their files;
    /// `None` for as much as there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_limit: Option<ByteCount>,
    /// The files and folders that the programs of the device read, such as the folder of their artifacts.
    pub reads: Vec<PathBuf>,
    /// The files and folders that they write, besides the hand-over folder.
    pub writes: Vec<PathBuf>,
}

/// The task of a replica in a pool worker, in a hand-over folder of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberTask {
    /// The replica's id. A gateway that expects another replica at its address closes the connection.
    pub replica: ReplicaId,
    /// The program and its device.
    pub execution: Execution,
    /// The most rows of a batch, at most [`Program::rows_limit`].
    pub batch_size: u32,
}

/// The task of `packhorse-worker profile`: measure latency and memory for batch sizes 1, 2, 4, … up to the program's limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileTask {
    /// The program and its device.
    pub execution: Execution,
    /// The name of the device's kind in the profile.
    pub device_kind: DeviceKind,
    /// The time after which no further batch size is begun, in milliseconds.
    pub time_limit_ms: u64,
    /// True if the operators of the program are wanted, too. They are reported before the measurement begins.
    #[serde(default)]
    pub inspect: bool,
}

/// The task of a worker with `--reused`: to do the tasks of the hand-over folders that its standard input names, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReusedTask {
    /// The files and folders that the tasks read, such as the folder of the artifacts.
    pub reads: Vec<PathBuf>,
    /// The files and folders that they write: those of the hand-over folders and of the devices' locks.
    pub writes: Vec<PathBuf>,
}

/// A program on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Execution {
    /// The program.
    pub program: Program,
    /// The executor that runs the program.
    pub executor: ExecutorChoice,
    /// The lock of the device, which its workers share; `None` if no other worker uses the device.
    #[serde(default)]
    pub device_lock: Option<PathBuf>,
    /// The number of threads that a batch may use on the CPU, at least 1.
    pub threads: u32,
    /// The overlap of successive batches.
    pub pipeline: PipelineSettings,
    /// The optimization of the program.
    #[serde(default)]
    pub optimize: Optimize,
    /// True if the program's weights may leave the device while others need its memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parks: bool,
}

/// The optimization of a TorchScript program when it is loaded: it is frozen and rewritten to the operators that are fastest on its device, and on a
/// GPU its runs are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Optimize {
    /// A rewriting that answers random inputs otherwise than the program as it is in its file is dropped
    #[default]
    Verify,
    /// Nothing is compared
    Trust,
    /// The program runs as it is in its file
    Off,
}

/// The overlap of a worker's batches in receiving, copying in, computing, copying out and answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineSettings {
    /// The number of batches that the worker accepts before it has answered one, at least 1.
    pub in_flight: u32,
    /// If true, one batch is copied in or out while another is computed: three threads, and on a GPU three CUDA streams. If false, one
    /// thread runs the stages one after the other, on a GPU in one stream.
    pub streams: bool,
    /// If true, a GPU's work for each batch size is recorded once and replayed (CUDA graphs).
    pub graphs: bool,
}

impl PipelineSettings {
    /// The default of [`PipelineSettings::in_flight`]: one batch computes while the next is received.
    pub const DEFAULT_IN_FLIGHT: u32 = 2;
    /// The largest [`PipelineSettings::in_flight`]. Each batch in flight needs memory for its inputs and outputs.
    pub const MAX_IN_FLIGHT: u32 = 16;

    /// Returns the number of batches that have memory at the same time: those in flight, and one that is being received.
    pub fn buffers(&self) -> usize {
        self.in_flight as usize + 1
    }
}

impl Default for PipelineSettings {
    /// Returns the settings that are best on a CPU, where copies take no time but a hand-over between threads does.
    fn default() -> Self {
        Self {
            in_flight: Self::DEFAULT_IN_FLIGHT,
            streams: false,
            graphs: false,
        }
    }
}

/// The executor of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ExecutorChoice {
    /// libtorch.
    Torch {
        /// The TorchScript file, or the package that was compiled ahead of time.
        artifact: PathBuf,
        /// The index of the CUDA device in the worker's environment; `None` is the CPU.
        cuda_device: Option<u32>,
    },
    /// A simulated device: a batch takes as long as its profile says, beside the batches of other workers, and all its outputs are zero.
    Simulated {
        /// The kind of the simulated device.
        device_kind: DeviceKind,
        /// Profiles in the CSV contract, among them that of the program on this kind of device.
        profile_csv: String,
        /// The share of the device's multiprocessors, in percent; null for all of it.
        compute_share: Option<ComputeShare>,
        /// The folder that the workers of the device share, in which they tell each other of their batches.
        folder: PathBuf,
    },
}

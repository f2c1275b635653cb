//! The wanted state of a node and the status that it reports: the two messages of the level-triggered loop between gateway and agent.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{ByteCount, ComputeShare, DeviceKind, DevicePool, Program, ReplicaId};

/// A replica that a node shall run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WantedReplica {
    /// The replica's identity while it exists.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ReplicaId,
    /// The program that the replica runs.
    pub program: Program,
    /// The device, by its name within the node.
    pub device: String,
    /// The largest number of rows in one batch, at most the program's limit.
    pub batch_size: u32,
    /// The share of the multiprocessors that the replica may use, in percent; none sets no limit.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub compute_share_pct: Option<ComputeShare>,
    /// The device memory that the plan sets aside for the replica, in bytes, without the device's own overhead per process; none if
    /// unknown.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub memory_bytes: Option<ByteCount>,
    /// The number of the last restart that the gateway has asked for, because the replica's worker answered and was broken all the same; 0
    /// for none. When it rises, the agent restarts the worker.
    #[serde(default)]
    pub attempt: u32,
    /// The identity of the worker, which runs all replicas with the same one because their programs share a backbone; none if the replica has
    /// a worker of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub worker: Option<ReplicaId>,
    /// True if the replica is in its device's pool: one process runs all of them, and their weights are on the device as the gateway decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pooled: bool,
}

impl WantedReplica {
    /// Returns the identity of the replica's worker: that of the replica itself unless it shares one.
    pub fn worker(&self) -> ReplicaId {
        self.worker.unwrap_or(self.id)
    }

    /// Returns true if a worker that runs this replica can run the other unchanged. The planned memory, the attempt and the inputs that a
    /// program is tried with may differ: the first and the last change with what is learned, which is no reason to stop a worker, and a new attempt
    /// is another worker of the same replica.
    pub fn runs_as(&self, other: &Self) -> bool {
        // A node compares a thousand of them for each event, so that none is copied.
        let Self {
            id,
            program,
            device,
            batch_size,
            compute_share_pct,
            memory_bytes: _,
            attempt: _,
            worker,
            pooled,
        } = self;
        *id == other.id
            && *device == other.device
            && *batch_size == other.batch_size
            && *compute_share_pct == other.compute_share_pct
            && *worker == other.worker
            && *pooled == other.pooled
            && program.serves_as(&other.program)
    }
}

/// A measurement that a node shall make: the program's latency and memory for batch sizes 1, 2, 4, … on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WantedProfile {
    /// The program that is measured.
    pub program: Program,
    /// The device, by its name within the node.
    pub device: String,
    /// The kind of the device.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub device_kind: DeviceKind,
    /// The time after which no further batch size is begun, in milliseconds.
    pub time_limit_ms: u64,
    /// True if the operators of the program are wanted, too.
    #[serde(default)]
    pub inspect: bool,
}

impl WantedProfile {
    /// Returns true if a worker that makes this measurement makes the other, too. Operators may be wanted of one and not of the other: they
    /// are a by-product, which is no reason to measure again.
    pub fn runs_as(&self, other: &Self) -> bool {
        let Self {
            program,
            device,
            device_kind,
            time_limit_ms,
            inspect: _,
        } = self;
        *device == other.device
            && *device_kind == other.device_kind
            && *time_limit_ms == other.time_limit_ms
            && *program == other.program
    }
}

/// The whole wanted state of a node. A later revision replaces an earlier one of the same epoch; a later epoch replaces all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WantedState {
    /// The number of the gateway's start, which is a fencing token: an agent ignores messages of an older epoch.
    pub epoch: u64,
    /// The number of the change within the epoch.
    pub revision: u64,
    /// The replicas that shall run, and no others.
    pub replicas: Vec<WantedReplica>,
    /// The measurements that shall be made.
    pub profiles: Vec<WantedProfile>,
    /// The programs whose operators shall be found without measuring them. This needs no device.
    #[serde(default)]
    pub inspections: Vec<Program>,
}

/// The state of a replica's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", from = "String")]
pub enum ReplicaState {
    /// The agent fetches the artifact.
    Fetching,
    /// The worker process starts, loads the program and warms up. A state that this version does not know is read as this one: the
    /// replica exists and gets no batches.
    Loading,
    /// The worker takes batches at its address.
    Ready,
    /// The worker finishes what it has and ends.
    Draining,
    /// The worker died; the agent waits before it starts it again.
    BackingOff,
    /// The program cannot be served as it is registered, and a restart would not help.
    Failed,
}

impl From<String> for ReplicaState {
    fn from(word: String) -> Self {
        match word.as_str() {
            "fetching" => Self::Fetching,
            "ready" => Self::Ready,
            "draining" => Self::Draining,
            "backing_off" => Self::BackingOff,
            "failed" => Self::Failed,
            // "loading", and the words of later versions.
            _ => Self::Loading,
        }
    }
}

/// The status that a node reports of one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaStatus {
    /// The replica.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ReplicaId,
    /// The state of the replica's worker.
    pub state: ReplicaState,
    /// The address on which the worker listens; none before it does.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<SocketAddr>,
    /// The path of the Unix socket on which the worker listens for a gateway of its host; none if it listens on the address alone.
    #[serde(default)]
    pub local_path: Option<String>,
    /// The process id of the worker; none while there is no process.
    pub pid: Option<u32>,
    /// The kind of the worker.
    #[serde(default, skip_serializing_if = "WorkerKind::is_own")]
    pub worker: WorkerKind,
    /// The number of times that the worker was restarted.
    pub restarts: u32,
    /// The reason why the replica is not ready, as text for people.
    pub reason: Option<String>,
    /// The memory that the replica needs, in bytes; none while unknown.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub memory_bytes: Option<ByteCount>,
    /// The capacity that the worker reported; none before it takes batches.
    #[serde(default)]
    pub capacity: Option<Capacity>,
    /// The comparison of the worker's answers with those of the program as it is in its file; none if the worker has made none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
}

/// The kind of a replica's worker process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// The process runs this replica, and those of models that share its backbone.
    #[default]
    Own,
    /// The process runs many replicas of the device, which come and go.
    Pool,
}

impl WorkerKind {
    /// Returns true for a worker of the replica's own.
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature that serde calls"
    )]
    fn is_own(&self) -> bool {
        *self == Self::Own
    }
}

/// The comparison of a program's answers to random inputs, as its worker has rewritten it to be fast, with those of the program as it is in its
/// file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Verification {
    /// The number of batches whose answers were compared.
    pub compared: u32,
    /// The reason why nothing was compared, as text for people; none if something was.
    #[serde(default)]
    pub not_compared: Option<String>,
    /// The rewritings that the worker does without, because they answered something else.
    #[serde(default)]
    pub dropped: Vec<DroppedRewriting>,
}

impl Verification {
    /// The largest number of [`Verification::dropped`].
    pub const MAX_DROPPED: usize = 16;
    /// The largest number of bytes of a text.
    pub const MAX_TEXT: usize = 1024;
}

/// A rewriting that a worker does without.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DroppedRewriting {
    /// The rewriting, such as `oneDNN's aten::avg_pool2d`.
    pub rewriting: String,
    /// The difference of its answers, as text for people.
    pub reason: String,
}

/// The limits that a worker found on its device and in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capacity {
    /// The largest number of rows in one batch that there is memory for, at most the wanted batch size.
    pub batch_size: u32,
    /// The number of batches that the worker accepts before it has answered the first.
    pub in_flight: u32,
    /// The number of multiprocessors that the worker may use; none if the device has none.
    pub multiprocessors: Option<u32>,
}

/// The progress that a node reports of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProfileProgress {
    /// The model that is measured.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub model: crate::ModelId,
    /// The kind of device that it is measured on.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub device_kind: DeviceKind,
    /// The number of batch sizes measured so far.
    pub done: u32,
    /// The number of batch sizes to measure.
    pub total: u32,
    /// The finished measurement, in the CSV format of profiles; none while it is not finished.
    pub csv: Option<String>,
    /// The recorded kernels, as CSV; none on a device without kernels.
    #[serde(default)]
    pub kernels: Option<String>,
    /// The operators of the program, as JSON, from which its profile is estimated until it is measured; none if they are not known.
    #[serde(default)]
    pub operators: Option<String>,
    /// The reason why there is no measurement: the program cannot be served as it is registered.
    pub error: Option<String>,
}

impl ProfileProgress {
    /// The largest number of bytes of the operators of a program. The largest network of Clockwork's zoo has 79 KB.
    pub const MAX_OPERATORS_BYTES: usize = 128 << 10;
}

/// The result of an inspection that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InspectionResult {
    /// The model whose program was inspected.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub model: crate::ModelId,
    /// The operators of the program, as JSON; none if they cannot be found.
    pub operators: Option<String>,
    /// The reason why the operators cannot be found, as text for people.
    pub error: Option<String>,
}

/// A device as its agent reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceReport {
    /// The device's name within the node: the UUID of an NVIDIA GPU, `cpu0`, `sim0`.
    pub name: String,
    /// The kind of device, as in profiles.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub kind: DeviceKind,
    /// The memory that replicas may use, in bytes.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub memory_bytes: ByteCount,
    /// The number of streaming multiprocessors of a GPU, or of threads of a CPU; null if unknown.
    pub multiprocessors: Option<u32>,
    /// The device's name in its driver or the operating system.
    pub description: String,
    /// The pool that its models can share; none if each replica has a worker process of its own, or the agent decides about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<DevicePool>,
}

/// The scheduling of a node, which an admin controls.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// Replicas are placed on the node.
    #[default]
    Open,
    /// The node keeps its replicas and gets no new ones.
    Cordoned,
    /// The node's replicas move to other nodes.
    Draining,
}

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The node's agent holds the lease, and replicas are placed on the node.
    Ready,
    /// The node keeps its replicas and gets no new ones.
    Cordoned,
    /// The node's replicas move to other nodes.
    Draining,
    /// The node's agent has lost the lease, and no replicas are placed on the node.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_is_written_and_an_unknown_one_as_loading() {
        for state in [
            ReplicaState::Fetching,
            ReplicaState::Loading,
            ReplicaState::Ready,
            ReplicaState::Draining,
            ReplicaState::BackingOff,
            ReplicaState::Failed,
        ] {
            let word = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<ReplicaState>(&word).unwrap(), state);
        }
        let later: ReplicaState = serde_json::from_str("\"hibernating\"").unwrap();
        assert_eq!(later, ReplicaState::Loading);
    }
}

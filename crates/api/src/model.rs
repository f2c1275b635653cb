//! Models, their artifacts and how they fare.

use packhorse_cluster::{
    ArtifactDigest, ByteCount, Capacity, ComputeShare, DeviceId, DeviceKind, ModelName,
    ModelVersion, ReplicaId, ReplicaState, RequestsPerSecond, TensorSpec,
};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Registers a version of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelRegistration {
    /// The name clients use.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", example = "minilm")]
    pub name: ModelName,
    /// The version, 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub version: Option<ModelVersion>,
    /// The digest of an uploaded TorchScript file. Either this or `artifact_path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^sha256:[0-9a-f]{64}$")]
    pub artifact: Option<ArtifactDigest>,
    /// A TorchScript file on the gateway's machine, under one of its configured roots. Either this or `artifact`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_path: Option<String>,
    /// The most rows of one batch; 0 for a model without a batch dimension.
    #[schema(maximum = 4096, example = 16)]
    pub max_batch_size: u32,
    /// The latency objective in milliseconds, end to end at the gateway; at most 60000.
    #[schema(exclusive_minimum = 0, maximum = 60000, example = 200)]
    pub slo_ms: f64,
    /// The rate to plan for, in requests per second.
    #[schema(value_type = f64, minimum = 0, example = 50)]
    pub rate_rps: RequestsPerSecond,
    /// The most requests that wait for it; one more is refused. If absent, the gateway's `--queue-limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub queue_limit: Option<u32>,
    /// In the order of the program's arguments; shapes include the batch dimension.
    pub inputs: Vec<TensorSpec>,
    /// In the order of the program's results; shapes include the batch dimension.
    pub outputs: Vec<TensorSpec>,
}

/// Changes what is promised of a model. Absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelChange {
    /// The latency objective in milliseconds; at most 60000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 60000)]
    pub slo_ms: Option<f64>,
    /// The rate to plan for, in requests per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, minimum = 0)]
    pub rate_rps: Option<RequestsPerSecond>,
    /// The most requests that wait for it; null: the gateway's `--queue-limit` again.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000)]
    pub queue_limit: Option<Option<u32>>,
}

/// A field that is there, be it null: absent ones stay what they are.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Where a model is on its way from registration to serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// Stored; nothing has happened with it yet, for want of a node.
    Registered,
    /// An agent fetches its artifact.
    Fetching,
    /// It is measured on a kind of device that has no profile of it.
    Profiling,
    /// The policy decides where it runs.
    Planning,
    /// Its replicas start.
    Loading,
    /// At least one replica takes requests.
    Ready,
    /// The plan has no place for it.
    Unplaced,
    /// It cannot be served as it is registered.
    Failed,
}

/// A registered version of a model, with what has become of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelView {
    /// The name clients use.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// The version.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// Where it is on its way.
    pub state: ModelState,
    /// Why it is there and what it waits for, for people.
    pub reason: Option<String>,
    /// Its TorchScript file.
    #[schema(value_type = String)]
    pub artifact: ArtifactDigest,
    /// The file's size.
    pub artifact_bytes: u64,
    /// The most rows of one batch; 0 for a model without a batch dimension.
    pub max_batch_size: u32,
    /// The latency objective in milliseconds.
    pub slo_ms: f64,
    /// The rate that is planned for, in requests per second.
    #[schema(value_type = f64)]
    pub rate_rps: RequestsPerSecond,
    /// The most requests that wait for it; null: the gateway's `--queue-limit`.
    #[serde(default)]
    pub queue_limit: Option<u32>,
    /// The inputs it declares.
    pub inputs: Vec<TensorSpec>,
    /// The outputs it declares.
    pub outputs: Vec<TensorSpec>,
    /// The kinds of device it has a profile on.
    #[schema(value_type = Vec<String>)]
    pub profiled_on: Vec<DeviceKind>,
    /// Measurements under way.
    pub profiling: Vec<ProfilingView>,
    /// Its replicas, wanted and running.
    pub replicas: Vec<ReplicaView>,
}

/// A measurement under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfilingView {
    /// On what kind of device.
    #[schema(value_type = String)]
    pub device_kind: DeviceKind,
    /// Batch sizes measured so far.
    pub done: u32,
    /// Batch sizes to measure in all; 0 while that is not known.
    pub total: u32,
}

/// One replica of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaView {
    /// Its identity for as long as it lives.
    #[schema(value_type = String)]
    pub id: ReplicaId,
    /// Where it runs, as NODE/DEVICE.
    #[schema(value_type = String)]
    pub device: DeviceId,
    /// What that device is.
    #[schema(value_type = String)]
    pub device_kind: DeviceKind,
    /// The most rows of one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors it may use; null sets no limit.
    #[schema(value_type = Option<f64>)]
    pub compute_share_pct: Option<ComputeShare>,
    /// Where it is on its way; null before its node has said anything of it.
    pub state: Option<ReplicaState>,
    /// Whether the gateway is connected to it and gives it batches.
    pub serving: bool,
    /// How often its worker was started again.
    pub restarts: u32,
    /// Its worker's process on the node.
    pub pid: Option<u32>,
    /// Why it is not ready.
    pub reason: Option<String>,
    /// Memory that it was seen to need on its device; null before it is ready.
    #[schema(value_type = Option<u64>)]
    pub memory_bytes: Option<ByteCount>,
    /// What its worker is capable of, which may be less than planned; null before it is ready.
    pub capacity: Option<Capacity>,
}

/// A stored model file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    /// Its SHA-256.
    #[schema(value_type = String)]
    pub digest: ArtifactDigest,
    /// Its size.
    pub bytes: u64,
}

/// How a model fared in a window of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelGoodput {
    /// The model.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// Its version.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// Requests that arrived, per second.
    pub offered_rps: f64,
    /// Requests that were answered, per second.
    pub throughput_rps: f64,
    /// Requests that were answered within the SLO, per second.
    pub goodput_rps: f64,
    /// Requests refused or expired in the window.
    pub dropped: u64,
    /// Median latency of the answered, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 95th percentile.
    pub p95_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// Mean rows per batch.
    pub mean_batch: Option<f64>,
}

//! Models, their artifacts and their goodput.

use std::{collections::BTreeMap, sync::Arc};

pub use packhorse_cluster::ModelState;
use packhorse_cluster::{
    ArtifactDigest, ByteCount, Capacity, ComputeShare, Datatype, DeviceId, DeviceKind, Dim,
    MinReplicas, ModelName, ModelVersion, Padding, Percent, Postprocess, Preprocess, Priority,
    RateMode, ReplicaId, ReplicaState, RequestsPerSecond, Residency, Split, Sticky, TensorSpec,
    TypicalShapes, Verification, WorkerKind,
};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Registers a version of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelRegistration {
    /// The name that clients use.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", example = "minilm")]
    pub name: ModelName,
    /// The version; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub version: Option<ModelVersion>,
    /// The digest of an uploaded TorchScript file. Exactly one of `artifact` and `artifact_path` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^sha256:[0-9a-f]{64}$")]
    pub artifact: Option<ArtifactDigest>,
    /// The path of a TorchScript file on the gateway's machine, within one of its artifact roots (`--artifact-root`). Exactly one
    /// of `artifact` and `artifact_path` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_path: Option<String>,
    /// The largest number of rows in one batch, at most 4096; 0 for a model without a batch dimension.
    #[schema(maximum = 4096, example = 16)]
    pub max_batch_size: u32,
    /// The latency objective (SLO) in milliseconds, end to end at the gateway; above 0 and at most 60000.
    #[schema(exclusive_minimum = 0, maximum = 60000, example = 200)]
    pub slo_ms: f64,
    /// The reserved request rate, in requests of one row per second: capacity that is kept free for the model. If absent, that of the newest version;
    /// the first one, or one in place of a registered one, is then planned for its measured rate, and for 1 request per second until
    /// requests are measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 1_000_000_000, example = 50)]
    pub rate_rps: Option<RequestsPerSecond>,
    /// The rate to plan for beside a reservation: `declared` (the reserved rate), `measured` (the reserved rate counts only until enough is
    /// measured), `max` (the larger of the two) or `min` (the smaller). If absent, that of the newest version, and `max` for the first one
    /// or in place of a registered one. It has no effect without `rate_rps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateMode>,
    /// The priority over other models, 0 to 9: where devices do not suffice for all, a plan serves models of a higher priority first, and what a
    /// model reserves may be taken from models of a lower one. If absent, that of the newest version, and 5 for the first
    /// one or in place of a registered one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, maximum = 9)]
    pub priority: Option<Priority>,
    /// The least number of different devices with replicas of the model, 1 to 16; those beyond its rate are placed where memory is left, and on different
    /// nodes first. If absent, that of the newest version, and 1 for the first one or in place of a registered one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 16)]
    pub min_replicas: Option<MinReplicas>,
    /// The largest number of requests in the model's queue, 1 to 1000000; further requests are refused. If absent, the gateway's
    /// `--queue-limit` applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub queue_limit: Option<u32>,
    /// The most milliseconds for which a request that finds the model in its file only waits until it is loaded, 0 to 60000. A request that would wait
    /// longer is answered 503 with a `Retry-After` at which it should be loaded. If absent, it is `slo_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 60_000)]
    pub max_cold_wait_ms: Option<u32>,
    /// True if the gateway keeps the model's answers in its memory, and gives them again to requests of the same client with the same inputs (`--prediction-cache`).
    /// Only for a model that answers the same inputs always alike.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cache: bool,
    /// The family that the model is a variant of, a name that clients use like a model's: a request for it is answered by its most accurate
    /// variant that can be in time. All variants have the same inputs, outputs, `max_batch_size` and `slo_ms`. `accuracy` is then required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", example = "sentences")]
    pub family: Option<ModelName>,
    /// The part of the model's answers that are right, in percent, 0 to 100: by it a family orders its variants. Only with `family`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 100, example = 84.1)]
    pub accuracy: Option<Percent>,
    /// The inputs, in the order of the program's arguments. Shapes include the batch dimension.
    #[serde(deserialize_with = "strict_tensors")]
    pub inputs: Vec<TensorSpec>,
    /// The outputs, in the order of the program's results. Shapes include the batch dimension.
    #[serde(deserialize_with = "strict_tensors")]
    pub outputs: Vec<TensorSpec>,
    /// The way from what clients have to an input, by the name of the input: pictures of JPEG, PNG or WebP.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub preprocess: BTreeMap<String, Preprocess>,
    /// The way from an output to what clients want, by the name of the output: the best classes of each row, with their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub postprocess: BTreeMap<String, Postprocess>,
}

/// Reads the signatures of a registration, in which an unknown field is a misspelt one. Elsewhere, between gateway and agent, unknown
/// fields are those of a newer version.
fn strict_tensors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TensorSpec>, D::Error> {
    /// A [`TensorSpec`] without unknown fields.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Tensor {
        name: String,
        datatype: Datatype,
        shape: Vec<Dim>,
        #[serde(default)]
        pad: Option<Pad>,
        #[serde(default)]
        max_shape: Option<Vec<Dim>>,
        #[serde(default)]
        min_shape: Option<Vec<Dim>>,
        #[serde(default)]
        dim_names: Option<Vec<Option<String>>>,
        #[serde(default)]
        typical_shape: Option<TypicalShapes>,
        #[serde(default)]
        example: Option<Vec<f64>>,
    }
    /// A [`Padding`] without unknown fields.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pad {
        axis: usize,
        #[serde(default)]
        value: f64,
    }
    let tensors = Vec::<Tensor>::deserialize(deserializer)?;
    let padding = |Pad { axis, value }| Padding { axis, value };
    let spec = |tensor: Tensor| TensorSpec {
        name: tensor.name,
        datatype: tensor.datatype,
        shape: tensor.shape,
        pad: tensor.pad.map(padding),
        max_shape: tensor.max_shape,
        min_shape: tensor.min_shape,
        dim_names: tensor.dim_names,
        typical_shape: tensor.typical_shape,
        example: tensor.example,
    };
    Ok(tensors.into_iter().map(spec).collect())
}

/// Changes the SLO, reserved rate, rate mode, priority, least number of replicas, queue limit, wait for a load, cache, family, accuracy or split of a model.
/// Absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelChange {
    /// The latency objective (SLO) in milliseconds; above 0 and at most 60000. It belongs to all variants of a family: all of them change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 60000)]
    pub slo_ms: Option<f64>,
    /// The reserved request rate, in requests of one row per second; null removes the reservation, so that the model is planned for its measured rate.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 1_000_000_000)]
    pub rate_rps: Option<Option<RequestsPerSecond>>,
    /// The rate to plan for beside a reservation: `declared`, `measured`, `max` or `min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateMode>,
    /// The priority over other models, 0 to 9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, maximum = 9)]
    pub priority: Option<Priority>,
    /// The least number of different devices with replicas of the model, 1 to 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 16)]
    pub min_replicas: Option<MinReplicas>,
    /// The largest number of requests in the model's queue, 1 to 1000000; null restores the gateway's `--queue-limit`.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000)]
    pub queue_limit: Option<Option<u32>>,
    /// The most milliseconds for which a request that finds the model in its file only waits until it is loaded, 0 to 60000; null restores `slo_ms`.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u32>, maximum = 60_000)]
    pub max_cold_wait_ms: Option<Option<u32>>,
    /// True if answers are kept, and given again to requests of the same client with the same inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<bool>,
    /// The family that the model is a variant of; null takes it out of its family. It belongs to all versions: not with `?version`.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>)]
    pub family: Option<Option<ModelName>>,
    /// The part of the version's answers that are right, in percent, 0 to 100; of all versions that come into a family with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 100)]
    pub accuracy: Option<Percent>,
    /// The shares of the versions in the requests that name none, in percent, which sum to 100; null lets the newest version take over by
    /// itself. It belongs to all versions: not with `?version`.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<HashMap<String, u32>>)]
    pub split: Option<Option<Split>>,
    /// The choice of a version for a request: `none`, or `request-id` (requests with the same `x-request-id` get the same version).
    /// It belongs to all versions: not with `?version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<Sticky>,
}

/// A model that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedModel {
    /// The model's name.
    #[schema(value_type = String)]
    pub removed: ModelName,
    /// The removed version; null if all were.
    #[schema(value_type = Option<u32>)]
    pub version: Option<ModelVersion>,
}

/// Gives all requests that name no version to one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Promotion {
    /// The version.
    #[schema(value_type = u32, minimum = 1, maximum = 2_147_483_647, example = 2)]
    pub version: ModelVersion,
}

/// Deserializes a field that is present, even as null, to `Some`, so that it differs from an absent field.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A registered version of a model and its current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelView {
    /// The name that clients use.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// The version.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// The state between registration and serving.
    pub state: ModelState,
    /// The reason for the state and what the model waits for, as text for people.
    pub reason: Option<String>,
    /// The digest of the model's TorchScript file.
    #[schema(value_type = String)]
    pub artifact: ArtifactDigest,
    /// The size of the file, in bytes.
    pub artifact_bytes: u64,
    /// The largest number of rows in one batch; 0 for a model without a batch dimension.
    pub max_batch_size: u32,
    /// The latency objective (SLO) in milliseconds.
    pub slo_ms: f64,
    /// The reserved request rate, in requests of one row per second; null without a reservation, where the model is planned for its measured rate.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub rate_rps: Option<RequestsPerSecond>,
    /// The rate to plan for beside a reservation: `declared`, `measured`, `max` or `min`.
    #[serde(default)]
    pub rate: RateMode,
    /// The priority over other models, 0 to 9.
    #[serde(default)]
    #[schema(value_type = u32, maximum = 9)]
    pub priority: Priority,
    /// The least number of different devices with replicas of the model.
    #[serde(default)]
    #[schema(value_type = u32, minimum = 1, maximum = 16)]
    pub min_replicas: MinReplicas,
    /// The measured rate; null before the model's requests were counted.
    #[serde(default)]
    pub measured: Option<MeasuredRateView>,
    /// The goodput that the plan predicted beside the observed one, in the last period of 5 s; null before it was sampled under a plan.
    #[serde(default)]
    pub predicted: Option<PredictedGoodputView>,
    /// The largest number of requests in the model's queue; null if the gateway's `--queue-limit` applies.
    #[serde(default)]
    pub queue_limit: Option<u32>,
    /// The most milliseconds for which a request waits while the model is loaded from its file; null if that is `slo_ms`.
    #[serde(default)]
    pub max_cold_wait_ms: Option<u32>,
    /// True if answers are kept, and given again to requests of the same client with the same inputs.
    #[serde(default)]
    pub cache: bool,
    /// The family that the model is a variant of; null if it is in none.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub family: Option<ModelName>,
    /// The part of the version's answers that are right, in percent; null without a family.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub accuracy: Option<Percent>,
    /// The present share of this version in the requests to the model that name no version, in percent.
    #[schema(maximum = 100)]
    #[serde(default)]
    pub share_pct: u32,
    /// The shares of the versions in percent that an admin gave; null if the newest version takes over by itself, in steps of what its
    /// serving replicas are planned to carry.
    #[serde(default)]
    #[schema(value_type = Option<HashMap<String, u32>>)]
    pub split: Option<Split>,
    /// The shares of the versions in percent to which a rollback returns; null if there are none.
    #[serde(default)]
    #[schema(value_type = Option<HashMap<String, u32>>)]
    pub rollback_split: Option<Split>,
    /// The choice of a version for a request: `none`, or `request-id` (requests with the same `x-request-id` get the same version).
    #[serde(default)]
    pub sticky: Sticky,
    /// The declared inputs.
    pub inputs: Vec<TensorSpec>,
    /// The declared outputs.
    pub outputs: Vec<TensorSpec>,
    /// The way from what clients have to an input, by the name of the input: pictures of JPEG, PNG or WebP.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub preprocess: BTreeMap<String, Preprocess>,
    /// The way from an output to what clients want, by the name of the output: the best classes of each row, with their names.
    /// Lists of models and events leave out the names, which may be megabytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub postprocess: BTreeMap<String, Postprocess>,
    /// The kinds of device for which the model has a measured or imported profile.
    #[schema(value_type = Vec<String>)]
    pub profiled_on: Vec<DeviceKind>,
    /// The kinds of device for which the model's profile is estimated from the operators of its program. A measurement replaces it.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub estimated_on: Vec<DeviceKind>,
    /// The kinds of device on which measuring the model failed since the start of the gateway, which does not measure it there again before its next
    /// start. On those that are in `estimated_on`, too, the model serves by its estimate.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub measuring_failed_on: Vec<DeviceKind>,
    /// The measurements that are assigned to a device and not finished.
    pub profiling: Vec<ProfilingView>,
    /// The replicas of the current plan, and those of earlier plans that still run.
    pub replicas: Vec<ReplicaView>,
}

impl ModelView {
    /// Leaves out the names of classes, which may be megabytes.
    #[must_use]
    pub fn without_labels(mut self) -> Self {
        for declared in self.postprocess.values_mut() {
            if let Postprocess::Classes(classes) = declared {
                classes.labels = Arc::default();
            }
        }
        self
    }
}

/// The measured request rate of a model, in requests per second, each counted as many times as it has rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MeasuredRateView {
    /// The expected rate.
    pub rate_rps: f64,
    /// The lower end of the interval that contains the rate with a probability of 95 %.
    pub low_rps: f64,
    /// The upper end of that interval.
    pub high_rps: f64,
    /// The rate that the next plan is made for, which follows from the measured and the reserved one.
    pub planned_rps: f64,
    /// The mean number of rows of a request since the gateway's start; null if none have come.
    #[serde(default)]
    pub rows_per_request: Option<f64>,
}

/// The goodput of a model, predicted for the requests that arrived, and observed. Each request counts as many times as it has rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictedGoodputView {
    /// The requests per second that arrived.
    pub offered_rps: f64,
    /// The requests per second that the plan expected to be answered within the SLO.
    pub predicted_rps: f64,
    /// The requests per second that were answered within the SLO.
    pub observed_rps: f64,
    /// The observed goodput of the last hour over the predicted one, minus 1: negative if it is worse than predicted. Null while there
    /// is nothing to compare.
    pub bias: Option<f64>,
}

/// The progress of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfilingView {
    /// The kind of device that the model is measured on.
    #[schema(value_type = String)]
    pub device_kind: DeviceKind,
    /// The number of batch sizes measured so far.
    pub done: u32,
    /// The number of batch sizes to measure; 0 while unknown.
    pub total: u32,
}

/// A replica of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaView {
    /// The replica's identity while it exists.
    #[schema(value_type = String)]
    pub id: ReplicaId,
    /// The device that the replica runs on, as NODE/DEVICE.
    #[schema(value_type = String)]
    pub device: DeviceId,
    /// The kind of the device.
    #[schema(value_type = String)]
    pub device_kind: DeviceKind,
    /// The largest number of rows in one batch.
    pub batch_size: u32,
    /// The share of the device's multiprocessors that the replica may use, in percent; null if unlimited.
    #[schema(value_type = Option<f64>)]
    pub compute_share_pct: Option<ComputeShare>,
    /// The state that the node reported; null before its first report.
    pub state: Option<ReplicaState>,
    /// True if the gateway is connected to the replica and sends it batches.
    pub serving: bool,
    /// The number of times that the replica's worker was restarted.
    pub restarts: u32,
    /// The process id of the replica's worker on the node; null while there is no process.
    pub pid: Option<u32>,
    /// The kind of that process: the replica's own, or one that runs other replicas, too.
    #[serde(default)]
    pub worker: WorkerKind,
    /// The reason why the replica is not ready.
    pub reason: Option<String>,
    /// The device memory that the worker uses, in bytes; null before it is ready or if unknown.
    #[schema(value_type = Option<u64>)]
    pub memory_bytes: Option<ByteCount>,
    /// The limits that the worker found, which may be below the planned ones; null before it is ready.
    pub capacity: Option<Capacity>,
    /// The comparison of the worker's answers with those of the program as it is in its file; null if there is none.
    #[serde(default)]
    pub verification: Option<Verification>,
    /// The weights of the replica, where the gateway decides when they are on the device; null if they always are.
    #[serde(default)]
    pub weights: Option<WeightsView>,
}

/// The weights of a replica that shares the memory of its device with more models than fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WeightsView {
    /// The place of the weights now: on the device, in the memory of its node, ready to be copied, or in a file of the node only.
    pub residency: Residency,
    /// The bytes that leave the device with them; 0 if they stay.
    #[schema(value_type = u64)]
    pub bytes: ByteCount,
    /// The bytes of the device that the weights of all its models may have together; null if there is no limit.
    #[schema(value_type = Option<u64>)]
    pub pool_bytes: Option<ByteCount>,
    /// The time to bring the weights to the device from where they are, or were last, as the worker measured it, in milliseconds.
    pub load_ms: f64,
    /// The time to load the program from its file, as the worker measured it, in milliseconds.
    #[serde(default)]
    pub cold_load_ms: f64,
    /// The times that the weights were brought to the device since the gateway connected to the replica.
    pub loads: u64,
    /// The times among them that the program was loaded from its file.
    #[serde(default)]
    pub cold_loads: u64,
    /// The times that they left the device for others since then.
    pub evictions: u64,
}

/// A stored model file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    /// The SHA-256 digest of the file.
    #[schema(value_type = String)]
    pub digest: ArtifactDigest,
    /// The size of the file, in bytes.
    pub bytes: u64,
}

/// The goodput and latency of a model in a time window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelGoodput {
    /// The model's name.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// The model's version.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// The requests that arrived, per second.
    pub offered_rps: f64,
    /// The requests that were answered, per second.
    pub throughput_rps: f64,
    /// The requests that were answered within the SLO, per second.
    pub goodput_rps: f64,
    /// The requests that were refused on arrival, per second.
    pub refused_rps: f64,
    /// The requests that were accepted and not answered within the SLO, per second: answered later, or expired in the queue.
    pub late_rps: f64,
    /// The requests that failed, or were lost with their worker, per second.
    #[serde(default)]
    pub failed_rps: f64,
    /// The median latency of the answered requests, in milliseconds.
    pub p50_ms: Option<f64>,
    /// The 95th percentile of the latency, in milliseconds.
    pub p95_ms: Option<f64>,
    /// The 99th percentile of the latency, in milliseconds.
    pub p99_ms: Option<f64>,
    /// The mean number of rows per batch.
    pub mean_batch: Option<f64>,
    /// The family that the model is a variant of; null if it is in none.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub family: Option<ModelName>,
    /// The part of the version's answers that are right, in percent; null without a family.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub accuracy: Option<Percent>,
}

/// The goodput of the variants of a family together in a time window, whether the requests were for the family or for a variant alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FamilyGoodput {
    /// The name of the family.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// The requests that arrived, per second.
    pub offered_rps: f64,
    /// The requests that were answered within the SLO, per second.
    pub goodput_rps: f64,
    /// The requests that were answered within the SLO, each counted by the accuracy of the variant that answered, per second.
    pub accurate_goodput_rps: f64,
    /// The mean accuracy of the answers within the SLO, in percent; null without any.
    pub accuracy_pct: Option<f64>,
}

impl FamilyGoodput {
    /// Returns the goodput of the families that these models are variants of, by name.
    pub fn of(models: &[ModelGoodput]) -> Vec<Self> {
        let mut families: BTreeMap<&ModelName, Self> = BTreeMap::new();
        for model in models {
            let (Some(name), Some(accuracy)) = (&model.family, model.accuracy) else {
                continue;
            };
            let family = families.entry(name).or_insert_with(|| Self {
                name: name.clone(),
                offered_rps: 0.0,
                goodput_rps: 0.0,
                accurate_goodput_rps: 0.0,
                accuracy_pct: None,
            });
            family.offered_rps += model.offered_rps;
            family.goodput_rps += model.goodput_rps;
            family.accurate_goodput_rps += model.goodput_rps * accuracy.get() / 100.0;
            family.accuracy_pct = (family.goodput_rps > 0.0)
                .then(|| 100.0 * family.accurate_goodput_rps / family.goodput_rps);
        }
        families.into_values().collect()
    }
}

/// The goodput of all models together in a time window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TotalGoodput {
    /// The requests that arrived, per second.
    pub offered_rps: f64,
    /// The requests that were answered, per second.
    pub throughput_rps: f64,
    /// The requests that were answered within their SLO, per second.
    pub goodput_rps: f64,
    /// The requests that were refused on arrival, per second.
    pub refused_rps: f64,
    /// The requests that were accepted and not answered within their SLO, per second: answered later, or expired in the queue.
    pub late_rps: f64,
    /// The requests that failed, or were lost with their worker, per second.
    #[serde(default)]
    pub failed_rps: f64,
}

impl TotalGoodput {
    /// Returns the sums over models.
    pub fn of(models: &[ModelGoodput]) -> Self {
        let mut total = Self::default();
        for model in models {
            total.offered_rps += model.offered_rps;
            total.throughput_rps += model.throughput_rps;
            total.goodput_rps += model.goodput_rps;
            total.refused_rps += model.refused_rps;
            total.late_rps += model.late_rps;
            total.failed_rps += model.failed_rps;
        }
        total
    }
}

impl ModelGoodput {
    /// Returns the part of the requests that ended which were in time, from 0 to 1; `None` if none ended. What is still in flight has missed nothing.
    pub fn share_in_time(&self) -> Option<f64> {
        let ended = self.goodput_rps + self.refused_rps + self.late_rps + self.failed_rps;
        (ended > 0.0).then(|| self.goodput_rps / ended)
    }
}

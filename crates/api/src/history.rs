//! `/v1/history`: the last day.

use packhorse_cluster::{DeviceId, ModelId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is known of the models or of a device in a time of the last day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryView {
    /// The begin, in milliseconds since 1970.
    pub from_ms: u64,
    /// The end, in milliseconds since 1970.
    pub to_ms: u64,
    /// The length of a step, in seconds.
    pub step_s: u64,
    /// The time before which nothing is known of anything, in milliseconds since 1970; null if nothing is.
    pub known_from_ms: Option<u64>,
    /// The requests of the model, or of all, in each step of which something is known, in their order. Other steps are gaps. Empty for a device.
    pub requests: Vec<RequestPoint>,
    /// The device in each step of which something is known. Empty for models.
    pub device: Vec<DevicePoint>,
    /// What happened, in its order: what concerns the model or device, or all.
    pub marks: Vec<HistoryMark>,
}

/// The requests of a model, or of all, in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestPoint {
    /// The begin of the step, in milliseconds since 1970.
    pub at_ms: u64,
    /// The time of which something is known, in seconds; less than the step where a part of it is a gap. Rates are counts over this time.
    pub covered_s: f64,
    /// The generation of the plan at the end of the step; null before the first.
    pub plan: Option<u64>,
    /// The requests that arrived.
    pub offered: u64,
    /// The requests that were answered within the SLO.
    pub in_time: u64,
    /// The requests that missed their SLO: those that were late, refused or failed.
    pub missed: u64,
    /// The requests that were answered late, or expired in the queue.
    pub late: u64,
    /// The requests that were refused on arrival.
    pub refused: u64,
    /// The requests that failed, or were lost with their worker.
    pub failed: u64,
    /// The median latency of the answered requests of the step, in milliseconds, within an eighth; null without one.
    pub p50_ms: Option<f64>,
    /// The latency that one of a hundred of them exceeded, in milliseconds, within an eighth, or above; null without one.
    pub p99_ms: Option<f64>,
}

/// A device in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DevicePoint {
    /// The begin of the step, in milliseconds since 1970.
    pub at_ms: u64,
    /// The time of which something is known, in seconds; less than the step where a part of it is a gap.
    pub covered_s: f64,
    /// The generation of the plan at the end of the step; null before the first.
    pub plan: Option<u64>,
    /// The compute time of the batches that came back, over the time. Batches that ran beside each other count each, so that it may be above 1.
    pub busy: f64,
    /// The part of the time in which the device computed, from 0 to 1, as its node read it; null where it cannot be read.
    pub utilization: Option<f64>,
    /// The most memory that its workers reported, in bytes.
    pub memory_bytes: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryMark {
    /// The time, in milliseconds since 1970.
    pub at_ms: u64,
    /// What it is about.
    pub kind: HistoryMarkKind,
    /// The model, with its version; null if it is not about one.
    #[schema(value_type = Option<String>)]
    pub model: Option<ModelId>,
    /// The device; null if it is not about one.
    #[schema(value_type = Option<String>)]
    pub device: Option<DeviceId>,
    /// A sentence for people.
    pub text: String,
}

/// What a mark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryMarkKind {
    /// A plan was adopted.
    Plan,
    /// A version of a model was registered or removed, or failed.
    Version,
    /// A critical finding or a warning was raised.
    Finding,
}

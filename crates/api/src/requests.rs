//! Single requests: those that ended lately (`GET /v1/requests`), and one that an admin tries (`POST /v1/models/{name}/try`).

use std::{fmt, str::FromStr};

use packhorse_cluster::{DeviceId, ModelName, ModelVersion, ReplicaId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The way in which a request ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EndOfRequest {
    /// Answered within the SLO.
    Answered,
    /// Answered after the SLO.
    Late,
    /// Refused on arrival.
    Refused,
    /// Accepted, and then its deadline passed in the queue.
    Expired,
    /// Accepted, but its worker, the batch that it shared, or its model was gone, and it could not be answered elsewhere in time.
    Lost,
    /// Its batch failed with an error of the model, or its answer could not be encoded.
    Failed,
    /// Its client stopped waiting.
    Cancelled,
    /// Wrong in itself, or not permitted: it reached no model, and neither met nor missed an SLO.
    Rejected,
}

impl EndOfRequest {
    const ALL: [Self; 8] = [
        Self::Answered,
        Self::Late,
        Self::Refused,
        Self::Expired,
        Self::Lost,
        Self::Failed,
        Self::Cancelled,
        Self::Rejected,
    ];

    /// Returns true if the request missed its SLO. A request whose client stopped waiting, or that reached no model, neither met nor missed it.
    pub fn is_missed(self) -> bool {
        !matches!(self, Self::Answered | Self::Cancelled | Self::Rejected)
    }

    /// Returns the name of the end in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Late => "late",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
        }
    }
}

impl fmt::Display for EndOfRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The requests to list: those that missed their SLO, or those with one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RequestFilter {
    /// All requests that missed their SLO.
    Missed,
    /// The requests that ended in this way.
    Only(EndOfRequest),
}

/// The error of a text that is not a filter of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFilter;

impl fmt::Display for UnknownFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected missed")?;
        let (last, ends) = EndOfRequest::ALL.split_last().expect("it is not empty");
        for end in ends {
            write!(f, ", {end}")?;
        }
        write!(f, " or {last}")
    }
}

impl std::error::Error for UnknownFilter {}

impl RequestFilter {
    /// Returns true if a request with this end is listed.
    pub fn matches(self, end: EndOfRequest) -> bool {
        match self {
            Self::Missed => end.is_missed(),
            Self::Only(only) => end == only,
        }
    }
}

impl FromStr for RequestFilter {
    type Err = UnknownFilter;

    fn from_str(text: &str) -> Result<Self, UnknownFilter> {
        if text == "missed" {
            return Ok(Self::Missed);
        }
        let mut ends = EndOfRequest::ALL.into_iter();
        let only = ends.find(|end| end.name() == text);
        only.map(Self::Only).ok_or(UnknownFilter)
    }
}

impl fmt::Display for RequestFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missed => f.pad("missed"),
            Self::Only(end) => end.fmt(f),
        }
    }
}

impl TryFrom<String> for RequestFilter {
    type Error = UnknownFilter;

    fn try_from(text: String) -> Result<Self, UnknownFilter> {
        text.parse()
    }
}

impl From<RequestFilter> for String {
    fn from(filter: RequestFilter) -> Self {
        filter.to_string()
    }
}

/// The outcome of looking for a request in the cache of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheUse {
    /// The answer of an earlier request with the same inputs.
    Hit,
    /// Nothing: the request was computed.
    Miss,
}

impl CacheUse {
    /// Returns the name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
        }
    }
}

/// The parts of a request's latency, in milliseconds. Those from `network` on are those of its batch; all that a request did not reach
/// are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestStages {
    /// From the head of the HTTP request to the complete, valid request, without `decode`, `tokenize` and `lookup`.
    pub receive: f64,
    /// The time in which its pictures became tensors.
    #[serde(default)]
    #[schema(required = true)]
    pub decode: f64,
    /// The time in which its texts became tensors.
    #[serde(default)]
    #[schema(required = true)]
    pub tokenize: f64,
    /// The time in which it was looked for in the cache of predictions.
    #[serde(default)]
    #[schema(required = true)]
    pub lookup: f64,
    /// From then until the weights of the model were on the device, where they were not when the request came.
    #[serde(default)]
    #[schema(required = true)]
    pub load: f64,
    /// From then until the last request of its batch arrived.
    pub batch: f64,
    /// From then until its batch was formed, or it ended without one.
    pub queue: f64,
    /// The transmission to the worker and back.
    pub network: f64,
    /// The time before the batch was computed: in the gateway until its turn on a time-shared device, and in the worker.
    pub worker_queue: f64,
    /// The copy into the device's memory.
    pub copy_in: f64,
    /// The computation.
    pub compute: f64,
    /// The copy out of the device's memory.
    pub copy_out: f64,
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestView {
    /// The number of the request since the gateway's start: its address is `/v1/requests/NUMBER`. Those of rejected requests begin at 2^48.
    pub id: u64,
    /// The id in its header `x-request-id`, or the one that the gateway chose for it and answered with; null if it is no longer known.
    #[serde(default)]
    pub request_id: Option<String>,
    /// The id of its trace in 32 hexadecimal digits: that of its header `traceparent`, else a new one where traces are exported; null otherwise.
    #[serde(default)]
    pub trace_id: Option<String>,
    /// The id of the API key that it came with; null without one.
    #[serde(default)]
    pub key: Option<String>,
    /// The name of this key; null without one, and if it was deleted since.
    #[serde(default)]
    pub key_name: Option<String>,
    /// The time of its arrival, in milliseconds since 1970.
    pub at_ms: f64,
    /// The model's name; null of a rejected request whose path has none.
    #[schema(value_type = Option<String>)]
    pub model: Option<ModelName>,
    /// The model's version; null of a rejected request.
    #[schema(value_type = Option<u32>)]
    pub version: Option<ModelVersion>,
    /// The way in which it ended.
    pub outcome: EndOfRequest,
    /// The status that a rejected request was answered with, such as 401; null of others.
    #[serde(default)]
    pub status: Option<u16>,
    /// The address that a rejected request came from; null of others, and if it is not known.
    #[serde(default)]
    pub address: Option<String>,
    /// The reason for an end without an answer, as text for people: the exception if the model threw one, at most 255 bytes of it.
    pub reason: Option<String>,
    /// The time from its head to its end, in milliseconds.
    pub latency_ms: f64,
    /// The time within which its answer was in time, in milliseconds: its own `timeout`, else the model's SLO; 0 of a rejected request.
    pub slo_ms: f64,
    /// The number of its rows; 0 if it was refused before it was read.
    pub rows: u32,
    /// The outcome of looking for it in the cache of predictions; null if its model has none.
    #[serde(default)]
    pub cache: Option<CacheUse>,
    /// The parts of its latency.
    pub stages_ms: RequestStages,
    /// The batch that it was last in; null if it was in none.
    pub batch: Option<BatchView>,
}

/// The batch of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchView {
    /// The number of the batch since the gateway's start.
    pub id: u64,
    /// The number of its rows.
    pub rows: u32,
    /// The replica that it was sent to; null if the gateway no longer knows.
    #[schema(value_type = Option<String>)]
    pub replica: Option<ReplicaId>,
    /// The device of the replica, as NODE/DEVICE; null if the gateway no longer knows.
    #[schema(value_type = Option<String>)]
    pub device: Option<DeviceId>,
}

/// The answer to a request that an admin tries, with the parts of its latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(bound = "")]
pub struct TryView<R> {
    /// The model's answer: an inference response of the Open Inference Protocol, with tensors as JSON.
    #[schema(value_type = Object)]
    pub response: R,
    /// The time from the head of the request to its answer, in milliseconds.
    pub latency_ms: f64,
    /// The model's latency objective (SLO), in milliseconds.
    pub slo_ms: f64,
    /// The parts of the latency.
    pub stages_ms: RequestStages,
    /// The batch that it was in.
    pub batch: Option<BatchView>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_the_missed_ones_or_one_end() {
        assert_eq!("missed".parse(), Ok(RequestFilter::Missed));
        for end in EndOfRequest::ALL {
            let only: RequestFilter = end.name().parse().unwrap();
            assert!(only.matches(end));
            assert_eq!(only.to_string(), end.name());
        }
        assert!(RequestFilter::Missed.matches(EndOfRequest::Refused));
        assert!(!RequestFilter::Missed.matches(EndOfRequest::Cancelled));
        assert_eq!(
            "slow".parse::<RequestFilter>().unwrap_err().to_string(),
            "expected missed, answered, late, refused, expired, lost, failed, cancelled or rejected"
        );
    }
}

//! Why a model is served as far as it is, and what would serve it.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{DeviceKind, RequestsPerSecond};

/// What a plan comes to for one model, and what would serve it where that is not enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The part of its requests that is answered within the SLO, by the estimate of queueing and interference, whatever the
    /// policy itself expects; 1 for a model that expects none and has a replica.
    pub served_fraction: f64,
    /// What it is bound by.
    pub bound: Bound,
    /// Each would suffice by itself, if planned for by the same policy. Empty if it is served, or if nothing was found.
    pub remedies: Vec<Remedy>,
    /// Whether everything was looked at; if not, remedies may be missing or larger than they need be, and that more memory would
    /// serve the model may have been overlooked.
    pub complete: bool,
}

/// What a model is bound by: the first that holds, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Bound {
    /// Its rate: it is served.
    Rate,
    /// There are devices, and it was measured on none of their kinds.
    NoProfile,
    /// No request can be in time, however few there are.
    LatencyFloor {
        /// The least latency, on the fastest device: hand-over, the way there and back, and the smallest batch that may be planned.
        #[serde(with = "millis", rename = "floor_ms")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        floor: Duration,
        /// Its objective.
        #[serde(with = "millis", rename = "slo_ms")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        slo: Duration,
    },
    /// With more memory in the devices there are, it would be served.
    Memory,
    /// The policy gives it no replica, not even if it has all devices to itself.
    Policy {
        /// The policy's own words.
        why: String,
    },
    /// With the devices of its replicas to itself it would be served, and those devices have time left.
    Interference,
    /// The batches that were planned take too long for its SLO, however few requests come.
    BatchTime {
        /// The largest batch size of its replicas.
        batch_size: u32,
        /// Its objective.
        #[serde(with = "millis", rename = "slo_ms")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        slo: Duration,
    },
    /// The time of devices that the plan gives it is too little for its rate; a policy that takes it to suffice plans no more.
    DeviceTime,
}

/// A change that would serve a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Remedy {
    /// What changes; all else stays.
    #[serde(flatten)]
    pub change: Change,
    /// The part of its requests that is in time then, by the estimate.
    pub served_fraction: f64,
}

/// What may be changed for a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// Further devices.
    AddDevices {
        /// Of which kind.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        kind: DeviceKind,
        /// How many.
        count: u32,
    },
    /// A looser objective.
    Slo {
        /// The objective.
        #[serde(with = "millis", rename = "slo_ms")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        slo: Duration,
    },
    /// Smaller batches.
    MaxBatchSize {
        /// The most rows of one batch.
        max_batch_size: u32,
    },
    /// Fewer requests.
    Rate {
        /// The rate.
        #[serde(rename = "rate_rps")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        rate: RequestsPerSecond,
    },
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate => f.write_str("its rate: it is served"),
            Self::NoProfile => f.write_str("missing profiles: it was measured on none of the devices' kinds"),
            Self::LatencyFloor { floor, slo } => write!(
                f,
                "latency: the fastest answer takes {} ms, and its SLO is {} ms",
                rounded(*floor),
                rounded(*slo)
            ),
            Self::Memory => f.write_str("memory: with more of it in the devices it would be served"),
            Self::Policy { why } => write!(f, "the policy, which gives it no replica even alone: {why}"),
            Self::Interference => f.write_str(
                "interference: its devices have time left, and with them to itself it would be served",
            ),
            Self::BatchTime { batch_size, slo } => write!(
                f,
                "batch time: batches of up to {batch_size} as planned take too long for its SLO of {} ms",
                rounded(*slo)
            ),
            Self::DeviceTime => f.write_str("device time: what the plan gives it is too little for its rate"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddDevices { kind, count } => write!(f, "{count} more {kind}"),
            Self::Slo { slo } => write!(f, "an SLO of {} ms", rounded(*slo)),
            Self::MaxBatchSize { max_batch_size } => {
                write!(f, "batches of at most {max_batch_size}")
            }
            Self::Rate { rate } => write!(f, "at most {} requests/s", hundredths(rate.get())),
        }
    }
}

/// Milliseconds, to a hundredth.
fn rounded(duration: Duration) -> f64 {
    hundredths(duration.as_secs_f64() * 1e3)
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_nanos() as f64 / 1e6)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let millis = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(millis / 1e3).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_read_what_a_model_is_bound_by_and_what_would_change_it() {
        let explanation = Explanation {
            served_fraction: 0.25,
            bound: Bound::LatencyFloor {
                floor: Duration::from_micros(36_500),
                slo: Duration::from_millis(30),
            },
            remedies: vec![
                Remedy {
                    change: Change::Slo {
                        slo: Duration::from_millis(38),
                    },
                    served_fraction: 0.995,
                },
                Remedy {
                    change: Change::AddDevices {
                        kind: "T4".parse().unwrap(),
                        count: 2,
                    },
                    served_fraction: 1.0,
                },
            ],
            complete: true,
        };
        let json = serde_json::to_value(&explanation).unwrap();
        let expected = serde_json::json!({
            "served_fraction": 0.25,
            "bound": {"by": "latency-floor", "floor_ms": 36.5, "slo_ms": 30.0},
            "remedies": [
                {"change": "slo", "slo_ms": 38.0, "served_fraction": 0.995},
                {"change": "add-devices", "kind": "T4", "count": 2, "served_fraction": 1.0},
            ],
            "complete": true,
        });
        assert_eq!(json, expected);
        assert_eq!(
            serde_json::from_value::<Explanation>(json).unwrap(),
            explanation
        );
    }
}

//! The explanation of a model's served fraction: its bottleneck, and changes that would serve it.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{DeviceKind, Priority, RequestsPerSecond};

/// The part of one model's requests that a plan serves in time, the bottleneck, and changes that would serve the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The fraction of its requests that is answered within the SLO, from 0 to 1, by the estimate of queueing and interference, whatever
    /// the policy itself expects; 1 for a model that expects no requests and has a replica.
    pub served_fraction: f64,
    /// The bottleneck.
    pub bound: Bound,
    /// Changes each of which would suffice by itself, with a new plan of the same policy. Empty if the model is served, if a new plan would serve it
    /// without a change, or if no such change was found.
    pub remedies: Vec<Remedy>,
    /// True if the search was completed. Otherwise remedies may be missing or larger than necessary, and the bound `memory` may have
    /// been overlooked.
    pub complete: bool,
}

/// The bottleneck of a model: the first variant that holds, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Bound {
    /// The model's own request rate: the model is served.
    Rate,
    /// There are devices, but the model was measured on none of their kinds.
    NoProfile,
    /// No request can be in time, at any rate.
    LatencyFloor {
        /// The least latency, on the fastest device: hand-over, network both ways, and the smallest batch that may be planned.
        #[serde(with = "millis", rename = "floor_ms")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        floor: Duration,
        /// The model's latency objective.
        #[serde(with = "millis", rename = "slo_ms")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        slo: Duration,
    },
    /// Memory: the model would be served if the present devices had more.
    Memory,
    /// The policy gives the model no replica, even if it has all devices to itself.
    Policy {
        /// The reason that the policy gives.
        why: String,
    },
    /// Interference: the model would be served if it had the devices of its replicas to itself, and those devices have time left.
    Interference,
    /// The planned batches take too long for the model's SLO, at any rate.
    BatchTime {
        /// The largest batch size of the model's replicas.
        batch_size: u32,
        /// The model's latency objective.
        #[serde(with = "millis", rename = "slo_ms")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        slo: Duration,
    },
    /// The device time that the plan gives the model is too little for its rate; a policy that considers it sufficient plans no more.
    DeviceTime,
}

/// A change that would serve a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Remedy {
    /// The change; everything else stays the same.
    #[serde(flatten)]
    pub change: Change,
    /// The fraction of the model's requests that is in time after the change, from 0 to 1, by the estimate.
    pub served_fraction: f64,
}

/// A change to the cluster or to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// Further devices.
    AddDevices {
        /// The kind of the added devices.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        kind: DeviceKind,
        /// The number of added devices.
        count: u32,
    },
    /// A looser objective.
    Slo {
        /// The new latency objective.
        #[serde(with = "millis", rename = "slo_ms")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        slo: Duration,
    },
    /// Smaller batches.
    MaxBatchSize {
        /// The new largest number of rows in one batch.
        max_batch_size: u32,
    },
    /// Fewer requests.
    Rate {
        /// The new rate.
        #[serde(rename = "rate_rps")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        rate: RequestsPerSecond,
    },
    /// A higher priority, which takes from models of lower ones.
    Priority {
        /// The new priority.
        #[cfg_attr(feature = "openapi", schema(value_type = u32))]
        priority: Priority,
    },
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate => f.write_str("its own request rate: it is served"),
            Self::NoProfile => {
                f.write_str("missing profiles: it was measured on none of the devices' kinds")
            }
            Self::LatencyFloor { floor, slo } => write!(
                f,
                "latency: the fastest answer takes {} ms, but its SLO is {} ms",
                rounded_millis(*floor),
                rounded_millis(*slo)
            ),
            Self::Memory => {
                f.write_str("memory: it would be served if the devices had more memory")
            }
            Self::Policy { why } => write!(
                f,
                "the policy, which gives it no replica even if it has all devices to itself: {why}"
            ),
            Self::Interference => {
                f.write_str("interference: it would be served if it had its devices to itself")
            }
            Self::BatchTime { batch_size, slo } => write!(
                f,
                "batch time: the planned batches of up to {batch_size} rows take too long for its SLO of {} ms",
                rounded_millis(*slo)
            ),
            Self::DeviceTime => {
                f.write_str("device time: the plan gives it too little for its rate")
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddDevices { kind, count } => write!(f, "{count} more {kind}"),
            Self::Slo { slo } => write!(f, "an SLO of {} ms", rounded_millis(*slo)),
            Self::MaxBatchSize { max_batch_size } => {
                write!(f, "batches of at most {max_batch_size} rows")
            }
            Self::Rate { rate } => write!(f, "at most {} requests/s", hundredths(rate.get())),
            Self::Priority { priority } => write!(f, "a priority of {priority}"),
        }
    }
}

/// Returns the duration in milliseconds, rounded to a hundredth.
fn rounded_millis(duration: Duration) -> f64 {
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
    fn the_json_of_an_explanation_has_its_bound_and_its_remedies() {
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
                Remedy {
                    change: Change::Priority {
                        priority: Priority::new(6).unwrap(),
                    },
                    served_fraction: 0.99,
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
                {"change": "priority", "priority": 6, "served_fraction": 0.99},
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

//! The options of placement policies, which the HTTP API, the command line and the policies share.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Percent, ProfileRow};

/// The options of the placement policies. A policy reads the options that apply to it and ignores the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PolicyOptions {
    /// `usher`, `wao-usher`, `ao-milp`, `wsm-milp`: the measured quantity that counts as a replica's compute requirement, `achieved`,
    /// `mean` or `sm`; null is the policy's own choice.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub compute_metric: Option<ComputeMetric>,
    /// `ao-milp`, `wsm-milp`, `goodput`: the quantity that the policy maximises, `goodput`, `max-min` or `blend`; null is `goodput`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(deserialize_with = "null_as_default")]
    pub objective: Objective,
    /// `ao-milp`, `wsm-milp`: true to choose the smallest batches among the optimal placements.
    pub prefer_small_batch: bool,
    /// `nexus`: true to compute the wait for a residual batch of b as (b - 1) / rate, like the published code, and not as b / rate,
    /// like the paper.
    pub nexus_published: bool,
    /// `goodput`: `auto` to limit replicas to a share of their GPU's multiprocessors where that raises the estimate, which requires
    /// MPS; `never` or null to set no limits.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(deserialize_with = "null_as_default")]
    pub compute_shares: ComputeShareMode,
    /// `goodput`: the number of changes that the search tries, as a multiple of the default; null is 1.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1, maximum = 1000))]
    #[serde(deserialize_with = "null_as_default")]
    pub effort: Effort,
    /// All policies: `bda` to choose the batch size of every planned replica once more, by InSS' bisection under SLO, memory and rate;
    /// `own` or null for the policy's own batch sizes.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(deserialize_with = "null_as_default")]
    pub batch_step: BatchStep,
    /// `gpulet`, `gslice`, and every policy with `batch_step` `bda`: the way from a profile to the time of a batch under a compute share,
    /// `profile` or `inss`; null is `profile`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(deserialize_with = "null_as_default")]
    pub latency_model: LatencyModel,
    /// `herd`: true to form groups by a heuristic, which takes almost no time, instead of an integer program.
    pub herd_greedy: bool,
}

/// Reads a value, or the default in place of null.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A text that is not a value of an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {option} {given:?}: expected one of {}", expected.join(", "))]
pub struct UnknownOptionValue {
    option: &'static str,
    given: String,
    expected: Vec<&'static str>,
}

/// Implements names, parsing and printing of an option's values.
macro_rules! option_values {
    ($type:ident, $option:literal, $count:literal, $($value:ident => $name:literal),+) => {
        impl $type {
            /// All values of the option.
            pub const ALL: [Self; $count] = [$(Self::$value),+];

            /// Returns the name in configuration and reports.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }
        }

        impl FromStr for $type {
            type Err = UnknownOptionValue;

            fn from_str(text: &str) -> Result<Self, UnknownOptionValue> {
                Self::ALL
                    .into_iter()
                    .find(|value| value.as_str() == text)
                    .ok_or_else(|| UnknownOptionValue {
                        option: $option,
                        given: text.chars().take(64).collect(),
                        expected: Self::ALL.map(Self::as_str).to_vec(),
                    })
            }
        }

        impl TryFrom<String> for $type {
            type Error = UnknownOptionValue;

            fn try_from(text: String) -> Result<Self, UnknownOptionValue> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.as_str().to_owned()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// The measured quantity that counts as a replica's requirement of a device's multiprocessors: Usher's Creq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ComputeMetric {
    /// The highest achieved occupancy of any kernel, which Usher uses.
    Achieved,
    /// The mean achieved occupancy, weighted by duration (Elvinger's thesis, section 5.3.1).
    Mean,
    /// The mean utilisation of the multiprocessors, weighted by duration (Elvinger's thesis, section 5.3.2).
    Sm,
}

option_values! { ComputeMetric, "compute metric", 3, Achieved => "achieved", Mean => "mean", Sm => "sm" }

impl ComputeMetric {
    /// Returns the column of the profile file that contains the metric.
    pub const fn column(self) -> &'static str {
        match self {
            Self::Achieved => "achieved_occupancy_pct",
            Self::Mean => "mean_occupancy_pct",
            Self::Sm => "sm_utilization_pct",
        }
    }

    /// Returns the metric's value in a profile row, if it was measured.
    pub fn value(self, row: &ProfileRow) -> Option<Percent> {
        match self {
            Self::Achieved => row.achieved_occupancy,
            Self::Mean => row.mean_occupancy,
            Self::Sm => row.sm_utilization,
        }
    }
}

/// The quantity that an optimising policy maximises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Objective {
    /// The sum of the models' goodput.
    #[default]
    Goodput,
    /// The smallest served fraction of any model's rate, and among equals the sum of goodput.
    MaxMin,
    /// Goodput and max-min in equal parts. The MILP policies treat it like `goodput`.
    Blend,
}

option_values! { Objective, "objective", 3, Goodput => "goodput", MaxMin => "max-min", Blend => "blend" }

/// The choice when a policy limits replicas to a share of their device's multiprocessors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ComputeShareMode {
    /// No replica is limited. This is the default because limits require MPS on the devices.
    #[default]
    Never,
    /// A replica is limited where that raises the estimate.
    Auto,
}

option_values! { ComputeShareMode, "choice of compute shares", 2, Never => "never", Auto => "auto" }

/// The choice of the batch sizes of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BatchStep {
    /// The batch sizes are the policy's own.
    #[default]
    Own,
    /// The batch sizes are chosen once more after the placement, by bisection under SLO, memory and rate (InSS, section 5.3).
    Bda,
}

option_values! { BatchStep, "batch step", 2, Own => "own", Bda => "bda" }

/// The way from a profile to the time of a batch under a compute share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LatencyModel {
    /// Measured and interpolated; below the smallest measured share by the rule of contention.
    #[default]
    Profile,
    /// InSS' model: a locally weighted regression over the measurements, and the interference of neighbours as far as it was measured.
    Inss,
}

option_values! { LatencyModel, "latency model", 2, Profile => "profile", Inss => "inss" }

/// The number of changes that a policy's search tries, as a multiple of the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Effort(u32);

/// A number or text that is not an effort.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an effort must be a whole number from 1 to {}, not {given:?}",
    Effort::MAX
)]
pub struct EffortError {
    given: String,
}

impl Effort {
    /// The policy's default.
    pub const DEFAULT: Self = Self(1);
    /// The largest multiple of the default.
    pub const MAX: u32 = 1_000;

    /// Creates an effort of `times` the default.
    ///
    /// # Errors
    /// If `times` is not from 1 to [`Effort::MAX`].
    pub fn new(times: u32) -> Result<Self, EffortError> {
        if (1..=Self::MAX).contains(&times) {
            Ok(Self(times))
        } else {
            Err(EffortError {
                given: times.to_string(),
            })
        }
    }

    /// Returns the multiple of the default.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for Effort {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<u32> for Effort {
    type Error = EffortError;

    fn try_from(times: u32) -> Result<Self, EffortError> {
        Self::new(times)
    }
}

impl From<Effort> for u32 {
    fn from(effort: Effort) -> Self {
        effort.0
    }
}

impl FromStr for Effort {
    type Err = EffortError;

    fn from_str(text: &str) -> Result<Self, EffortError> {
        let invalid = || EffortError {
            given: text.chars().take(64).collect(),
        };
        Self::new(text.parse().map_err(|_| invalid())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_and_read_back_and_null_is_the_default() {
        let chosen = PolicyOptions {
            compute_metric: Some(ComputeMetric::Mean),
            objective: Objective::MaxMin,
            prefer_small_batch: true,
            nexus_published: false,
            compute_shares: ComputeShareMode::Auto,
            effort: Effort::new(10).unwrap(),
            batch_step: BatchStep::Bda,
            latency_model: LatencyModel::Inss,
            herd_greedy: true,
        };
        let json = serde_json::to_string(&chosen).unwrap();
        assert_eq!(
            json,
            r#"{"compute_metric":"mean","objective":"max-min","prefer_small_batch":true,"nexus_published":false,"compute_shares":"auto","effort":10,"batch_step":"bda","latency_model":"inss","herd_greedy":true}"#
        );
        assert_eq!(
            serde_json::from_str::<PolicyOptions>(&json).unwrap(),
            chosen
        );
        let nulls = r#"{"compute_metric":null,"objective":null,"compute_shares":null,"effort":null,"batch_step":null,"latency_model":null}"#;
        assert_eq!(
            serde_json::from_str::<PolicyOptions>(nulls).unwrap(),
            PolicyOptions::default()
        );
    }

    #[test]
    fn errors_list_what_is_expected() {
        let message = |json| {
            let error = serde_json::from_str::<PolicyOptions>(json).unwrap_err();
            error.to_string()
        };
        assert!(
            message(r#"{"objective":"fame"}"#).starts_with(
                r#"unknown objective "fame": expected one of goodput, max-min, blend"#
            )
        );
        assert!(
            message(r#"{"effort":0}"#)
                .starts_with(r#"an effort must be a whole number from 1 to 1000, not "0""#)
        );
    }
}

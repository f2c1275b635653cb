//! What a caller may choose about how a policy decides.

use std::{fmt, str::FromStr};

use packhorse_cluster::{Percent, ProfileRow};

use crate::IgniterCoefficients;

/// Which measured quantity counts as what a replica takes of a device's multiprocessors: Usher's Creq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMetric {
    /// The highest achieved occupancy of any kernel: Usher's own.
    Achieved,
    /// The mean achieved occupancy, weighted by duration (Elvinger's thesis, section 5.3.1).
    Mean,
    /// The mean utilisation of the multiprocessors, weighted by duration (Elvinger's thesis, section 5.3.2).
    Sm,
}

/// A text that names no compute metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compute metric {given:?}: expected one of {}", ComputeMetric::ALL.map(ComputeMetric::as_str).join(", "))]
pub struct UnknownComputeMetric {
    given: String,
}

impl ComputeMetric {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Achieved, Self::Mean, Self::Sm];

    /// Its name in configuration and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Achieved => "achieved",
            Self::Mean => "mean",
            Self::Sm => "sm",
        }
    }

    /// The column of the profile contract that has it.
    pub const fn column(self) -> &'static str {
        match self {
            Self::Achieved => "achieved_occupancy_pct",
            Self::Mean => "mean_occupancy_pct",
            Self::Sm => "sm_utilization_pct",
        }
    }

    /// What a row has measured of it.
    pub(crate) fn of(self, row: &ProfileRow) -> Option<Percent> {
        match self {
            Self::Achieved => row.achieved_occupancy,
            Self::Mean => row.mean_occupancy,
            Self::Sm => row.sm_utilization,
        }
    }
}

impl FromStr for ComputeMetric {
    type Err = UnknownComputeMetric;

    fn from_str(text: &str) -> Result<Self, UnknownComputeMetric> {
        Self::ALL
            .into_iter()
            .find(|metric| metric.as_str() == text)
            .ok_or_else(|| UnknownComputeMetric {
                given: text.chars().take(64).collect(),
            })
    }
}

impl fmt::Display for ComputeMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a policy that optimises makes as large as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// The sum of the models' goodput, whoever has it.
    #[default]
    Goodput,
    /// The least served share of any model's rate first, then the sum.
    MaxMin,
    /// Half of each. The MILPs take it for `goodput`.
    Blend,
}

/// A text that names no objective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown objective {given:?}: expected one of {}", Objective::ALL.map(Objective::as_str).join(", "))]
pub struct UnknownObjective {
    given: String,
}

impl Objective {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Goodput, Self::MaxMin, Self::Blend];

    /// Its name in configuration and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::MaxMin => "max-min",
            Self::Blend => "blend",
        }
    }
}

impl FromStr for Objective {
    type Err = UnknownObjective;

    fn from_str(text: &str) -> Result<Self, UnknownObjective> {
        Self::ALL
            .into_iter()
            .find(|objective| objective.as_str() == text)
            .ok_or_else(|| UnknownObjective {
                given: text.chars().take(64).collect(),
            })
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whether a policy may confine replicas to a share of their device's multiprocessors where that pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeShares {
    /// Nobody is confined: nobody told the policy that the devices can do it, which takes MPS.
    #[default]
    Never,
    /// Where the estimate gains by it.
    Auto,
}

/// A text that says nothing of compute shares.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown choice of compute shares {given:?}: expected one of {}", ComputeShares::ALL.map(ComputeShares::as_str).join(", "))]
pub struct UnknownComputeShares {
    given: String,
}

impl ComputeShares {
    /// All choices.
    pub const ALL: [Self; 2] = [Self::Never, Self::Auto];

    /// Its name in configuration and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Auto => "auto",
        }
    }
}

impl FromStr for ComputeShares {
    type Err = UnknownComputeShares;

    fn from_str(text: &str) -> Result<Self, UnknownComputeShares> {
        Self::ALL
            .into_iter()
            .find(|choice| choice.as_str() == text)
            .ok_or_else(|| UnknownComputeShares {
                given: text.chars().take(64).collect(),
            })
    }
}

impl fmt::Display for ComputeShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How many times as much a policy that searches tries as it does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort(u32);

/// A number that is no effort.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an effort must be a whole number from 1 to {}, not {given:?}",
    Effort::MOST
)]
pub struct EffortError {
    given: String,
}

impl Effort {
    /// What a policy does by itself.
    pub const USUAL: Self = Self(1);
    /// The largest there is.
    pub const MOST: u32 = 1_000;

    /// `times` as much as usual.
    ///
    /// # Errors
    /// If that is not from 1 to [`Effort::MOST`].
    pub fn new(times: u32) -> Result<Self, EffortError> {
        if (1..=Self::MOST).contains(&times) {
            Ok(Self(times))
        } else {
            Err(EffortError {
                given: times.to_string(),
            })
        }
    }

    /// How many times as much as usual.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for Effort {
    fn default() -> Self {
        Self::USUAL
    }
}

impl FromStr for Effort {
    type Err = EffortError;

    fn from_str(text: &str) -> Result<Self, EffortError> {
        let wrong = || EffortError {
            given: text.chars().take(64).collect(),
        };
        Self::new(text.parse().map_err(|_| wrong())?)
    }
}

/// What a policy may be asked to choose otherwise than it would. A policy reads what concerns it and ignores the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyOptions {
    /// `usher`, `ao-milp` and their kin: what counts as compute, in place of the policy's own choice.
    pub compute_metric: Option<ComputeMetric>,
    /// `ao-milp`, `wsm-milp`, `goodput`: what is made as large as it can be.
    pub objective: Objective,
    /// `ao-milp`, `wsm-milp`: of all placements that are as good, one with small batches.
    pub prefer_small_batch: bool,
    /// `igniter`: what it knows of the models and devices; without it serves nothing.
    pub igniter_coefficients: Option<IgniterCoefficients>,
    /// `nexus`: a residual batch of `b` waits `(b - 1) / rate` for its last request, as the published code has it, in place of
    /// the paper's `b / rate`.
    pub nexus_published: bool,
    /// `goodput`: whether it may confine replicas to compute shares.
    pub compute_shares: ComputeShares,
    /// `goodput`: how long it searches.
    pub effort: Effort,
}

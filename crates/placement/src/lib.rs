//! Which model runs where: slow decisions, made by one policy out of a table.
//!
//! A [`Policy`] turns one immutable [`Problem`](packhorse_cluster::Problem) into one immutable
//! [`Plan`](packhorse_cluster::Plan) that breaks none of the rules of
//! [`Plan::violations`](packhorse_cluster::Plan::violations). Pure: no clock, no randomness, the same plan for the same problem.
//! [`POLICIES`] lists them; each has a file of its own.

mod budget;
mod candidates;
mod classes;
mod estimate;
mod exclusive;
mod explain;
mod first_fit;
mod fluid;
mod goodput;
mod gpulet;
mod gslice;
mod igniter;
mod milp;
mod nexus;
mod options;
mod policy;
mod predictor;
mod requirements;
mod shares;
mod smallest;
mod swaps;
mod usher;

pub use budget::Budget;
pub use explain::explain;
pub use goodput::estimate;
pub use igniter::{CoefficientsError, IgniterCoefficients};
pub use options::{
    ComputeMetric, ComputeShares, Effort, EffortError, Objective, PolicyOptions,
    UnknownComputeMetric, UnknownComputeShares, UnknownObjective,
};
pub use policy::{
    DEFAULT_POLICY, FALLBACK_POLICY, POLICIES, PlaceError, Policy, PolicyEntry, UnknownPolicy,
    policy,
};
pub use predictor::{PredictError, Predictor};
pub use smallest::{Cluster, SmallestError, smallest_cluster};
pub use swaps::swaps;

#[cfg(test)]
mod tests;

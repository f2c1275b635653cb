//! The placement policies, which decide which models run on which devices.
//!
//! A [`Policy`] turns one immutable [`Problem`](packhorse_cluster::Problem) into one immutable
//! [`Plan`](packhorse_cluster::Plan) without [violations](packhorse_cluster::Plan::violations). The crate is pure: it has no clock and
//! no randomness, and makes the same plan for the same problem. [`POLICIES`] lists the policies; each has a file of its own.

mod batch_step;
mod bound;
mod budget;
mod candidates;
mod claims;
mod device_classes;
mod devices_needed;
mod duty_cycle;
mod error;
mod estimate;
mod exclusive;
mod explain;
mod first_fit;
mod fluid;
mod forecast;
mod goodput;
mod gpulet;
mod gslice;
mod herd;
mod igniter;
pub mod inss;
mod milp;
mod min_replicas;
mod nexus;
mod planning_options;
mod policies;
mod policy;
mod policy_entry;
mod pool;
mod predictor;
mod requirements;
mod share_latency;
mod smallest_cluster;
mod tolerance;
mod usher;

pub use batch_step::batches_within_half_slo;
pub use bound::{Demand, goodput_bound};
pub use budget::Budget;
pub use devices_needed::devices_needed;
pub use error::PlaceError;
pub use explain::explain;
pub use goodput::estimate;
pub use igniter::coefficients::{CoefficientsError, IgniterCoefficients};
pub use planning_options::PlanningOptions;
pub use policies::{DEFAULT_POLICY, FALLBACK_POLICY, POLICIES, UnknownPolicy, policy};
pub use policy::Policy;
pub use policy_entry::PolicyEntry;
pub use predictor::{PredictError, Predictor};
pub use smallest_cluster::{SmallestCluster, SmallestClusterError, smallest_cluster};

#[cfg(test)]
mod tests;

//! Predictions of batch times by a policy's own model, for the plan of any policy.

use std::time::Duration;

use packhorse_cluster::{DeviceKind, ModelId, PlannedReplica, Problem, ProblemError};

use crate::PlanningOptions;

/// A model of the times of batches that share a device.
pub trait Predictor: Sync {
    /// Returns the time of a full batch of each replica beside its neighbours on the device, in the order of the replicas. Every
    /// replica must name a model and a device of the problem.
    fn latencies(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        replicas: &[PlannedReplica],
    ) -> Result<Vec<Duration>, PredictError>;
}

/// The reason why there is no prediction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PredictError {
    /// The problem contradicts itself.
    #[error("the placement problem is not valid")]
    Invalid(#[source] ProblemError),
    /// The policy has no model of batch times.
    #[error("{policy} has no model of latencies: expected one of {}", expected.join(", "))]
    NoPredictor {
        /// The policy.
        policy: &'static str,
        /// The policies that have one.
        expected: Vec<&'static str>,
    },
    /// A replica names a model or device that the problem does not have.
    #[error("replicas[{replica}] names a model or device that does not exist")]
    Dangling {
        /// The replica's index.
        replica: usize,
    },
    /// The predictor lacks data of a model.
    #[error("replicas[{replica}]: there are no {missing} for {model} on {kind}")]
    Unknown {
        /// The replica's index.
        replica: usize,
        /// The replica's model.
        model: ModelId,
        /// The kind of the replica's device.
        kind: DeviceKind,
        /// The missing data, as a plural noun.
        missing: &'static str,
    },
}

//! What a policy's own model says of the latencies of a plan, whoever made that.

use std::time::Duration;

use packhorse_cluster::{DeviceKind, ModelId, PlannedReplica, Problem, ProblemError};

use crate::{POLICIES, PolicyEntry, PolicyOptions};

/// A model of how long batches take that share a device.
pub trait Predictor: Sync {
    /// How long a full batch of each replica takes beside its neighbours on the device, in the order given. Every replica names a
    /// model and a device of the problem.
    fn latencies(
        &self,
        problem: &Problem,
        options: &PolicyOptions,
        replicas: &[PlannedReplica],
    ) -> Result<Vec<Duration>, PredictError>;
}

/// Why nothing is predicted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PredictError {
    /// The problem contradicts itself.
    #[error("this is no placement problem")]
    Invalid(#[source] ProblemError),
    /// The policy decides without one.
    #[error("{policy} has no model of latencies: expected one of {}", predictors().join(", "))]
    NoPredictor {
        /// The policy.
        policy: &'static str,
    },
    /// A replica names a model or device that the problem does not have.
    #[error("replicas[{replica}] names a model or device that does not exist")]
    Dangling {
        /// Its place in the list.
        replica: usize,
    },
    /// The predictor lacks what it needs to know of a model.
    #[error("replicas[{replica}]: there are no {missing} for {model} on {kind}")]
    Unknown {
        /// Its place in the list.
        replica: usize,
        /// Its model.
        model: ModelId,
        /// Its device's kind.
        kind: DeviceKind,
        /// What is missing, as a plural.
        missing: &'static str,
    },
}

impl PolicyEntry {
    /// How long a full batch of each replica takes beside its neighbours, by this policy's model, in the order given.
    ///
    /// # Errors
    /// If the policy has no such model or does not know enough for it, or a replica names what the problem does not have.
    pub fn predict(
        &self,
        problem: &Problem,
        options: &PolicyOptions,
        replicas: &[PlannedReplica],
    ) -> Result<Vec<Duration>, PredictError> {
        let predictor = self
            .predictor()
            .ok_or(PredictError::NoPredictor { policy: self.name })?;
        problem.validate().map_err(PredictError::Invalid)?;
        let dangling = |replica: &PlannedReplica| {
            replica.model.0 >= problem.models.len() || replica.device.0 >= problem.devices.len()
        };
        if let Some(replica) = replicas.iter().position(dangling) {
            return Err(PredictError::Dangling { replica });
        }
        predictor.latencies(problem, options, replicas)
    }
}

/// The policies that have a model of latencies.
fn predictors() -> Vec<&'static str> {
    let with = POLICIES
        .iter()
        .filter(|entry| entry.predictor().is_some())
        .map(|entry| entry.name);
    with.collect()
}

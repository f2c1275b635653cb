//! The interface of the policies.

use packhorse_cluster::{ModelForecast, Plan, PlannedReplica, Problem};

use crate::{Budget, PlaceError, PlanningOptions, Predictor};

/// A placement policy.
pub trait Policy: Sync {
    /// Makes a plan without violations for a valid problem ([`Problem::validate`]). The plan depends on the problem and the options
    /// alone. The budget determines only if there is a plan, and for a policy that searches (`goodput`) how long it searches. Models that cannot
    /// be served have no replicas, and their forecast has the reason.
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError>;

    /// Returns true if devices may have several replicas by the policy.
    fn shares_devices(&self) -> bool {
        true
    }

    /// Returns the policy's own model of batch times, if it has one.
    fn predictor(&self) -> Option<&dyn Predictor> {
        None
    }

    /// Returns the policy's own forecast of each model with any replicas, if it has one.
    fn forecasts(
        &self,
        _problem: &Problem,
        _replicas: &[PlannedReplica],
    ) -> Option<Vec<ModelForecast>> {
        None
    }
}

//! A placement with the replicas of rare and idle models, as it becomes a plan, and its value among others.

use std::collections::BTreeSet;

use packhorse_cluster::{ModelIndex, Objective, PlannedReplica};

use super::{
    idle_models::place_idle_models, rare_models::place_rare_models, score::Score,
    search_limits::usual_cells,
};
use crate::{
    candidates::Candidates,
    estimate::{EstimateInputs, ModelEstimate, PlacementEstimate},
};

/// A placement that is complete.
pub(super) struct CompletePlacement {
    pub(super) replicas: Vec<PlannedReplica>,
    /// The estimate of each model.
    pub(super) estimates: Vec<ModelEstimate>,
    /// The value of the objective function.
    pub(super) value: f64,
}

impl CompletePlacement {
    /// Completes a placement that was found, given with the estimate of each model.
    pub(super) fn new(
        inputs: &EstimateInputs<'_>,
        candidates: &Candidates<'_>,
        objective: Objective,
        (mut replicas, mut estimates): (Vec<PlannedReplica>, Vec<ModelEstimate>),
    ) -> Self {
        let problem = inputs.problem;
        place_rare_models(problem, candidates, &mut replicas, &mut estimates);
        place_idle_models(problem, candidates, &mut replicas);
        let placement = PlacementEstimate::from_replicas(inputs, &replicas);
        Self {
            value: score(inputs, objective).value(&placement),
            replicas,
            estimates,
        }
    }

    /// Returns the number of models with a replica.
    pub(super) fn placed_models(&self) -> usize {
        let replicas = self.replicas.iter();
        let models: BTreeSet<ModelIndex> = replicas.map(|replica| replica.model).collect();
        models.len()
    }
}

/// Returns the objective function by which complete placements are compared.
pub(super) fn score(inputs: &EstimateInputs<'_>, objective: Objective) -> Score {
    let devices = inputs.problem.devices.len();
    Score::new(inputs, objective).with_cells(usual_cells(devices))
}

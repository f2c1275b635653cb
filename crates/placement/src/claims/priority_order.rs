//! The order of a problem's models by priority, so that a policy which places one model after the other begins with the highest.

use std::mem;

use packhorse_cluster::{ModelIndex, Plan, PlannedReplica, Problem};

use crate::goodput;

/// The order of models by priority, those of one priority as they were.
pub(super) struct PriorityOrder {
    /// The index of each model in the problem, from the highest priority to the lowest.
    models: Vec<usize>,
    /// The place of each model of the problem in that order.
    places: Vec<usize>,
}

impl PriorityOrder {
    /// Returns the order of models that have this many higher priorities above theirs.
    pub(super) fn new(levels: &[usize]) -> Self {
        let mut models: Vec<usize> = (0..levels.len()).collect();
        models.sort_by_key(|model| levels[*model]);
        let mut places = vec![0; models.len()];
        for (place, model) in models.iter().enumerate() {
            places[*model] = place;
        }
        Self { models, places }
    }

    /// Has a policy plan the problem in this order, and returns the plan in the problem's own.
    pub(super) fn place<E>(
        &self,
        problem: &Problem,
        place: impl FnOnce(&Problem) -> Result<Plan, E>,
    ) -> Result<Plan, E> {
        if self.models.is_sorted() {
            return place(problem);
        }
        let mut ordered = problem.clone();
        let models = self.models.iter().map(|model| &problem.models[*model]);
        ordered.models = models.cloned().collect();
        renumber(&mut ordered.current, &self.places);
        let mut plan = place(&ordered)?;
        renumber(&mut plan.replicas, &self.models);
        goodput::sort(&mut plan.replicas);
        let mut forecasts: Vec<_> = mem::take(&mut plan.models).into_iter().map(Some).collect();
        let in_order = self
            .places
            .iter()
            .filter_map(|place| forecasts.get_mut(*place)?.take());
        plan.models = in_order.collect();
        Ok(plan)
    }
}

/// Gives the replicas' models these indices.
fn renumber(replicas: &mut [PlannedReplica], indices: &[usize]) {
    for replica in replicas {
        replica.model = ModelIndex(indices[replica.model.0]);
    }
}

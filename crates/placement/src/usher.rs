//! `usher` and `wao-usher`: models with complementary requirements form groups, and each group is placed greedily as a whole.
//!
//! A replica with batch size `b` requires Creq percent of a device's compute and Mreq percent of its memory, and a device gives at most
//! 100 % of each. The policy assumes that the replicas of a device do not slow each other. Creq becomes the compute share.
//!
//! 1. *Grouping* (paper 3.3.1, thesis 5.2.2). Two rounds of a minimum-weight maximum-cardinality matching of groups with the weight
//!    `|ΣCreq − ΣMreq|`, where each model counts with its mean over all profiled batch sizes, give groups of at most four models.
//! 2. *Configurations* (paper algorithm 1, thesis 5.2.1). For every model of a group: all pairs of a batch size within the SLO and a
//!    replication degree out of `c, 2c, … 6c` up to the number of devices, with `c = ceil(rate / throughput)` of the largest batch. A
//!    model with `c` above the number of devices is not served at all, even if devices are idle (thesis 5.4.2).
//! 3. *Placement* of a configuration (paper algorithm 2). Compute-heavy (`Creq ≥ 1.2 · Mreq`) and memory-heavy models alternate, each
//!    sorted by `Creq + Mreq`, largest first; neutral models come last. Each replica goes to the device of this group that then has the
//!    least left, else to such a device of another group, else to a new one, and never to a device with a replica of the same model. A
//!    replica that fits no device is left out. The goodput is `Σ min(rate, replicas · batch / latency)`, and the configuration with the
//!    most goodput is chosen.
//!
//! Creq is the highest achieved occupancy for `usher` (thesis 5.2.2) and the mean weighted by duration for `wao-usher` (thesis 5.3.1).
//!
//! Source: Shubha et al., "USHER: Holistic Interference Avoidance for Resource Optimized ML Inference", OSDI 2024, section 3.3, as
//! Elvinger's thesis "Towards resource and interference-aware scheduling of ML workloads" reads it, section 5.2.
//!
//! The search skips configurations that a relaxation ([`bound`]) shows to be no better than an earlier one, and those that end like an
//! earlier one. This changes no plan.
//!
//! Decisions that paper and thesis leave open:
//! - Groups with more models come first, then groups in the models' order.
//! - Among configurations with equal goodput the first in ascending order of (degree, batch size) wins, with the first model varying
//!   slowest.
//! - Among equal matchings the choice depends on the models' names only.
//! - The latency is batch / throughput, and a batch is feasible if its latency is within the SLO. Waiting is not modelled, as in the
//!   paper.
//! - Batch sizes are the profiled ones. A batch size without a measured metric or memory is skipped.
//! - Devices of several kinds: `c` is the number of replicas on the fastest kind, the order and heaviness of a model come from its mean
//!   over the kinds, and a new device is the cheapest that has room, then the first.
//! - Models without expected requests are placed last, with one replica each.
//! - Operator graph merging (paper 3.4) is not part of placement and is left out.

use packhorse_cluster::{
    ComputeMetric, ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond, Shortfall,
};

use crate::{Budget, PlaceError, PlanningOptions, Policy, fluid, requirements::Requirements};

mod bound;
mod group;
mod matching;
mod search;
#[cfg(test)]
mod tests;

/// The number of pairing rounds; each doubles the largest number of models in a group.
const ROUNDS: usize = 2;

/// An Usher policy.
pub(crate) struct Usher {
    /// The name of the policy.
    pub(crate) name: &'static str,
    /// The metric that counts as Creq unless the options choose another.
    pub(crate) metric: ComputeMetric,
}

pub(crate) const USHER: Usher = Usher {
    name: "usher",
    metric: ComputeMetric::Achieved,
};

pub(crate) const WAO_USHER: Usher = Usher {
    name: "wao-usher",
    metric: ComputeMetric::Mean,
};

impl Policy for Usher {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        self.place_with_search(search::search, problem, options, budget)
    }
}

impl Usher {
    /// Places the models with a search for the best configuration of a group.
    fn place_with_search(
        &self,
        search: group::Search,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        budget.spend((problem.devices.len() * problem.models.len()) as u64)?;
        let metric = options.policy.compute_metric.unwrap_or(self.metric);
        let requirements = Requirements::new(problem, metric);
        let (mut busy, mut idle) = (Vec::new(), Vec::new());
        let mut shortfalls: Vec<Option<Shortfall>> = vec![None; problem.models.len()];
        for (model, demanded) in problem.models() {
            match group::fewest_replicas(problem, &requirements, model) {
                Err(reason) => shortfalls[model.0] = Some(reason),
                Ok(_) if demanded.rate == RequestsPerSecond::ZERO => idle.push(vec![model]),
                Ok(_) => busy.push(model),
            }
        }
        let mut cluster = group::Cluster::new(problem, &requirements);
        let mut replicas: Vec<PlannedReplica> = Vec::new();
        for models in groups(&requirements, &busy).into_iter().chain(idle) {
            let members: Vec<group::Member> = models
                .iter()
                .map(|&model| group::Member::new(problem, &requirements, model))
                .collect();
            replicas.extend(cluster.place(&members, search, budget)?);
        }
        replicas.sort_by_key(|replica| (replica.model, replica.device));
        for (model, _) in problem.models() {
            if !replicas.iter().any(|replica| replica.model == model) {
                shortfalls[model.0].get_or_insert(Shortfall::NoRoomLeft);
            }
        }
        Ok(fluid::plan_with_forecasts(
            self.name, problem, replicas, shortfalls,
        ))
    }
}

/// Returns the models in groups of up to four, larger groups first.
fn groups(requirements: &Requirements<'_>, models: &[ModelIndex]) -> Vec<Vec<ModelIndex>> {
    let mut groups: Vec<Vec<ModelIndex>> = models.iter().map(|&model| vec![model]).collect();
    for _ in 0..ROUNDS {
        let unmatched: Vec<matching::Group> = groups
            .iter()
            .map(|group| matching::Group {
                imbalance: group
                    .iter()
                    .map(|&model| requirements.imbalance(model))
                    .sum(),
                name: requirements.joined_names(group),
            })
            .collect();
        for (i, j) in matching::balanced_pairs(&unmatched) {
            let joined = std::mem::take(&mut groups[j]);
            groups[i].extend(joined);
        }
        groups.retain(|group| !group.is_empty());
        for group in &mut groups {
            group.sort_unstable();
        }
    }
    groups.sort_by_key(|group| (std::cmp::Reverse(group.len()), group[0]));
    groups
}

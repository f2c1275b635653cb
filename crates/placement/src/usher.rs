//! `usher` and `wao-usher`: models are grouped by complementary needs, and each group is placed as a whole, greedily.
//!
//! A replica with batch `b` takes Creq percent of a device's compute and Mreq percent of its memory, and no device gives more
//! than it has: replicas on one device are taken not to slow each other, and get Creq as their compute share.
//!
//! 1. *Grouping* (paper 3.3.1, thesis 5.2.2). Two rounds of a minimum-weight maximum-cardinality matching of groups by
//!    `|ΣCreq − ΣMreq|`, each model with its mean over all profiled batch sizes: groups of at most four.
//! 2. *Configurations* (paper algorithm 1, thesis 5.2.1). For every model of a group all pairs of a batch size within the SLO and
//!    a replication degree out of `c, 2c, … 6c` up to the number of devices, with `c = ceil(rate / throughput)` of the largest
//!    batch. A model with `c` above the number of devices is not served at all, though devices may be idle (thesis 5.4.2).
//! 3. *Placement* of a configuration (paper algorithm 2). Compute-heavy (`Creq ≥ 1.2 · Mreq`) and memory-heavy models alternate,
//!    each sorted by `Creq + Mreq`, largest first; neutral ones come last. Replica by replica, never two of a model on a device:
//!    the device of this group that is left with least, else that of other groups, else a new one. What finds no device is left
//!    out. Goodput is `Σ min(rate, replicas · batch / latency)`; the configuration with the most is taken.
//!
//! `usher` takes the highest achieved occupancy as Creq (thesis 5.2.2), `wao-usher` the mean weighted by duration (thesis 5.3.1).
//!
//! Source: Shubha et al., "USHER: Holistic Interference Avoidance for Resource Optimized ML Inference", OSDI 2024, section 3.3, as
//! Elvinger's thesis "Towards resource and interference-aware scheduling of ML workloads" reads it, section 5.2.
//!
//! Configurations that cannot be better than one before them by a relaxation ([`bound`]), or that end like one before them, are not
//! placed: no plan changes by it.
//!
//! What both leave open, and what we do:
//! - Order of the groups: those with more models first, then in the models' order.
//! - Several configurations with the most goodput: the first in ascending (degree, batch size), the first model slowest.
//! - Equal matchings: one that depends on the models' names alone.
//! - Latency is batch / throughput; a batch is feasible if that is within the SLO. Waiting is not modelled (nor is it there).
//! - Batch sizes are the profiled ones. One whose metric or memory was not measured is passed over.
//! - Devices of several kinds: `c` counts those of the fastest kind; a model's order and heaviness come from its mean over the
//!   kinds; a new device is the cheapest that can host, then the first.
//! - Models that expect no requests are placed last, one replica each.
//! - Operator graph merging (paper 3.4) is not part of placement and left out.

use packhorse_cluster::{ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond};

use crate::{
    Budget, ComputeMetric, PlaceError, Policy, PolicyOptions, fluid, requirements::Requirements,
};

mod bound;
mod group;
mod matching;
mod search;
#[cfg(test)]
mod tests;

/// The most models in a group: two rounds of pairing.
const ROUNDS: usize = 2;

/// Usher with its own idea of what counts as compute.
pub(crate) struct Usher {
    pub(crate) name: &'static str,
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
        options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        self.place_by(search::search, problem, options, budget)
    }
}

impl Usher {
    fn place_by(
        &self,
        search: group::Search,
        problem: &Problem,
        options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        budget.spend((problem.devices.len() * problem.models.len()) as u64)?;
        let metric = options.compute_metric.unwrap_or(self.metric);
        let requirements = Requirements::new(problem, metric);
        let (mut busy, mut idle) = (Vec::new(), Vec::new());
        let mut shortfalls: Vec<Option<String>> = vec![None; problem.models.len()];
        for (model, demanded) in problem.models() {
            match fewest_replicas(problem, &requirements, model) {
                Err(why) => shortfalls[model.0] = Some(why),
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
                shortfalls[model.0]
                    .get_or_insert_with(|| "no device has room left for it".to_owned());
            }
        }
        Ok(fluid::plan(self.name, problem, replicas, shortfalls))
    }
}

/// `c`: how many replicas with the largest batch on the fastest devices carry the rate, at least one.
///
/// # Errors
/// Why the model cannot be served.
fn fewest_replicas(
    problem: &Problem,
    requirements: &Requirements<'_>,
    model: ModelIndex,
) -> Result<usize, String> {
    if let Some(why) = requirements.missing(model) {
        return Err(why.to_owned());
    }
    let classes = 0..requirements.classes.len();
    let of_largest = classes.filter_map(|class| requirements.of(model, class).last());
    let throughput = of_largest
        .map(|requirement| requirement.throughput)
        .fold(0.0, f64::max);
    let needed = (problem.models[model.0].rate.get() / throughput - 1e-9).ceil();
    let devices = problem.devices.len();
    if needed > devices as f64 {
        return Err(format!(
            "it needs {needed} replicas or a multiple, and there are {devices} devices"
        ));
    }
    Ok((needed as usize).max(1))
}

/// The models in groups of up to four, larger groups first.
fn groups(requirements: &Requirements<'_>, models: &[ModelIndex]) -> Vec<Vec<ModelIndex>> {
    let mut groups: Vec<Vec<ModelIndex>> = models.iter().map(|&model| vec![model]).collect();
    for _ in 0..ROUNDS {
        let described: Vec<matching::Group> = groups
            .iter()
            .map(|group| matching::Group {
                imbalance: group
                    .iter()
                    .map(|&model| requirements.imbalance(model))
                    .sum(),
                name: requirements.names(group),
            })
            .collect();
        for (i, j) in matching::balanced_pairs(&described) {
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

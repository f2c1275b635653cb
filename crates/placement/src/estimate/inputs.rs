//! The inputs of the estimate that are the same for all placements of a problem.

use std::collections::BTreeMap;

use packhorse_cluster::{ComputeShare, DemandedModel, DeviceKind, Problem, Profile};
use packhorse_contention::{BySaturation, ColocatedReplica, Sensitivity, SlowdownModel};

use super::{batch_costs::BatchCosts, demand::Demand};

/// The standard errors that are added to a learned sensitivity: an upper confidence bound.
const CONFIDENCE: f64 = 1.0;

/// A problem with the batch costs, sensitivities and demands that its profiles and observations give.
#[derive(Debug)]
pub(crate) struct EstimateInputs<'a> {
    pub(crate) problem: &'a Problem,
    /// The number of each device's kind.
    kind_of: Vec<usize>,
    /// Batch costs by model, then kind; `None` where the model cannot run.
    costs: Vec<Vec<Option<BatchCosts>>>,
    /// Relative slowdown of the subject per 100 % of the neighbour's utilisation beyond `Interference`: by kind, then subject, then
    /// neighbour. Empty without observations.
    sensitivities: Vec<Vec<BySaturation<f64>>>,
    /// The demand of each model.
    pub(crate) demands: Vec<Demand>,
    /// The number of equal replicas that run now: by device, model, batch size and bits of the share.
    running: BTreeMap<(usize, usize, u32, u64), usize>,
}

fn bits(share: Option<ComputeShare>) -> u64 {
    share.map_or(0, |share| share.get().to_bits())
}

impl<'a> EstimateInputs<'a> {
    pub(crate) fn new(problem: &'a Problem) -> Self {
        let mut numbers = BTreeMap::new();
        let mut kinds: Vec<&DeviceKind> = Vec::new();
        let mut kind_of = Vec::with_capacity(problem.devices.len());
        for device in &problem.devices {
            let number = *numbers.entry(&device.kind).or_insert_with(|| {
                kinds.push(&device.kind);
                kinds.len() - 1
            });
            kind_of.push(number);
        }
        let learned = SlowdownModel::from_observations(&problem.observations, &problem.profiles);
        let mut sensitivities = Vec::new();
        if !problem.observations.is_empty() {
            sensitivities.extend(
                kinds
                    .iter()
                    .map(|kind| sensitivities_on(&learned, kind, problem)),
            );
        }
        let costs_by_kind = |model| {
            let costs = |kind: &&DeviceKind| batch_costs(problem, &learned, model, kind);
            kinds.iter().map(costs).collect()
        };
        let demand = |model| Demand::new(model, problem);
        let mut running = BTreeMap::new();
        for replica in &problem.current {
            let share = bits(replica.compute_share);
            let key = (replica.device.0, replica.model.0, replica.batch_size, share);
            *running.entry(key).or_default() += 1;
        }
        Self {
            costs: problem.models.iter().map(costs_by_kind).collect(),
            demands: problem.models.iter().map(demand).collect(),
            sensitivities,
            running,
            kind_of,
            problem,
        }
    }

    /// Returns the costs of a model's batches on a device; `None` if it cannot run there.
    pub(crate) fn batch_costs(&self, model: usize, device: usize) -> Option<&BatchCosts> {
        self.costs[model][self.kind_of[device]].as_ref()
    }

    /// Returns the relative slowdown of `subject` per 100 % of the utilisation of `neighbour` beyond `Interference`; at least 0.
    pub(crate) fn sensitivity(
        &self,
        device: usize,
        subject: usize,
        neighbour: usize,
    ) -> BySaturation<f64> {
        let pairs = self.sensitivities.get(self.kind_of[device]);
        pairs.map_or_else(BySaturation::default, |pairs| {
            pairs[subject * self.demands.len() + neighbour]
        })
    }

    /// Returns the number of replicas with this device, model, batch size and share that run now.
    pub(crate) fn running_replicas(
        &self,
        device: usize,
        model: usize,
        batch: u32,
        share: Option<ComputeShare>,
    ) -> usize {
        let key = (device, model, batch, bits(share));
        self.running.get(&key).copied().unwrap_or_default()
    }

    /// Returns true if any replica runs now.
    pub(crate) fn has_running_replicas(&self) -> bool {
        !self.running.is_empty()
    }
}

/// Returns the sensitivity of every model to every model on a kind of device.
fn sensitivities_on(
    learned: &SlowdownModel,
    kind: &DeviceKind,
    problem: &Problem,
) -> Vec<BySaturation<f64>> {
    let ids = || problem.models.iter().map(|model| &model.id);
    let upper_bound = |found: Sensitivity| (found.mean + CONFIDENCE * found.std_error).max(0.0);
    let pair = |subject, neighbour| {
        learned
            .sensitivity(kind, subject, neighbour)
            .map(upper_bound)
    };
    ids()
        .flat_map(|subject| ids().map(move |neighbour| pair(subject, neighbour)))
        .collect()
}

/// Returns the costs of the model's batches on a kind of device, scaled to the times that were observed without neighbours.
fn batch_costs(
    problem: &Problem,
    learned: &SlowdownModel,
    model: &DemandedModel,
    kind: &DeviceKind,
) -> Option<BatchCosts> {
    let profile = problem.profiles.get(&model.id, kind)?;
    let largest = largest_batch(profile, model)?;
    let mut scale = model.latency_scale;
    if !problem.observations.is_empty() {
        let replica = ColocatedReplica::new(&model.id, Some(profile), largest, None, 1.0);
        scale *= learned.predict(kind, &replica, &[]).mean;
    }
    Some(BatchCosts::new(
        profile,
        largest,
        scale,
        problem.conditions.mps_exponent,
    ))
}

/// Returns the largest batch within the SLO, up to the largest profiled batch and the model's limit.
fn largest_batch(profile: &Profile, model: &DemandedModel) -> Option<u32> {
    let sizes = profile.whole();
    let bound = sizes
        .last()?
        .batch_size
        .max(1)
        .min(model.max_batch_size.max(1));
    (1..=bound)
        .rev()
        .find(|rows| profile.latency(*rows) <= model.slo)
}

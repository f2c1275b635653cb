//! Replicas beyond a model's rate: on as many devices as the model asks for ([`DemandedModel::min_replicas`]), so that it answers when one fails.
//!
//! They are added to the plan of any policy, where memory is left, and cost others nothing but that memory. A model's own devices are kept; else a
//! device of a node without a replica of the model comes first, then the one with the fewest replicas, then the one with the most memory left. Devices whose
//! replicas take turns, or have one model each by the policy, get none; where replicas have shares of the multiprocessors, the rest of the shares must suffice.
//!
//! Members of pools are at home on as many devices as there are, and need none of this.

use std::{cmp::Reverse, collections::BTreeSet};

use packhorse_cluster::{
    ByteCount, ComputeShare, DemandedModel, DeviceIndex, ModelIndex, NodeName, Percent,
    PlannedReplica, Problem,
};

use crate::{candidates::Candidates, goodput::kept_or_smallest};

/// Adds the replicas that models ask for and do not have, those of models with a high priority first. With `alone` a device takes one replica.
/// Returns true if any is added.
pub(crate) fn add(problem: &Problem, alone: bool, replicas: &mut Vec<PlannedReplica>) -> bool {
    let wanting = |model: &DemandedModel| model.min_replicas.get() > 1;
    if !problem.models.iter().any(wanting) {
        return false;
    }
    let candidates = Candidates::new(problem);
    let mut devices: Vec<Load> = problem.devices().map(|_| Load::default()).collect();
    for replica in replicas.iter() {
        devices[replica.device.0].add(problem, replica);
    }
    let before = replicas.len();
    let mut order: Vec<ModelIndex> = problem.models().map(|(model, _)| model).collect();
    order.sort_by_key(|model| (Reverse(problem.models[model.0].priority), *model));
    for model in order {
        let of_model = replicas.iter().filter(|replica| replica.model == model);
        let mut homes: BTreeSet<DeviceIndex> = of_model.map(|replica| replica.device).collect();
        if homes.is_empty() {
            // The policy has no place for it, or none yet.
            continue;
        }
        let wanted = problem.models[model.0].min_replicas.get();
        while homes.len() < wanted {
            let fitting = problem
                .devices()
                .filter(|(device, _)| !homes.contains(device))
                .filter(|(device, _)| !alone || devices[device.0].replicas == 0);
            let nodes: BTreeSet<&NodeName> = homes
                .iter()
                .map(|device| &problem.devices[device.0].node)
                .collect();
            let best = fitting.filter_map(|(device, at)| {
                let load = &devices[device.0];
                let replica = load.further(problem, &candidates, model, device)?;
                let runs = is_current(problem, model, device);
                let left = at.memory.saturating_sub(load.memory);
                let order = (
                    runs,
                    !nodes.contains(&at.node),
                    Reverse(load.replicas),
                    left,
                );
                Some((order, Reverse(device), replica))
            });
            let Some((.., replica)) = best.max_by_key(|(order, device, _)| (*order, *device))
            else {
                break;
            };
            homes.insert(replica.device);
            devices[replica.device.0].add(problem, &replica);
            replicas.push(replica);
        }
    }
    replicas.sort_by_key(|replica| (replica.model, replica.device));
    replicas.len() > before
}

/// The replicas of a device.
#[derive(Clone, Debug, Default)]
struct Load {
    memory: ByteCount,
    replicas: usize,
    /// The sum of the compute shares, in percent; none if no replica has one.
    shares: Option<f64>,
    has_turns: bool,
}

impl Load {
    fn add(&mut self, problem: &Problem, replica: &PlannedReplica) {
        let profile = problem.profile(replica.model, replica.device);
        let memory = profile.and_then(|profile| profile.memory(replica.batch_size));
        self.memory = self.memory.saturating_add(memory.unwrap_or_default());
        self.replicas += 1;
        self.has_turns |= replica.duty_cycle.is_some();
        if let Some(share) = replica.compute_share {
            self.shares = Some(self.shares.unwrap_or_default() + share.get());
        }
    }

    /// Returns a further replica for a device with these: with the batch size that runs there now if it has room, else with the smallest.
    fn further(
        &self,
        problem: &Problem,
        candidates: &Candidates<'_>,
        model: ModelIndex,
        device: DeviceIndex,
    ) -> Option<PlannedReplica> {
        if self.has_turns {
            return None;
        }
        let room = problem.devices[device.0].memory.saturating_sub(self.memory);
        let profile = problem.profile(model, device)?;
        let rest = self.shares.map(|sum| (100.0 - sum).max(0.0));
        let suffices = |batch_size: u32| {
            let needed = profile.sm_utilization(batch_size);
            let needed = needed.map_or(100.0, Percent::get);
            rest.is_none_or(|rest| rest >= needed)
        };
        let place = (model, device);
        let (batch_size, ..) = kept_or_smallest(problem, candidates, place, room, suffices)?;
        let compute_share = match rest {
            None => None,
            Some(rest) => Some(ComputeShare::new(rest).ok()?),
        };
        Some(PlannedReplica {
            compute_share,
            ..PlannedReplica::new(model, device, batch_size)
        })
    }
}

fn is_current(problem: &Problem, model: ModelIndex, device: DeviceIndex) -> bool {
    let mut current = problem.current.iter();
    current.any(|replica| (replica.model, replica.device) == (model, device))
}

#[cfg(test)]
mod tests;

//! From decisions to a plan.

use std::collections::BTreeMap;

use packhorse_cluster::{
    ByteCount, ComputeShare, DeviceIndex, ModelIndex, Plan, PlannedReplica, Problem, Shortfall,
};

use super::NAME;
use crate::{PlanningOptions, batch_step::decide_batches};

/// The most replicas of a device: each has at least 1 %.
const MOST_REPLICAS: usize = 100;

/// A decision on a part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The model.
    pub model: ModelIndex,
    /// Its device.
    pub device: DeviceIndex,
    /// The level of its compute share, from 0.
    pub level: usize,
}

/// Returns the plan of decisions: shares in proportion to the levels, which start at 0 and count as one more, in whole percents and such that
/// they fill the device; batch sizes by BDA. Parts of a model on the same device become one replica. What a device has not the memory
/// for, in the order of the decisions, is left out.
pub fn plan(problem: &Problem, options: &PlanningOptions, placed: &[Placed]) -> Plan {
    let mut weights: BTreeMap<(ModelIndex, DeviceIndex), usize> = BTreeMap::new();
    let mut rooms: Vec<(ByteCount, usize, usize)> = problem
        .devices
        .iter()
        .map(|device| (device.memory, 0, 0))
        .collect();
    for decision in placed {
        let Placed {
            model,
            device,
            level,
        } = *decision;
        let (free, replicas, sum) = &mut rooms[device.0];
        let known = weights.contains_key(&(model, device));
        if !known {
            let whole = problem.devices[device.0].memory;
            let profile = problem.profile(model, device);
            let memory = profile.and_then(|profile| profile.memory(1));
            let memory = memory.unwrap_or(whole);
            if memory > *free || *replicas == MOST_REPLICAS {
                continue;
            }
            *free = free.saturating_sub(memory);
            *replicas += 1;
        }
        *sum += level + 1;
        *weights.entry((model, device)).or_default() += level + 1;
    }
    let replica = |((model, device), weight): ((ModelIndex, DeviceIndex), usize)| {
        let (_, replicas, sum) = rooms[device.0];
        // Each has 1 %, and its part of the others.
        let percent = 1 + (MOST_REPLICAS - replicas) * weight / sum;
        let share = ComputeShare::new(percent as f64).expect("between 1 and 100 percent");
        PlannedReplica {
            model,
            device,
            batch_size: 1,
            // A whole device needs no limit.
            compute_share: (replicas > 1).then_some(share),
            duty_cycle: None,
            memory: None,
            backbone: None,
            pool: None,
        }
    };
    let mut plan = Plan::empty(NAME, problem, &Shortfall::NoDeviceWithMemoryLeft);
    plan.replicas = weights.into_iter().map(replica).collect();
    decide_batches(problem, options, &mut plan);
    plan
}

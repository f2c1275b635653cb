//! `exclusive`: each replica has a device of its own.
//!
//! The policy serves the models in the problem's order, models without expected requests last: first come, first served. A model gets
//! at least one device, and more until full batches carry its rate. The batch size is the largest within the SLO and the device's
//! memory. If all devices are equal, a model gets ceil(rate · latency / batch) of them. A model prefers devices on which it runs
//! already, then devices on which nothing runs. The predicted goodput is min(rate, sum of batch / latency).
//!
//! Source: the usual baseline of papers on GPU sharing.

use std::collections::BTreeSet;

use packhorse_cluster::{
    DeviceIndex, ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond, Shortfall,
};

use crate::{
    Budget, PlaceError, PlanningOptions, Policy,
    candidates::{Candidate, Candidates},
    forecast::forecast,
    tolerance::CARRIED,
};

pub(crate) const NAME: &str = "exclusive";

pub(crate) struct Exclusive;

impl Policy for Exclusive {
    fn shares_devices(&self) -> bool {
        false
    }

    fn place(
        &self,
        problem: &Problem,
        _options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let candidates = Candidates::new(problem);
        let current: BTreeSet<(DeviceIndex, ModelIndex)> = problem
            .current
            .iter()
            .map(|replica| (replica.device, replica.model))
            .collect();
        let mut free: BTreeSet<DeviceIndex> = problem.devices().map(|(device, _)| device).collect();
        let mut plan = Plan::empty(NAME, problem, &Shortfall::NoDeviceLeft);
        let mut order: Vec<ModelIndex> = problem.models().map(|(model, _)| model).collect();
        order.sort_by_key(|model| problem.models[model.0].rate == RequestsPerSecond::ZERO);
        for model in order {
            budget.spend(free.len() as u64)?;
            // The devices in order of preference: where the model runs, where nothing runs, others; equals by index.
            let mut choices: Vec<(DeviceIndex, Candidate)> = free
                .iter()
                .filter_map(|&device| {
                    Some((
                        device,
                        largest_in_memory(problem, candidates.on_device(model, device), device)?,
                    ))
                })
                .collect();
            choices.sort_by_key(|&(device, _)| {
                let in_use = current
                    .range((device, ModelIndex(0))..=(device, ModelIndex(usize::MAX)))
                    .next()
                    .is_some();
                (!current.contains(&(device, model)), in_use)
            });
            let rate = problem.models[model.0].rate;
            let chosen = enough_for(&choices, rate.get());
            for &(device, candidate) in chosen {
                free.remove(&device);
                plan.replicas
                    .push(PlannedReplica::new(model, device, candidate.batch_size));
            }
            let throughputs = chosen.iter().map(|(_, candidate)| candidate.throughput);
            plan.models[model.0] = forecast(
                rate,
                chosen.len(),
                throughputs.sum(),
                || {
                    let infeasible = candidates.infeasible(model);
                    infeasible.unwrap_or(Shortfall::NoDeviceWithMemoryLeft)
                },
                |goodput| Shortfall::NoDeviceLeftForMore {
                    replicas: chosen.len(),
                    goodput,
                    rate,
                },
            );
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        Ok(plan)
    }
}

/// Returns the largest batch size that fits the device's memory. A replica without measured memory fits.
fn largest_in_memory(
    problem: &Problem,
    candidates: &[Candidate],
    device: DeviceIndex,
) -> Option<Candidate> {
    let memory = problem.devices[device.0].memory;
    candidates
        .iter()
        .rfind(|candidate| candidate.memory.is_none_or(|needed| needed <= memory))
        .copied()
}

/// Returns the first choices that together carry the rate, at least one.
fn enough_for(choices: &[(DeviceIndex, Candidate)], rate: f64) -> &[(DeviceIndex, Candidate)] {
    let mut carried = 0.0;
    let mut count = 0;
    while count < choices.len() && (count == 0 || carried < rate * CARRIED) {
        carried += choices[count].1.throughput;
        count += 1;
    }
    &choices[..count]
}

//! `exclusive`: a replica has its device to itself.
//!
//! Models are served in the problem's order, those that expect no requests after all others: first come, first served. Each
//! takes devices until their full batches, of the largest size that is within the SLO and the device's memory, carry its rate;
//! at least one. Where devices are equal that is ceil(rate · latency / batch) of them. It prefers devices that it is on already,
//! then those that nobody is on. Predicted goodput is min(rate, sum of batch / latency).
//!
//! Source: the baseline that papers on sharing GPUs compare with.

use std::collections::BTreeSet;

use packhorse_cluster::{
    DeviceIndex, ModelForecast, ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond,
};

use crate::{
    Budget, PlaceError, Policy, PolicyOptions,
    candidates::{Candidate, Candidates},
};

pub(crate) const NAME: &str = "exclusive";

/// Rates are quotients of rounded times: a rate is carried if this much of it is.
const CARRIED: f64 = 1.0 - 1e-9;

pub(crate) struct Exclusive;

impl Policy for Exclusive {
    fn place(
        &self,
        problem: &Problem,
        _options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let candidates = Candidates::new(problem);
        let current: BTreeSet<(DeviceIndex, ModelIndex)> = problem
            .current
            .iter()
            .map(|replica| (replica.device, replica.model))
            .collect();
        let mut free: BTreeSet<DeviceIndex> = problem.devices().map(|(device, _)| device).collect();
        let mut plan = Plan::empty(NAME, problem, "no device is left");
        let mut order: Vec<ModelIndex> = problem.models().map(|(model, _)| model).collect();
        order.sort_by_key(|model| problem.models[model.0].rate == RequestsPerSecond::ZERO);
        for model in order {
            budget.spend(free.len() as u64)?;
            // One device after the other: the model's own, then nobody's, then those of others; each by index.
            let mut choices: Vec<(DeviceIndex, Candidate)> = free
                .iter()
                .filter_map(|&device| {
                    Some((
                        device,
                        largest(problem, candidates.of(model, device), device)?,
                    ))
                })
                .collect();
            choices.sort_by_key(|&(device, _)| {
                let taken = current
                    .range((device, ModelIndex(0))..=(device, ModelIndex(usize::MAX)))
                    .next()
                    .is_some();
                (!current.contains(&(device, model)), taken)
            });
            let taken = take(&choices, problem.models[model.0].rate.get());
            for &(device, candidate) in taken {
                free.remove(&device);
                plan.replicas.push(PlannedReplica {
                    model,
                    device,
                    batch_size: candidate.batch_size,
                    compute_share: None,
                    duty_cycle: None,
                });
            }
            plan.models[model.0] = forecast(problem, &candidates, model, taken);
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        Ok(plan)
    }
}

/// The largest batch size that the device has memory for. A replica whose memory was never measured may have the whole device.
fn largest(problem: &Problem, candidates: &[Candidate], device: DeviceIndex) -> Option<Candidate> {
    let memory = problem.devices[device.0].memory;
    candidates
        .iter()
        .rfind(|candidate| candidate.memory.is_none_or(|needed| needed <= memory))
        .copied()
}

/// As many of the choices as the rate needs, at least one.
fn take(choices: &[(DeviceIndex, Candidate)], rate: f64) -> &[(DeviceIndex, Candidate)] {
    let mut carried = 0.0;
    let mut taken = 0;
    while taken < choices.len() && (taken == 0 || carried < rate * CARRIED) {
        carried += choices[taken].1.throughput;
        taken += 1;
    }
    &choices[..taken]
}

fn forecast(
    problem: &Problem,
    candidates: &Candidates<'_>,
    model: ModelIndex,
    taken: &[(DeviceIndex, Candidate)],
) -> ModelForecast {
    let rate = problem.models[model.0].rate;
    let carried: f64 = taken
        .iter()
        .map(|(_, candidate)| candidate.throughput)
        .sum();
    let shortfall = if taken.is_empty() {
        Some(
            candidates
                .unfit(model)
                .unwrap_or_else(|| "no device with enough memory is left".to_owned()),
        )
    } else if carried < rate.get() * CARRIED {
        let replicas = taken.len();
        Some(format!(
            "{replicas} replicas carry {carried:.1} of {rate} requests/s, and no device is left for more"
        ))
    } else {
        None
    };
    let goodput = RequestsPerSecond::new(carried.min(rate.get())).expect("between zero and a rate");
    ModelForecast {
        goodput,
        latency: None,
        shortfall,
    }
}

//! Plans of a policy for changed problems, until the budget ends.

use std::collections::BTreeMap;

use packhorse_cluster::{Change, Device, DeviceKind, Plan, Problem, Remedy, known_kind};

use super::served::{SERVED, pooled_fractions, served_fractions};
use crate::{
    Budget, PlanningOptions, PolicyEntry,
    estimate::{EstimateInputs, PlacementEstimate},
};

/// A policy with the budget for its plans.
pub(super) struct Replanner<'a, 'b> {
    policy: &'a PolicyEntry,
    options: &'a PlanningOptions,
    budget: &'a mut Budget<'b>,
    complete: bool,
    /// The models that are served with so many further devices of a kind: the same change for all of them.
    with_devices: BTreeMap<(DeviceKind, u32), Vec<Option<f64>>>,
}

impl<'a, 'b> Replanner<'a, 'b> {
    pub(super) fn new(
        policy: &'a PolicyEntry,
        options: &'a PlanningOptions,
        budget: &'a mut Budget<'b>,
    ) -> Self {
        Self {
            policy,
            options,
            budget,
            complete: true,
            with_devices: BTreeMap::new(),
        }
    }

    /// Returns true if the budget sufficed for every plan so far.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the policy's plan; `None` from the first plan on for which the budget does not suffice.
    pub(super) fn plan(&mut self, problem: &Problem) -> Option<Plan> {
        // The step bounds policies that spend none themselves.
        if !self.complete || self.budget.spend(1).is_err() {
            self.complete = false;
            return None;
        }
        let plan = self
            .policy
            .place_with(problem, self.options, self.budget)
            .ok();
        // A search that the budget ended returns a plan, but not its final one.
        self.complete = plan.is_some() && !self.budget.has_ended();
        plan.filter(|_| self.complete)
    }

    /// Returns the fraction of each model's requests in time with the policy's plan for this problem.
    pub(super) fn served_fractions(&mut self, problem: &Problem) -> Option<Vec<f64>> {
        let plan = self.plan(problem)?;
        Some(fractions_of(problem, &plan))
    }

    /// Returns the change as a remedy if the model is served with it, by the estimate and by the plan's own forecast.
    pub(super) fn try_change(
        &mut self,
        problem: &Problem,
        model: usize,
        change: Change,
    ) -> Option<Remedy> {
        let served = if let Change::AddDevices { kind, count } = &change {
            let devices = (kind.clone(), *count);
            if !self.with_devices.contains_key(&devices) {
                let served = self.served_with(&changed_problem(problem, model, &change))?;
                self.with_devices.insert(devices.clone(), served);
            }
            self.with_devices[&devices][model]
        } else {
            self.served_with(&changed_problem(problem, model, &change))?[model]
        };
        served.map(|served_fraction| Remedy {
            change,
            served_fraction,
        })
    }

    /// Returns the fractions of the requests in time of those models that are served with the policy's plan for a problem.
    fn served_with(&mut self, problem: &Problem) -> Option<Vec<Option<f64>>> {
        let plan = self.plan(problem)?;
        let fractions = fractions_of(problem, &plan);
        let models = problem.models.iter().zip(&plan.models).zip(fractions);
        let served = models.map(|((demanded, forecast), fraction)| {
            let is_forecast = forecast.goodput.get() >= SERVED * demanded.rate.get();
            (is_forecast && fraction >= SERVED).then_some(fraction)
        });
        Some(served.collect())
    }
}

/// Returns the fraction of each model's requests in time with a plan.
fn fractions_of(problem: &Problem, plan: &Plan) -> Vec<f64> {
    pooled_fractions(problem, plan).unwrap_or_else(|| {
        let inputs = EstimateInputs::new(problem);
        served_fractions(&PlacementEstimate::from_replicas(&inputs, &plan.replicas))
    })
}

/// Returns the problem with a change for a model. Devices of an unknown kind are not added.
fn changed_problem(problem: &Problem, model: usize, change: &Change) -> Problem {
    let mut problem = problem.clone();
    let demanded = &mut problem.models[model];
    match change {
        Change::AddDevices { kind, count } => {
            if let Some(device) = further_device(&problem, kind) {
                let added = usize::try_from(*count).expect("a small number");
                let devices = problem.devices.len() + added;
                problem.devices.resize(devices, device);
            }
        }
        Change::Slo { slo } => demanded.slo = *slo,
        Change::MaxBatchSize { max_batch_size } => demanded.max_batch_size = *max_batch_size,
        Change::Rate { rate } => demanded.rate = *rate,
        Change::Priority { priority } => demanded.priority = *priority,
    }
    problem
}

/// Returns a further device of a kind: like the first one of the problem, else like the data sheet. `None` if the kind is unknown.
pub(super) fn further_device(problem: &Problem, kind: &DeviceKind) -> Option<Device> {
    if let Some(device) = problem.devices.iter().find(|device| device.kind == *kind) {
        return Some(device.clone());
    }
    let (memory, multiprocessors) = known_kind(kind)?;
    Some(Device {
        kind: kind.clone(),
        memory,
        multiprocessors: Some(multiprocessors),
        node: "new".parse().expect("letters are a name"),
        cost_per_hour: None,
        pool: problem.devices.first().and_then(|device| device.pool),
    })
}

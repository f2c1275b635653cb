//! A policy that is asked again and again, until the budget ends.

use packhorse_cluster::{Change, Device, DeviceKind, Plan, Problem, Remedy, known_kind};

use super::{SERVED, fractions};
use crate::{
    Budget, PolicyEntry, PolicyOptions,
    estimate::{Outlook, World},
};

pub(super) struct Asker<'a, 'b> {
    policy: &'a PolicyEntry,
    options: &'a PolicyOptions,
    budget: &'a mut Budget<'b>,
    complete: bool,
}

impl<'a, 'b> Asker<'a, 'b> {
    pub(super) fn new(
        policy: &'a PolicyEntry,
        options: &'a PolicyOptions,
        budget: &'a mut Budget<'b>,
    ) -> Self {
        Self {
            policy,
            options,
            budget,
            complete: true,
        }
    }

    /// Whether every question so far was answered.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// What the policy plans; none from the first question on that it could not think through.
    pub(super) fn plan(&mut self, problem: &Problem) -> Option<Plan> {
        // A policy that takes no steps shall end too.
        if !self.complete || self.budget.spend(1).is_err() {
            self.complete = false;
            return None;
        }
        let plan = self
            .policy
            .place_with(problem, self.options, self.budget)
            .ok();
        // A search that was cut short has a plan, but not the one that it has with more time.
        self.complete = plan.is_some() && !self.budget.has_ended();
        plan.filter(|_| self.complete)
    }

    /// By model: the part of its requests that is in time if the policy plans for this problem.
    pub(super) fn fractions(&mut self, problem: &Problem) -> Option<Vec<f64>> {
        let plan = self.plan(problem)?;
        let world = World::new(problem);
        Some(fractions(&Outlook::of(&world, &plan.replicas)))
    }

    /// The change as a remedy for the model, if it is one.
    pub(super) fn try_change(
        &mut self,
        problem: &Problem,
        model: usize,
        change: Change,
    ) -> Option<Remedy> {
        let served_fraction = self.fractions(&changed(problem, model, &change))?[model];
        (served_fraction >= SERVED).then_some(Remedy {
            change,
            served_fraction,
        })
    }
}

/// The problem with a change for a model. Devices of a kind of which nothing is known are not added.
fn changed(problem: &Problem, model: usize, change: &Change) -> Problem {
    let mut problem = problem.clone();
    let demanded = &mut problem.models[model];
    match change {
        Change::AddDevices { kind, count } => {
            if let Some(device) = device(&problem, kind) {
                let more = usize::try_from(*count).expect("a small number");
                let all = problem.devices.len() + more;
                problem.devices.resize(all, device);
            }
        }
        Change::Slo { slo } => demanded.slo = *slo,
        Change::MaxBatchSize { max_batch_size } => demanded.max_batch_size = *max_batch_size,
        Change::Rate { rate } => demanded.rate = *rate,
    }
    problem
}

/// A further device of a kind: like the first of those there are, else like the data sheet.
pub(super) fn device(problem: &Problem, kind: &DeviceKind) -> Option<Device> {
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
    })
}

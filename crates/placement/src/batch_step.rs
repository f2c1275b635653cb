//! The batch step `bda`: the batch sizes of a plan, chosen once more by bisection.
//!
//! The placement and the compute shares are those of the policy. For each replica the largest batch size is found by bisection with
//! which the device has the memory and a request is in time:
//!
//! ```text
//! T(b) = max(exec, (b − 1) / λ) + t(b) ≤ SLO
//! ```
//!
//! `λ` is the replica's part of its model's rate, `t(b)` the time of a batch under its share by the latency model of
//! [`packhorse_cluster::PolicyOptions::latency_model`], and `exec` the time until the batch that the device computes now is done. That is
//! equation 2 of InSS for the first request of a batch ([`WaitingRequest`]), with one batch before it.
//!
//! Source: InSS, section 5.3, algorithm 1 (BDA).
//!
//! Deviations:
//! - The printed algorithm sets its flag where a batch is *too large*, and gives up where a batch is in time but too slow for the rate,
//!   although a larger one, which may be in time as well, carries more. Here it goes on to larger batches. A replica whose largest batch
//!   in time does not carry its rate keeps it: on a fixed cluster that is best effort.
//! - `exec` is the worst case, a whole batch of the replica itself; with a duty cycle also one of each other replica that takes turns.
//! - The limit is the model's largest batch or the largest profiled one, not 32. If no batch is in time the policy's own stays.
//! - A model with several replicas has its rate divided in proportion to what they carry; the paper's models have one replica.
//! - Replicas without a compute share have the whole device.
//!
//! The forecast is that of replicas which carry full batches all the time, unless the policy has an estimate for any replicas.

use packhorse_cluster::{
    ByteCount, ComputeShare, DeviceIndex, Plan, PlannedReplica, Problem, Shortfall,
};
use packhorse_contention::WaitingRequest;

use crate::{
    PlanningOptions, candidates::largest_batch, forecast::forecast, share_latency::ShareLatency,
};

/// Chooses the batch sizes of a plan, and forecasts the goodput of full batches.
pub(crate) fn decide_batches(problem: &Problem, options: &PlanningOptions, plan: &mut Plan) {
    decide_by(problem, options, plan, Rule::InTime);
}

/// Gives each replica of a plan the largest batch within half of its model's SLO, and forecasts the goodput of full batches.
///
/// It is the batch decision of the GPUlet that the paper of InSS compares BDA with (section 6.1), which waits for the batch for the other
/// half. The published GPUlet has another one ([`crate::POLICIES`], `gpulet`).
pub fn batches_within_half_slo(problem: &Problem, options: &PlanningOptions, plan: &mut Plan) {
    decide_by(problem, options, plan, Rule::HalfSlo);
}

/// The limit of a batch beside the memory.
#[derive(Clone, Copy)]
enum Rule {
    /// A request is in time, its wait included.
    InTime,
    /// The batch takes half of the SLO.
    HalfSlo,
}

fn decide_by(problem: &Problem, options: &PlanningOptions, plan: &mut Plan, rule: Rule) {
    let mut step = Step::new(problem, options, plan);
    for index in 0..plan.replicas.len() {
        step.decide(index, rule);
    }
    let carried: Vec<f64> = (0..plan.replicas.len())
        .map(|index| step.carried(index))
        .collect();
    plan.replicas = step.replicas;
    for (model, demanded) in problem.models() {
        let of_model = plan.replicas.iter().zip(&carried);
        let of_model = of_model.filter(|(replica, _)| replica.model == model);
        let (replicas, carried) =
            of_model.fold((0, 0.0), |(count, sum), (_, more)| (count + 1, sum + more));
        if replicas == 0 {
            continue;
        }
        let rate = demanded.rate;
        let unplaced = || unreachable!("the model has replicas");
        let partly = |goodput| Shortfall::Throughput {
            replicas,
            goodput,
            rate,
        };
        plan.models[model.0] = forecast(rate, replicas, carried, unplaced, partly);
    }
}

/// The batch step in progress.
struct Step<'a> {
    problem: &'a Problem,
    replicas: Vec<PlannedReplica>,
    /// The latencies of each replica.
    latencies: Vec<ShareLatency<'a>>,
    /// Each replica's part of its model's rate, in requests per second.
    rates: Vec<f64>,
}

impl<'a> Step<'a> {
    fn new(problem: &'a Problem, options: &PlanningOptions, plan: &Plan) -> Self {
        let latencies = |replica: &PlannedReplica| {
            let model = &problem.models[replica.model.0].id;
            let kind = &problem.devices[replica.device.0].kind;
            let latencies = ShareLatency::of_problem(options, problem, model, kind);
            latencies.expect("a plan without violations has profiles")
        };
        let mut step = Self {
            problem,
            latencies: plan.replicas.iter().map(latencies).collect(),
            replicas: plan.replicas.clone(),
            rates: Vec::new(),
        };
        let carried: Vec<f64> = (0..step.replicas.len())
            .map(|index| step.carried(index))
            .collect();
        let mut sums = vec![0.0; problem.models.len()];
        for (replica, carried) in step.replicas.iter().zip(&carried) {
            sums[replica.model.0] += carried;
        }
        let rate = |(replica, carried): (&PlannedReplica, &f64)| {
            let model = replica.model.0;
            problem.models[model].rate.get() * carried / sums[model]
        };
        step.rates = step.replicas.iter().zip(&carried).map(rate).collect();
        step
    }

    /// Returns the indices of the other replicas of a replica's device.
    fn neighbours(&self, index: usize) -> impl Iterator<Item = usize> {
        let device = self.replicas[index].device;
        let others = self.replicas.iter().enumerate();
        others
            .filter(move |(other, replica)| *other != index && replica.device == device)
            .map(|(other, _)| other)
    }

    /// Returns true if the two replicas of a device never compute at the same time.
    fn take_turns(&self, a: usize, b: usize) -> bool {
        self.replicas[a].duty_cycle.is_some() && self.replicas[b].duty_cycle.is_some()
    }

    fn percent(&self, index: usize) -> f64 {
        let share = self.replicas[index].compute_share;
        share.unwrap_or(ComputeShare::WHOLE).get()
    }

    /// Returns the time of a batch of a replica beside the neighbours that compute at the same time, in seconds.
    fn seconds(&self, index: usize, batch: u32) -> f64 {
        let beside = self.neighbours(index);
        let beside = beside.filter(|&other| !self.take_turns(index, other));
        let beside = beside.map(|other| {
            let batch = self.replicas[other].batch_size;
            (&self.latencies[other], batch, self.percent(other))
        });
        let beside: Vec<_> = beside.collect();
        let seconds = self.latencies[index].seconds_beside(batch, self.percent(index), &beside);
        // A regression may fall below a measurement: nothing is planned to be faster than measured alone.
        seconds.max(self.measured(index, batch))
    }

    fn measured(&self, index: usize, batch: u32) -> f64 {
        let replica = &self.replicas[index];
        let profile = self.problem.profile(replica.model, replica.device);
        profile.map_or(0.0, |profile| profile.latency(batch).as_secs_f64())
    }

    /// Returns the time of a batch of each other replica with which a replica takes turns, in seconds.
    fn turns_of_others(&self, index: usize) -> f64 {
        let others = self.neighbours(index);
        let in_turn = others.filter(|&other| self.take_turns(index, other));
        in_turn
            .map(|other| self.seconds(other, self.replicas[other].batch_size))
            .sum()
    }

    /// Returns the requests per second of full batches of a replica.
    fn carried(&self, index: usize) -> f64 {
        let batch = self.replicas[index].batch_size;
        f64::from(batch) / (self.seconds(index, batch) + self.turns_of_others(index))
    }

    /// Gives a replica the largest batch size that is feasible; none if no size is.
    fn decide(&mut self, index: usize, rule: Rule) {
        let replica = &self.replicas[index];
        let demanded = &self.problem.models[replica.model.0];
        let profile = self.problem.profile(replica.model, replica.device);
        let profile = profile.expect("a plan without violations has profiles");
        let memory = |replica: &PlannedReplica, batch| {
            let profile = self.problem.profile(replica.model, replica.device);
            profile
                .and_then(|profile| profile.memory(batch))
                .unwrap_or_default()
        };
        let used: ByteCount = self
            .neighbours(index)
            .map(|other| memory(&self.replicas[other], self.replicas[other].batch_size))
            .sum();
        let DeviceIndex(device) = replica.device;
        let free = self.problem.devices[device].memory.saturating_sub(used);
        let turns = self.turns_of_others(index);
        let feasible = |batch: u32| {
            let seconds = self.seconds(index, batch);
            let request = WaitingRequest {
                queued: 1,
                batch,
                rate: self.rates[index],
                busy: seconds + turns,
                batch_seconds: seconds,
            };
            let is_timely = match rule {
                Rule::InTime => request.latency() <= demanded.slo,
                Rule::HalfSlo => 2.0 * seconds <= demanded.slo.as_secs_f64(),
            };
            memory(replica, batch) <= free && profile.latency(batch) <= demanded.slo && is_timely
        };
        if let Some(batch) = largest(largest_batch(profile, demanded), feasible) {
            self.replicas[index].batch_size = batch;
        }
    }
}

/// Returns the largest of `1..=most` that bisection finds feasible, where larger numbers are no more feasible than smaller ones.
fn largest(most: u32, feasible: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut least, mut most, mut found) = (1, most, None);
    while least <= most {
        let middle = least.midpoint(most);
        if feasible(middle) {
            found = Some(middle);
            least = middle + 1;
        } else {
            most = middle - 1;
        }
    }
    found
}

#[cfg(test)]
mod tests;

//! `round-robin`: devices are dealt to the models in turn, like cards, until the rate of each is carried.
//!
//! A device goes to the next model that still lacks throughput and fits the device's memory, with the model's largest batch within the
//! SLO. No two models share a device. The predicted goodput is min(rate, sum of batch / latency).
//!
//! Source: none; it is the example of the book. Unlike `exclusive` it lets no model take all devices before the next one has any.

use packhorse_cluster::{ModelIndex, Plan, PlannedReplica, Problem, Shortfall};

use crate::{
    Budget, PlaceError, PlanningOptions, Policy, candidates::Candidates, forecast::forecast,
    tolerance::CARRIED,
};

pub(crate) const NAME: &str = "round-robin";

pub(crate) struct RoundRobin;

impl Policy for RoundRobin {
    fn place(
        &self,
        problem: &Problem,
        _options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let candidates = Candidates::new(problem);
        let mut plan = Plan::empty(NAME, problem, &Shortfall::NoDeviceLeft);
        let count = problem.models.len();
        let mut carried = vec![0.0; count];
        let mut turn = 0;
        for (device, properties) in problem.devices() {
            budget.spend(count as u64)?;
            let mut in_turn = (turn..turn + count).map(|index| ModelIndex(index % count));
            let dealt = in_turn.find_map(|model| {
                let (rate, has) = (problem.models[model.0].rate.get(), carried[model.0]);
                let fits = |memory| memory <= properties.memory;
                let mut sizes = candidates.on_device(model, device).iter();
                let largest = sizes.rfind(|size| size.memory.is_none_or(fits))?;
                (has == 0.0 || has < rate * CARRIED).then_some((model, largest))
            });
            if let Some((model, size)) = dealt {
                let replica = PlannedReplica::new(model, device, size.batch_size);
                plan.replicas.push(replica);
                carried[model.0] += size.throughput;
                turn = model.0 + 1;
            }
        }
        for (model, demanded) in problem.models() {
            let of_model = |replica: &&PlannedReplica| replica.model == model;
            let replicas = plan.replicas.iter().filter(of_model).count();
            let (rate, carried) = (demanded.rate, carried[model.0]);
            let unplaced = candidates.infeasible(model);
            let unplaced = || unplaced.unwrap_or(Shortfall::NoDeviceLeft);
            let short = |goodput| Shortfall::NoDeviceLeftForMore {
                replicas,
                goodput,
                rate,
            };
            plan.models[model.0] = forecast(rate, replicas, carried, unplaced, short);
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        Ok(plan)
    }
}

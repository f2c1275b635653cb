//! The most promising small changes of a plan, for a caller that can judge plans better than an estimate.
//!
//! A neighbour of a plan differs from it in one replica: it is added, removed, moved to another device, or has the next larger or smaller
//! batch size. Neighbours are ordered by the objective function of `goodput`, and the best of them are returned.
//!
//! Source: Li et al., "AlpaServe: Statistical Multiplexing with Model Parallelism for Deep Learning Serving", OSDI 2023, section 4.2 (its
//! search with a simulator in the loop).
//!
//! Deviations: the paper adds one replica at a time to an empty cluster, that of the model with the most unserved requests; here a plan is
//! improved, and an estimate chooses what is simulated. Its model parallelism is left out, because replicas here are on one device.

use packhorse_cluster::{
    DeviceIndex, ModelIndex, Objective, Plan, PlannedReplica, Problem, Shortfall,
};

use crate::{candidates::Candidates, goodput};

/// Returns the best neighbours of the replicas of a plan, at most `count`, the best first. None of them has violations.
pub fn neighbours(
    problem: &Problem,
    replicas: &[PlannedReplica],
    objective: Objective,
    count: usize,
) -> Vec<Vec<PlannedReplica>> {
    let candidates = Candidates::new(problem);
    let mut changed: Vec<Vec<PlannedReplica>> = Vec::new();
    for (index, replica) in replicas.iter().enumerate() {
        let others = || {
            let mut others = replicas.to_vec();
            others.remove(index);
            others
        };
        changed.push(others());
        let sizes = candidates.on_device(replica.model, replica.device);
        let place = sizes.partition_point(|candidate| candidate.batch_size < replica.batch_size);
        let larger = sizes[place..]
            .iter()
            .find(|candidate| candidate.batch_size > replica.batch_size);
        let smaller = sizes[..place].last();
        for candidate in smaller.into_iter().chain(larger) {
            let mut plan = replicas.to_vec();
            plan[index].batch_size = candidate.batch_size;
            changed.push(plan);
        }
        for (device, _) in problem.devices() {
            if device != replica.device && replica.duty_cycle.is_none() {
                let mut plan = others();
                plan.push(PlannedReplica {
                    device,
                    ..replica.clone()
                });
                changed.push(plan);
            }
        }
    }
    for (device, _) in problem.devices() {
        for (model, _) in problem.models() {
            changed.extend(with_another(&candidates, replicas, model, device));
        }
    }
    for plan in &mut changed {
        goodput::sort(plan);
        for replica in plan {
            replica.memory = problem
                .profile(replica.model, replica.device)
                .and_then(|profile| profile.memory(replica.batch_size));
        }
    }
    changed.retain(|replicas| is_valid(problem, replicas));
    let mut valued: Vec<(f64, Vec<PlannedReplica>)> = goodput::values(problem, objective, changed);
    valued.sort_by(|a, b| b.0.total_cmp(&a.0));
    valued.dedup_by(|a, b| a.1 == b.1);
    valued.truncate(count);
    valued.into_iter().map(|(_, replicas)| replicas).collect()
}

/// Returns the plans with one more replica of a model on a device, one for each batch size.
fn with_another(
    candidates: &Candidates<'_>,
    replicas: &[PlannedReplica],
    model: ModelIndex,
    device: DeviceIndex,
) -> Vec<Vec<PlannedReplica>> {
    let takes_turns = replicas
        .iter()
        .any(|replica| replica.device == device && replica.duty_cycle.is_some());
    if takes_turns {
        return Vec::new();
    }
    let sizes = candidates.on_device(model, device).iter();
    let plan = sizes.map(|candidate| {
        let mut plan = replicas.to_vec();
        plan.push(PlannedReplica::new(model, device, candidate.batch_size));
        plan
    });
    plan.collect()
}

fn is_valid(problem: &Problem, replicas: &[PlannedReplica]) -> bool {
    let mut plan = Plan::empty(goodput::NAME, problem, &Shortfall::NoReplicaPays);
    plan.replicas = replicas.to_vec();
    plan.violations(problem).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Budget, policy,
        tests::{device, model, properties},
    };
    use proptest::prelude::*;

    #[test]
    fn the_best_neighbour_adds_what_is_missing() {
        let rows = format!(
            "{}\na,k,8,,20,,400,,,50\nb,k,8,,20,,400,,,50\n",
            packhorse_cluster::ProfileTable::CSV_HEADER
        );
        let problem = Problem {
            devices: vec![device("k", 1_000)],
            models: vec![model("a", 100.0, 200), model("b", 100.0, 200)],
            profiles: packhorse_cluster::ProfileTable::from_csv(&rows).unwrap(),
            ..Problem::default()
        };
        let only_a = [PlannedReplica::new(ModelIndex(0), DeviceIndex(0), 8)];
        let best = neighbours(&problem, &only_a, Objective::Goodput, 3);
        let models: Vec<usize> = best[0].iter().map(|replica| replica.model.0).collect();
        assert_eq!(models, [0, 1]);
        // Another one of `a`, or none of it; a third replica exceeds the memory.
        assert_eq!(best.len(), 3);
        assert!(best.iter().all(|plan| plan.len() <= 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn neighbours_break_no_rule_and_differ_in_one_replica(problem in properties::problem()) {
            let plan = policy("goodput").unwrap().place(&problem, &mut Budget::unlimited()).unwrap();
            let found = neighbours(&problem, &plan.replicas, Objective::Goodput, 10);
            prop_assert!(found.len() <= 10);
            for other in &found {
                prop_assert!(is_valid(&problem, other));
                let same = other.iter().filter(|replica| plan.replicas.contains(replica)).count();
                prop_assert!(same + 1 >= other.len().min(plan.replicas.len()), "{other:?} of {plan:?}");
                prop_assert!(other.len().abs_diff(plan.replicas.len()) <= 1);
                prop_assert!(*other != plan.replicas);
            }
        }
    }
}

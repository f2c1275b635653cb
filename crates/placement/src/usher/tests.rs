//! The branch-and-bound search against an exhaustive one.

use proptest::prelude::*;

use super::{
    group::{BestPlacement, Cluster, Member, MemberChoice, PlacedReplica, placement_order},
    *,
};
use crate::{
    tests::properties::{many_devices, problem},
    tolerance::GOODPUT_ROUNDING,
};

/// Tries every configuration with every replica on every device.
fn exhaustive(
    cluster: &Cluster,
    members: &[Member],
    budget: &mut Budget<'_>,
) -> Result<Option<BestPlacement>, PlaceError> {
    budget.spend(1)?;
    let mut best = (f64::NEG_INFINITY, None);
    let mut chosen = Vec::new();
    try_all(cluster, members, &mut chosen, &mut best);
    Ok(best.1)
}

fn try_all(
    cluster: &Cluster,
    members: &[Member],
    chosen: &mut Vec<MemberChoice>,
    best: &mut (f64, Option<BestPlacement>),
) {
    if let Some(member) = members.get(chosen.len()) {
        for choice in &member.choices {
            chosen.push(*choice);
            try_all(cluster, members, chosen, best);
            chosen.pop();
        }
        return;
    }
    let mut placement = BestPlacement {
        rooms: cluster.rooms.clone(),
        placed: Vec::new(),
    };
    let placed = placement_order(members, chosen).map(|member| {
        let choice = chosen[member];
        let replicas = (0..choice.replicas).map_while(|_| {
            let required = |device: usize| {
                members[member].batches[choice.batch].requirements[cluster.class_of[device]]
            };
            let ranked = placement
                .rooms
                .iter()
                .enumerate()
                .filter_map(|(device, room)| {
                    let cost = cluster.cost[cluster.class_of[device]];
                    Some((room.rank(member, required(device)?, cost)?, device))
                });
            let (_, device) = ranked.min_by(|a, b| a.partial_cmp(b).unwrap())?;
            let required = required(device).unwrap();
            placement.rooms[device] = placement.rooms[device].with_replica(member, required);
            placement.placed.push(PlacedReplica {
                member,
                device,
                batch: choice.batch,
            });
            Some(required.throughput)
        });
        replicas
            .fold(0.0, |sum, throughput| sum + throughput)
            .min(members[member].rate)
    });
    let goodput = placed.fold(0.0, |sum, goodput| sum + goodput);
    if goodput > best.0 + GOODPUT_ROUNDING {
        *best = (goodput, Some(placement));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_search_finds_what_trying_everything_finds(
        problem in prop_oneof![problem(), many_devices()],
    ) {
        for usher in [USHER, WAO_USHER] {
            let options = PlanningOptions::default();
            let plain = usher.place_with_search(exhaustive, &problem, &options, &mut Budget::unlimited());
            let plan = usher.place(&problem, &options, &mut Budget::unlimited());
            prop_assert_eq!(plan, plain);
        }
    }
}

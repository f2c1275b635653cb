//! The search that leaves things out against one that does not.

use proptest::prelude::*;

use super::{
    group::{Best, Choice, Cluster, Member, Placed, order},
    *,
};
use crate::tests::properties::{many_devices, problem};

/// Every configuration, every replica, every device.
fn all(
    cluster: &Cluster,
    members: &[Member],
    budget: &mut Budget<'_>,
) -> Result<Option<Best>, PlaceError> {
    budget.spend(1)?;
    let mut best = (f64::NEG_INFINITY, None);
    let mut chosen = Vec::new();
    all_from(cluster, members, &mut chosen, &mut best);
    Ok(best.1)
}

fn all_from(
    cluster: &Cluster,
    members: &[Member],
    chosen: &mut Vec<Choice>,
    best: &mut (f64, Option<Best>),
) {
    if let Some(member) = members.get(chosen.len()) {
        for choice in &member.choices {
            chosen.push(*choice);
            all_from(cluster, members, chosen, best);
            chosen.pop();
        }
        return;
    }
    let mut placement = Best {
        rooms: cluster.rooms.clone(),
        placed: Vec::new(),
    };
    let placed = order(members, chosen).map(|member| {
        let choice = chosen[member];
        let replicas = (0..choice.replicas).map_while(|_| {
            let need = |device: usize| {
                members[member].batches[choice.batch].requirements[cluster.class_of[device]]
            };
            let ranked = placement
                .rooms
                .iter()
                .enumerate()
                .filter_map(|(device, room)| {
                    let cost = cluster.cost[cluster.class_of[device]];
                    Some((room.rank(member, need(device)?, cost)?, device))
                });
            let (_, device) = ranked.min_by(|a, b| a.partial_cmp(b).unwrap())?;
            let need = need(device).unwrap();
            placement.rooms[device] = placement.rooms[device].with(member, need);
            placement.placed.push(Placed {
                member,
                device,
                batch: choice.batch,
            });
            Some(need.throughput)
        });
        replicas
            .fold(0.0, |sum, throughput| sum + throughput)
            .min(members[member].rate)
    });
    let goodput = placed.fold(0.0, |sum, goodput| sum + goodput);
    if goodput > best.0 + group::ROUNDING {
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
            let options = PolicyOptions::default();
            let plain = usher.place_by(all, &problem, &options, &mut Budget::unlimited());
            let plan = usher.place(&problem, &options, &mut Budget::unlimited());
            prop_assert_eq!(plan, plain);
        }
    }
}

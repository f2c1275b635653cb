//! The branch-and-bound search for the best configuration of a group, which treats equal devices as one.

use std::{collections::BTreeMap, ops::Range};

use super::{
    bound::{BatchRoom, FreeResources, GoodputBound},
    group::{
        BestPlacement, Cluster, DeviceOwner, DeviceRoom, Member, MemberChoice, PlacedReplica,
        placement_order,
    },
};
use crate::{Budget, PlaceError, requirements::Requirement, tolerance::GOODPUT_ROUNDING};

/// Tries all configurations in ascending order, except those that cannot be better than the best earlier one.
pub(super) fn search(
    cluster: &Cluster,
    members: &[Member],
    budget: &mut Budget<'_>,
) -> Result<Option<BestPlacement>, PlaceError> {
    let batch_rooms: Vec<Vec<BatchRoom>> = members
        .iter()
        .map(|member| {
            let batches = member.batches.iter();
            batches.map(|batch| cluster.room_for(batch)).collect()
        })
        .collect();
    let (devices, initial) = group_equal_devices(cluster);
    let mut search = BranchAndBound {
        members,
        free_resources: cluster.free_resources(),
        batch_rooms,
        member_bounds: Vec::new(),
        cluster,
        devices,
        initial,
        remaining: Vec::new(),
        placed: Vec::new(),
        chosen: Vec::new(),
        best: None,
    };
    search.member_bounds = (0..members.len())
        .map(|member| {
            let choices = members[member].choices.iter();
            let bounds = choices.map(|choice| search.choice_bound(member, *choice));
            bounds.fold(GoodputBound::ZERO, GoodputBound::max)
        })
        .collect();
    search.branch(&mut Vec::new(), budget)?;
    let best = search.best.take();
    Ok(best.map(|best| search.expand(best)))
}

/// Devices of one class with the same room, owner and members.
#[derive(Clone)]
struct EqualDevices {
    class: usize,
    room: DeviceRoom,
    /// The range in [`BranchAndBound::devices`].
    devices: Range<usize>,
}

/// Equal replicas of a member, one on each device of a range.
#[derive(Clone)]
struct EqualReplicas {
    member: usize,
    /// The range in [`BranchAndBound::devices`].
    devices: Range<usize>,
    batch: usize,
}

/// The placement of a configuration.
struct Placement {
    goodput: f64,
    /// The devices with the room that remains on them.
    remaining: Vec<EqualDevices>,
    placed: Vec<EqualReplicas>,
}

/// Returns the devices ordered by their state, and the sets of equal devices as ranges of them.
fn group_equal_devices(cluster: &Cluster) -> (Vec<usize>, Vec<EqualDevices>) {
    let mut by_state: BTreeMap<(usize, DeviceOwner, u64, u64), Vec<usize>> = BTreeMap::new();
    for (device, (room, class)) in cluster.rooms.iter().zip(&cluster.class_of).enumerate() {
        let state = (
            *class,
            room.owner,
            room.compute.to_bits(),
            room.memory.to_bits(),
        );
        by_state.entry(state).or_default().push(device);
    }
    let (mut devices, mut sets) = (Vec::new(), Vec::new());
    for ((class, ..), equal) in by_state {
        let start = devices.len();
        sets.push(EqualDevices {
            class,
            room: cluster.rooms[equal[0]],
            devices: start..start + equal.len(),
        });
        devices.extend(equal);
    }
    (devices, sets)
}

/// The state of the search.
struct BranchAndBound<'a> {
    members: &'a [Member],
    cluster: &'a Cluster,
    /// The room before the group is placed, by member, then batch size.
    batch_rooms: Vec<Vec<BatchRoom>>,
    /// The bound of each member over all its choices.
    member_bounds: Vec<GoodputBound>,
    /// The free resources before the group is placed.
    free_resources: FreeResources,
    /// The indices of the devices, ordered by the sets in `initial`.
    devices: Vec<usize>,
    /// The sets of equal devices before the group is placed.
    initial: Vec<EqualDevices>,
    /// The sets of equal devices with the replicas of the current configuration.
    remaining: Vec<EqualDevices>,
    /// The replicas of the current configuration.
    placed: Vec<EqualReplicas>,
    /// The current configuration: the choices of the first members.
    chosen: Vec<MemberChoice>,
    /// The best placement so far.
    best: Option<Placement>,
}

impl BranchAndBound<'_> {
    /// Tries the choices of the next member. `bounds` contains the bounds of the choices made so far.
    fn branch(
        &mut self,
        bounds: &mut Vec<GoodputBound>,
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        let next = self.chosen.len();
        if next == self.members.len() {
            return self.try_configuration(budget);
        }
        let rest = next + 1..self.members.len();
        let mut tried = vec![None; self.members[next].batches.len()];
        for number in 0..self.members[next].choices.len() {
            let choice = self.members[next].choices[number];
            let room = self.batch_rooms[next][choice.batch].devices;
            // All degrees above the number of devices with room give the same placement: only the first of them is tried.
            if tried[choice.batch].is_some_and(|replicas| replicas >= room) {
                continue;
            }
            tried[choice.batch] = Some(choice.replicas);
            bounds.push(self.choice_bound(next, choice));
            let rest = rest.clone().map(|member| self.member_bounds[member]);
            let all = bounds.iter().copied().chain(rest);
            if self.is_better(self.free_resources.goodput_bound(&all)) {
                self.chosen.push(choice);
                self.branch(bounds, budget)?;
                self.chosen.pop();
            }
            bounds.pop();
        }
        Ok(())
    }

    /// Returns an upper bound of a member's goodput with a choice.
    fn choice_bound(&self, member: usize, choice: MemberChoice) -> GoodputBound {
        let room = &self.batch_rooms[member][choice.batch];
        let replicas = choice.replicas.min(room.devices) as f64;
        let member = &self.members[member];
        let throughput = member.batches[choice.batch].best_throughput();
        room.goodput_bound((replicas * throughput).min(member.rate), throughput)
    }

    /// Returns true if a goodput is above that of the best placement so far.
    fn is_better(&self, goodput: f64) -> bool {
        self.best
            .as_ref()
            .is_none_or(|best| goodput > best.goodput + GOODPUT_ROUNDING)
    }

    /// Places the current configuration, and keeps the placement if it is the best so far.
    fn try_configuration(&mut self, budget: &mut Budget<'_>) -> Result<(), PlaceError> {
        budget.spend(self.initial.len() as u64)?;
        self.remaining.clone_from(&self.initial);
        self.placed.clear();
        let mut goodput = 0.0;
        for member in placement_order(self.members, &self.chosen) {
            goodput += self.place_member(member);
        }
        if self.is_better(goodput) {
            self.best = Some(Placement {
                goodput,
                remaining: self.remaining.clone(),
                placed: self.placed.clone(),
            });
        }
        Ok(())
    }

    /// Places the replicas of a member while there is room, and returns the member's goodput.
    fn place_member(&mut self, member: usize) -> f64 {
        let MemberChoice { replicas, batch } = self.chosen[member];
        let mut carried = 0.0;
        let mut unplaced = replicas;
        while unplaced > 0 {
            let Some((set, required, most)) = self.best_set(member, batch) else {
                break;
            };
            let devices = self.split_off(set, unplaced.min(most), |room| {
                room.with_replica(member, required)
            });
            for _ in devices.clone() {
                carried += required.throughput;
            }
            unplaced -= devices.len();
            self.placed.push(EqualReplicas {
                member,
                devices,
                batch,
            });
        }
        carried.min(self.members[member].rate)
    }

    /// Returns the set whose first device is the best for a replica, the requirement there, and the number of the set's devices that
    /// rank before all other devices.
    fn best_set(&self, member: usize, batch: usize) -> Option<(usize, Requirement, usize)> {
        let requirements = &self.members[member].batches[batch].requirements;
        let mut best: Option<((u8, f64), usize, Requirement)> = None;
        let mut tied = false;
        for (number, set) in self.remaining.iter().enumerate() {
            let Some(required) = requirements[set.class] else {
                continue;
            };
            let cost = self.cluster.cost[set.class];
            let Some(rank) = set.room.rank(member, required, cost) else {
                continue;
            };
            let Some((least, first, _)) = best else {
                best = Some((rank, number, required));
                continue;
            };
            if rank < least {
                best = Some((rank, number, required));
                tied = false;
            } else if rank == least {
                tied = true;
                if self.first_device(set) < self.first_device(&self.remaining[first]) {
                    best = Some((rank, number, required));
                }
            }
        }
        let (_, set, required) = best?;
        // The devices of sets with equal rank are used in the order of their indices.
        let most = if tied {
            1
        } else {
            self.remaining[set].devices.len()
        };
        Some((set, required, most))
    }

    fn first_device(&self, set: &EqualDevices) -> usize {
        self.devices[set.devices.start]
    }

    /// Makes the first `most` devices of a set, or all of them, a set of their own with a changed room, and returns their range.
    fn split_off(
        &mut self,
        set: usize,
        most: usize,
        change: impl FnOnce(DeviceRoom) -> DeviceRoom,
    ) -> Range<usize> {
        let from = &mut self.remaining[set];
        let start = from.devices.start;
        let end = from.devices.end.min(start + most);
        let split = EqualDevices {
            class: from.class,
            room: change(from.room),
            devices: start..end,
        };
        if end == from.devices.end {
            *from = split;
        } else {
            from.devices.start = end;
            self.remaining.push(split);
        }
        start..end
    }

    /// Returns a placement as single devices and replicas.
    fn expand(&self, best: Placement) -> BestPlacement {
        let mut rooms = self.cluster.rooms.clone();
        for set in best.remaining {
            for &device in &self.devices[set.devices] {
                rooms[device] = set.room;
            }
        }
        let placed = best.placed.into_iter().flat_map(|replicas| {
            let devices = self.devices[replicas.devices].iter();
            devices.map(move |&device| PlacedReplica {
                member: replicas.member,
                device,
                batch: replicas.batch,
            })
        });
        BestPlacement {
            rooms,
            placed: placed.collect(),
        }
    }
}

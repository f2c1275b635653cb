//! The best configuration of a group, without looking at all of them or at every device.

use std::{collections::BTreeMap, ops::Range};

use super::{
    bound,
    group::{self, Best, Choice, Cluster, Member, Owner, Placed, ROUNDING, Room},
};
use crate::{Budget, PlaceError, requirements::Requirement};

/// Tries all configurations in ascending order, but for those that cannot be better than the best before them.
pub(super) fn search(
    cluster: &Cluster,
    members: &[Member],
    budget: &mut Budget<'_>,
) -> Result<Option<Best>, PlaceError> {
    let room: Vec<Vec<bound::Room>> = members
        .iter()
        .map(|member| {
            let batches = member.batches.iter();
            batches.map(|batch| cluster.room_for(batch)).collect()
        })
        .collect();
    let (devices, piles) = pile_up(cluster);
    let mut search = Branches {
        members,
        resources: cluster.resources(),
        room,
        best_promise: Vec::new(),
        cluster,
        devices,
        piles,
        left: Vec::new(),
        placed: Vec::new(),
        chosen: Vec::new(),
        best: None,
    };
    search.best_promise = (0..members.len())
        .map(|member| {
            let choices = members[member].choices.iter();
            let promises = choices.map(|choice| search.promise(member, *choice));
            promises.fold(bound::Promise::NOTHING, bound::Promise::best)
        })
        .collect();
    search.descend(&mut Vec::new(), budget)?;
    let best = search.best.take();
    Ok(best.map(|best| search.one_by_one(best)))
}

/// Devices of a class that have as much left, are in the same hands, and host the same members.
#[derive(Clone)]
struct Pile {
    class: usize,
    room: Room,
    /// Its part of the search's devices: by index.
    devices: Range<usize>,
}

/// A replica of a member on each of some devices.
#[derive(Clone)]
struct Run {
    member: usize,
    /// As of a pile.
    devices: Range<usize>,
    batch: usize,
}

/// The best configuration so far.
struct Placement {
    goodput: f64,
    left: Vec<Pile>,
    placed: Vec<Run>,
}

/// The devices in the order of their piles.
fn pile_up(cluster: &Cluster) -> (Vec<usize>, Vec<Pile>) {
    let mut alike: BTreeMap<(usize, Owner, u64, u64), Vec<usize>> = BTreeMap::new();
    for (device, (room, class)) in cluster.rooms.iter().zip(&cluster.class_of).enumerate() {
        let look = (
            *class,
            room.owner,
            room.compute.to_bits(),
            room.memory.to_bits(),
        );
        alike.entry(look).or_default().push(device);
    }
    let (mut devices, mut piles) = (Vec::new(), Vec::new());
    for ((class, ..), pile) in alike {
        let start = devices.len();
        piles.push(Pile {
            class,
            room: cluster.rooms[pile[0]],
            devices: start..start + pile.len(),
        });
        devices.extend(pile);
    }
    (devices, piles)
}

struct Branches<'a> {
    members: &'a [Member],
    cluster: &'a Cluster,
    /// What is free before the group, by member, then batch size; what a member can have at most; and all of it.
    room: Vec<Vec<bound::Room>>,
    best_promise: Vec<bound::Promise>,
    resources: bound::Resources,
    /// Pile by pile.
    devices: Vec<usize>,
    /// Before the group.
    piles: Vec<Pile>,
    left: Vec<Pile>,
    placed: Vec<Run>,
    chosen: Vec<Choice>,
    best: Option<Placement>,
}

impl Branches<'_> {
    /// `promised`: what each of the members chosen so far can have at most, in their order.
    fn descend(
        &mut self,
        promised: &mut Vec<bound::Promise>,
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
            let room = self.room[next][choice.batch].devices;
            // More replicas than there is room for end as few: the first such choice stands for them.
            if tried[choice.batch].is_some_and(|replicas| replicas >= room) {
                continue;
            }
            tried[choice.batch] = Some(choice.replicas);
            promised.push(self.promise(next, choice));
            let rest = rest.clone().map(|member| self.best_promise[member]);
            let bound = self.resources.most(&promised.iter().copied().chain(rest));
            if self.is_better(bound) {
                self.chosen.push(choice);
                self.descend(promised, budget)?;
                self.chosen.pop();
            }
            promised.pop();
        }
        Ok(())
    }

    fn promise(&self, member: usize, choice: Choice) -> bound::Promise {
        let of = &self.members[member];
        let room = &self.room[member][choice.batch];
        let replicas = choice.replicas.min(room.devices) as f64;
        let throughput = of.batches[choice.batch].best_throughput();
        room.promise((replicas * throughput).min(of.rate), throughput)
    }

    fn is_better(&self, goodput: f64) -> bool {
        self.best
            .as_ref()
            .is_none_or(|best| goodput > best.goodput + ROUNDING)
    }

    fn try_configuration(&mut self, budget: &mut Budget<'_>) -> Result<(), PlaceError> {
        budget.spend(self.piles.len() as u64)?;
        self.left.clone_from(&self.piles);
        self.placed.clear();
        let mut goodput = 0.0;
        for member in group::order(self.members, &self.chosen) {
            goodput += self.put(member);
        }
        if self.is_better(goodput) {
            self.best = Some(Placement {
                goodput,
                left: self.left.clone(),
                placed: self.placed.clone(),
            });
        }
        Ok(())
    }

    /// Places the replicas of a member while there is room; returns its goodput.
    fn put(&mut self, member: usize) -> f64 {
        let Choice {
            replicas, batch, ..
        } = self.chosen[member];
        let mut carried = 0.0;
        let mut wanted = replicas;
        while wanted > 0 {
            let Some((pile, need, most)) = self.pile_for(member, batch) else {
                break;
            };
            let taken = self.take(pile, wanted.min(most), |room| room.with(member, need));
            for _ in taken.clone() {
                carried += need.throughput;
            }
            wanted -= taken.len();
            self.placed.push(Run {
                member,
                devices: taken,
                batch,
            });
        }
        carried.min(self.members[member].rate)
    }

    /// The pile whose first device is the best, and how many of its devices come before any other.
    fn pile_for(&self, member: usize, batch: usize) -> Option<(usize, Requirement, usize)> {
        let requirements = &self.members[member].batches[batch].requirements;
        let mut best: Option<((u8, f64), usize, Requirement)> = None;
        let mut tied = false;
        for (number, pile) in self.left.iter().enumerate() {
            let Some(need) = requirements[pile.class] else {
                continue;
            };
            let cost = self.cluster.cost[pile.class];
            let Some(rank) = pile.room.rank(member, need, cost) else {
                continue;
            };
            let Some((least, first, _)) = best else {
                best = Some((rank, number, need));
                continue;
            };
            if rank < least {
                best = Some((rank, number, need));
                tied = false;
            } else if rank == least {
                tied = true;
                if self.first(pile) < self.first(&self.left[first]) {
                    best = Some((rank, number, need));
                }
            }
        }
        let (_, pile, need) = best?;
        // Piles of equal rank take turns by their devices' indices.
        let most = if tied {
            1
        } else {
            self.left[pile].devices.len()
        };
        Some((pile, need, most))
    }

    fn first(&self, pile: &Pile) -> usize {
        self.devices[pile.devices.start]
    }

    /// Makes the first devices of a pile, at most so many, one of their own.
    fn take(
        &mut self,
        pile: usize,
        most: usize,
        change: impl FnOnce(Room) -> Room,
    ) -> Range<usize> {
        let from = &mut self.left[pile];
        let start = from.devices.start;
        let end = from.devices.end.min(start + most);
        let taken = Pile {
            class: from.class,
            room: change(from.room),
            devices: start..end,
        };
        if end == from.devices.end {
            *from = taken;
        } else {
            from.devices.start = end;
            self.left.push(taken);
        }
        start..end
    }

    /// Of every device, and every replica.
    fn one_by_one(&self, best: Placement) -> Best {
        let mut rooms = self.cluster.rooms.clone();
        for pile in best.left {
            for &device in &self.devices[pile.devices] {
                rooms[device] = pile.room;
            }
        }
        let placed = best.placed.into_iter().flat_map(|run| {
            let devices = self.devices[run.devices].iter();
            devices.map(move |&device| Placed {
                member: run.member,
                device,
                batch: run.batch,
            })
        });
        Best {
            rooms,
            placed: placed.collect(),
        }
    }
}

//! One group of models on what the groups before it have left.

use packhorse_cluster::{ComputeShare, DeviceIndex, ModelIndex, PlannedReplica, Problem};

use super::{bound, fewest_replicas};
use crate::{
    Budget, PlaceError,
    requirements::{Requirement, Requirements},
};

/// A model is heavy on one side if it needs so much more there.
const HEAVY: f64 = 1.2;

/// The largest multiple of the fewest replicas.
const MULTIPLES: usize = 6;

/// Sums of percentages with two decimals; also what goodput must be more by to be more.
const ROUNDING: f64 = 1e-9;

/// A replication degree and a batch size, by its place among the member's.
#[derive(Clone, Copy)]
struct Choice {
    replicas: usize,
    batch: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Compute,
    Memory,
    Neither,
}

/// A batch size of a member.
struct Batch {
    /// By class of devices.
    requirements: Vec<Option<Requirement>>,
    side: Side,
    /// Creq + Mreq.
    total: f64,
}

/// A model of the group.
pub(super) struct Member {
    model: ModelIndex,
    rate: f64,
    batches: Vec<Batch>,
    /// In ascending order of degree, then batch size.
    choices: Vec<Choice>,
}

impl Member {
    pub(super) fn new(
        problem: &Problem,
        requirements: &Requirements<'_>,
        model: ModelIndex,
    ) -> Self {
        let rate = problem.models[model.0].rate.get();
        let batches: Vec<Batch> = requirements
            .batch_sizes(model)
            .into_iter()
            .map(|size| {
                let classes = 0..requirements.classes.len();
                Batch::new(
                    classes
                        .map(|class| requirements.with_batch(model, class, size))
                        .collect(),
                )
            })
            .collect();
        let fewest = fewest_replicas(problem, requirements, model).unwrap_or(usize::MAX);
        let degrees = (1..=MULTIPLES)
            .map(|multiple| fewest.saturating_mul(multiple))
            .filter(|degree| *degree <= problem.devices.len());
        let choices = degrees
            .flat_map(|replicas| (0..batches.len()).map(move |batch| Choice { replicas, batch }))
            .collect();
        Self {
            model,
            rate,
            batches,
            choices,
        }
    }
}

impl Batch {
    fn new(requirements: Vec<Option<Requirement>>) -> Self {
        let known = requirements.iter().flatten().count().max(1) as f64;
        let known = 1.0 / known;
        let compute = requirements
            .iter()
            .flatten()
            .map(|need| need.compute)
            .sum::<f64>()
            * known;
        let memory = requirements
            .iter()
            .flatten()
            .map(|need| need.memory)
            .sum::<f64>()
            * known;
        let side = if compute >= HEAVY * memory && compute > 0.0 {
            Side::Compute
        } else if memory >= HEAVY * compute && memory > 0.0 {
            Side::Memory
        } else {
            Side::Neither
        };
        Self {
            requirements,
            side,
            total: compute + memory,
        }
    }

    fn best_throughput(&self) -> f64 {
        let of_classes = self.requirements.iter().flatten();
        of_classes.map(|need| need.throughput).fold(0.0, f64::max)
    }
}

/// What a device has left, in percent.
#[derive(Clone, Copy)]
struct Room {
    compute: f64,
    memory: f64,
    owner: Owner,
    /// Which members of the group it hosts already, a bit each.
    hosts: u8,
}

#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Nobody,
    ThisGroup,
    AnotherGroup,
}

/// A replica of a member on a device.
struct Placed {
    member: usize,
    device: usize,
    batch: usize,
}

/// The devices, with what was placed so far.
pub(super) struct Cluster {
    class_of: Vec<usize>,
    /// By class.
    cost: Vec<f64>,
    rooms: Vec<Room>,
}

impl Cluster {
    pub(super) fn new(problem: &Problem, requirements: &Requirements<'_>) -> Self {
        let empty = Room {
            compute: 100.0,
            memory: 100.0,
            owner: Owner::Nobody,
            hosts: 0,
        };
        Self {
            class_of: requirements.class_of.clone(),
            cost: requirements
                .classes
                .iter()
                .map(|class| class.cost)
                .collect(),
            rooms: vec![empty; problem.devices.len()],
        }
    }

    /// Places the group by its best configuration.
    pub(super) fn place(
        &mut self,
        members: &[Member],
        budget: &mut Budget<'_>,
    ) -> Result<Vec<PlannedReplica>, PlaceError> {
        let room: Vec<Vec<bound::Room>> = members
            .iter()
            .map(|member| {
                let batches = member.batches.iter();
                batches.map(|batch| self.room_for(batch)).collect()
            })
            .collect();
        let mut search = Search {
            members,
            resources: self.resources(),
            room,
            best_promise: Vec::new(),
            cluster: self,
            rooms: Vec::new(),
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
        let Some(best) = search.best else {
            return Ok(Vec::new());
        };
        self.rooms = best.rooms;
        for room in &mut self.rooms {
            room.hosts = 0;
            if room.owner == Owner::ThisGroup {
                room.owner = Owner::AnotherGroup;
            }
        }
        let replica = |placed: Placed| {
            let need = self.need(members, &placed);
            PlannedReplica {
                model: members[placed.member].model,
                device: DeviceIndex(placed.device),
                batch_size: need.batch_size,
                compute_share: ComputeShare::new(need.compute).ok(),
                duty_cycle: None,
            }
        };
        Ok(best.placed.into_iter().map(replica).collect())
    }

    /// On how many devices a replica would fit by itself, and what the least of them would give for it.
    fn room_for(&self, batch: &Batch) -> bound::Room {
        let needs = || batch.requirements.iter().flatten();
        let devices = self
            .rooms
            .iter()
            .zip(&self.class_of)
            .filter(|(room, class)| {
                batch.requirements[**class].is_some_and(|need| {
                    need.compute <= room.compute + ROUNDING && need.memory <= room.memory + ROUNDING
                })
            });
        let least = |of: fn(&Requirement) -> f64| needs().map(of).fold(f64::INFINITY, f64::min);
        bound::Room {
            devices: devices.count(),
            compute: least(|need| need.compute),
            memory: least(|need| need.memory),
        }
    }

    fn resources(&self) -> bound::Resources {
        bound::Resources::new(self.rooms.iter().map(|room| (room.compute, room.memory)))
    }

    fn need(&self, members: &[Member], placed: &Placed) -> Requirement {
        let batch = &members[placed.member].batches[placed.batch];
        batch.requirements[self.class_of[placed.device]].expect("placed where it can run")
    }
}

/// The best configuration so far.
struct Best {
    goodput: f64,
    rooms: Vec<Room>,
    placed: Vec<Placed>,
}

/// All configurations in ascending order, but for those that cannot be better than the best before them.
struct Search<'a> {
    members: &'a [Member],
    cluster: &'a Cluster,
    /// What is free before the group, by member, then batch size; what a member can have at most; and all of it.
    room: Vec<Vec<bound::Room>>,
    best_promise: Vec<bound::Promise>,
    resources: bound::Resources,
    rooms: Vec<Room>,
    placed: Vec<Placed>,
    chosen: Vec<Choice>,
    best: Option<Best>,
}

impl Search<'_> {
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
        budget.spend(self.cluster.rooms.len() as u64)?;
        self.rooms.clone_from(&self.cluster.rooms);
        self.placed.clear();
        let mut goodput = 0.0;
        for member in self.order() {
            goodput += self.put(member);
        }
        if self.is_better(goodput) {
            self.best = Some(Best {
                goodput,
                rooms: self.rooms.clone(),
                placed: std::mem::take(&mut self.placed),
            });
        }
        Ok(())
    }

    /// Compute-heavy and memory-heavy members in turns, then the others; each by what they need, most first.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let batch = |member: usize| &self.members[member].batches[self.chosen[member].batch];
        let on = |side: Side| {
            let mut members: Vec<usize> = (0..self.members.len())
                .filter(|&member| batch(member).side == side)
                .collect();
            members.sort_by(|&a, &b| batch(b).total.total_cmp(&batch(a).total));
            members
        };
        let (compute, memory) = (on(Side::Compute), on(Side::Memory));
        let turns = compute.len().max(memory.len());
        let mut order = Vec::with_capacity(self.members.len());
        for turn in 0..turns {
            order.extend(compute.get(turn));
            order.extend(memory.get(turn));
        }
        order.extend(on(Side::Neither));
        order.into_iter()
    }

    /// Places the replicas of a member while there is room; returns its goodput.
    fn put(&mut self, member: usize) -> f64 {
        let Choice {
            replicas, batch, ..
        } = self.chosen[member];
        let mut carried = 0.0;
        for _ in 0..replicas {
            let Some((device, need)) = self.device_for(member, batch) else {
                break;
            };
            let room = &mut self.rooms[device];
            room.compute -= need.compute;
            room.memory -= need.memory;
            room.hosts |= 1 << member;
            if room.owner == Owner::Nobody {
                room.owner = Owner::ThisGroup;
            }
            carried += need.throughput;
            self.placed.push(Placed {
                member,
                device,
                batch,
            });
        }
        carried.min(self.members[member].rate)
    }

    /// The device of this group that is left with least, else of other groups, else the cheapest new one.
    fn device_for(&self, member: usize, batch: usize) -> Option<(usize, Requirement)> {
        let requirements = &self.members[member].batches[batch].requirements;
        let mut best: Option<((u8, f64), usize, Requirement)> = None;
        for (device, room) in self.rooms.iter().enumerate() {
            let class = self.cluster.class_of[device];
            let Some(need) = requirements[class] else {
                continue;
            };
            let fits = room.hosts & (1 << member) == 0
                && need.compute <= room.compute + ROUNDING
                && need.memory <= room.memory + ROUNDING;
            if !fits {
                continue;
            }
            let left = room.compute - need.compute + room.memory - need.memory;
            let rank = match room.owner {
                Owner::ThisGroup => (0, left),
                Owner::AnotherGroup => (1, left),
                Owner::Nobody => (2, self.cluster.cost[class]),
            };
            if best.as_ref().is_none_or(|(least, ..)| rank < *least) {
                best = Some((rank, device, need));
            }
        }
        best.map(|(_, device, need)| (device, need))
    }
}

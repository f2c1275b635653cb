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
pub(super) const ROUNDING: f64 = 1e-9;

/// A replication degree and a batch size, by its place among the member's.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) replicas: usize,
    pub(super) batch: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Compute,
    Memory,
    Neither,
}

/// A batch size of a member.
pub(super) struct Batch {
    /// By class of devices.
    pub(super) requirements: Vec<Option<Requirement>>,
    side: Side,
    /// Creq + Mreq.
    total: f64,
}

/// A model of the group.
pub(super) struct Member {
    model: ModelIndex,
    pub(super) rate: f64,
    pub(super) batches: Vec<Batch>,
    /// In ascending order of degree, then batch size.
    pub(super) choices: Vec<Choice>,
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

    pub(super) fn best_throughput(&self) -> f64 {
        let of_classes = self.requirements.iter().flatten();
        of_classes.map(|need| need.throughput).fold(0.0, f64::max)
    }
}

/// What a device has left, in percent.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) compute: f64,
    pub(super) memory: f64,
    pub(super) owner: Owner,
    /// Which members of the group it hosts already, a bit each.
    hosts: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Nobody,
    ThisGroup,
    AnotherGroup,
}

impl Room {
    /// With a replica of a member more.
    pub(super) fn with(mut self, member: usize, need: Requirement) -> Self {
        self.compute -= need.compute;
        self.memory -= need.memory;
        self.hosts |= 1 << member;
        if self.owner == Owner::Nobody {
            self.owner = Owner::ThisGroup;
        }
        self
    }

    /// Whether a replica of a member fits, and where it should go first, the least: the device of this group that is left with
    /// least, else of other groups, else the cheapest new one.
    pub(super) fn rank(&self, member: usize, need: Requirement, cost: f64) -> Option<(u8, f64)> {
        let fits = self.hosts & (1 << member) == 0
            && need.compute <= self.compute + ROUNDING
            && need.memory <= self.memory + ROUNDING;
        let left = self.compute - need.compute + self.memory - need.memory;
        fits.then_some(match self.owner {
            Owner::ThisGroup => (0, left),
            Owner::AnotherGroup => (1, left),
            Owner::Nobody => (2, cost),
        })
    }
}

/// A replica of a member on a device.
pub(super) struct Placed {
    pub(super) member: usize,
    pub(super) device: usize,
    pub(super) batch: usize,
}

/// The best configuration, placed: what it leaves of every device.
pub(super) struct Best {
    pub(super) rooms: Vec<Room>,
    pub(super) placed: Vec<Placed>,
}

/// Finds the best configuration of a group, if it has any.
pub(super) type Search =
    fn(&Cluster, &[Member], &mut Budget<'_>) -> Result<Option<Best>, PlaceError>;

/// The devices, with what was placed so far.
pub(super) struct Cluster {
    pub(super) class_of: Vec<usize>,
    /// By class.
    pub(super) cost: Vec<f64>,
    pub(super) rooms: Vec<Room>,
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
        search: Search,
        budget: &mut Budget<'_>,
    ) -> Result<Vec<PlannedReplica>, PlaceError> {
        let Some(best) = search(self, members, budget)? else {
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
    pub(super) fn room_for(&self, batch: &Batch) -> bound::Room {
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

    pub(super) fn resources(&self) -> bound::Resources {
        bound::Resources::new(self.rooms.iter().map(|room| (room.compute, room.memory)))
    }

    fn need(&self, members: &[Member], placed: &Placed) -> Requirement {
        let batch = &members[placed.member].batches[placed.batch];
        batch.requirements[self.class_of[placed.device]].expect("placed where it can run")
    }
}

/// Compute-heavy and memory-heavy members in turns, then the others; each by what they need, most first.
pub(super) fn order(members: &[Member], chosen: &[Choice]) -> impl Iterator<Item = usize> + use<> {
    let batch = |member: usize| &members[member].batches[chosen[member].batch];
    let on = |side: Side| {
        let mut heavy: Vec<usize> = (0..members.len())
            .filter(|&member| batch(member).side == side)
            .collect();
        heavy.sort_by(|&a, &b| batch(b).total.total_cmp(&batch(a).total));
        heavy
    };
    let (compute, memory) = (on(Side::Compute), on(Side::Memory));
    let turns = compute.len().max(memory.len());
    let mut order = Vec::with_capacity(members.len());
    for turn in 0..turns {
        order.extend(compute.get(turn));
        order.extend(memory.get(turn));
    }
    order.extend(on(Side::Neither));
    order.into_iter()
}

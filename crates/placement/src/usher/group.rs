//! The placement of one group of models on the resources that earlier groups left free.

use packhorse_cluster::{
    ComputeShare, DeviceIndex, ModelIndex, PlannedReplica, Problem, Shortfall,
};

use super::bound::{BatchRoom, FreeResources};
use crate::{
    Budget, PlaceError,
    requirements::{Requirement, Requirements},
    tolerance::{PERCENT_ROUNDING, round_up},
};

/// The ratio of Creq to Mreq, or the inverse, from which a model is compute-heavy or memory-heavy.
const HEAVY_RATIO: f64 = 1.2;

/// The largest replication degree, as a multiple of the fewest replicas.
const MULTIPLES: usize = 6;

/// The replication degree and the batch size of a member in a configuration.
#[derive(Clone, Copy)]
pub(super) struct MemberChoice {
    /// The replication degree.
    pub(super) replicas: usize,
    /// The index of the batch size in [`Member::batches`].
    pub(super) batch: usize,
}

/// The resource that dominates the requirements of a batch size.
#[derive(Clone, Copy, PartialEq)]
enum Dominant {
    Compute,
    Memory,
    Neither,
}

/// A batch size of a member.
pub(super) struct MemberBatch {
    /// The requirement on each class of devices; `None` where the model cannot have this batch size.
    pub(super) requirements: Vec<Option<Requirement>>,
    dominant: Dominant,
    /// The mean of Creq + Mreq over the classes, in percent.
    total: f64,
}

/// A model of a group.
pub(super) struct Member {
    model: ModelIndex,
    /// The model's rate, in requests per second.
    pub(super) rate: f64,
    /// The batch sizes, in ascending order.
    pub(super) batches: Vec<MemberBatch>,
    /// The choices in ascending order of degree, then batch size.
    pub(super) choices: Vec<MemberChoice>,
}

impl Member {
    pub(super) fn new(
        problem: &Problem,
        requirements: &Requirements<'_>,
        model: ModelIndex,
    ) -> Self {
        let rate = problem.models[model.0].rate.get();
        let batches: Vec<MemberBatch> = requirements
            .batch_sizes(model)
            .into_iter()
            .map(|size| {
                let classes = 0..requirements.classes.len();
                MemberBatch::new(
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
            .flat_map(|replicas| {
                (0..batches.len()).map(move |batch| MemberChoice { replicas, batch })
            })
            .collect();
        Self {
            model,
            rate,
            batches,
            choices,
        }
    }
}

impl MemberBatch {
    fn new(requirements: Vec<Option<Requirement>>) -> Self {
        let classes = requirements.iter().flatten().count().max(1) as f64;
        let weight = 1.0 / classes;
        let compute = requirements
            .iter()
            .flatten()
            .map(|required| required.compute)
            .sum::<f64>()
            * weight;
        let memory = requirements
            .iter()
            .flatten()
            .map(|required| required.memory)
            .sum::<f64>()
            * weight;
        let dominant = if compute >= HEAVY_RATIO * memory && compute > 0.0 {
            Dominant::Compute
        } else if memory >= HEAVY_RATIO * compute && memory > 0.0 {
            Dominant::Memory
        } else {
            Dominant::Neither
        };
        Self {
            requirements,
            dominant,
            total: compute + memory,
        }
    }

    /// Returns the throughput on the fastest class, in requests per second.
    pub(super) fn best_throughput(&self) -> f64 {
        let by_class = self.requirements.iter().flatten();
        let throughputs = by_class.map(|required| required.throughput);
        throughputs.fold(0.0, f64::max)
    }
}

/// The free resources of a device, and the groups that use it.
#[derive(Clone, Copy)]
pub(super) struct DeviceRoom {
    /// The free compute, in percent.
    pub(super) compute: f64,
    /// The free memory, in percent.
    pub(super) memory: f64,
    /// The group that uses the device.
    pub(super) owner: DeviceOwner,
    /// The members of the current group with a replica on the device, one bit each.
    hosts: u8,
}

/// The group that uses a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DeviceOwner {
    /// No group; the device is new.
    Nobody,
    /// The group that is being placed.
    ThisGroup,
    /// An earlier group.
    AnotherGroup,
}

impl DeviceRoom {
    /// Returns the room that remains with one more replica of a member.
    pub(super) fn with_replica(mut self, member: usize, required: Requirement) -> Self {
        self.compute -= required.compute;
        self.memory -= required.memory;
        self.hosts |= 1 << member;
        if self.owner == DeviceOwner::Nobody {
            self.owner = DeviceOwner::ThisGroup;
        }
        self
    }

    /// Returns true if the free resources suffice for a replica.
    fn holds(&self, required: &Requirement) -> bool {
        required.compute <= self.compute + PERCENT_ROUNDING
            && required.memory <= self.memory + PERCENT_ROUNDING
    }

    /// Returns the rank of the device for a replica of a member, smallest first, or `None` if the replica does not fit. Devices of this
    /// group and then those of other groups rank by what they would have left, new devices come last and rank by cost.
    pub(super) fn rank(
        &self,
        member: usize,
        required: Requirement,
        cost: f64,
    ) -> Option<(u8, f64)> {
        let fits = self.hosts & (1 << member) == 0 && self.holds(&required);
        let left = self.compute - required.compute + self.memory - required.memory;
        fits.then_some(match self.owner {
            DeviceOwner::ThisGroup => (0, left),
            DeviceOwner::AnotherGroup => (1, left),
            DeviceOwner::Nobody => (2, cost),
        })
    }
}

/// A replica of a member on a device.
pub(super) struct PlacedReplica {
    /// The index of the member in the group.
    pub(super) member: usize,
    /// The index of the device.
    pub(super) device: usize,
    /// The index of the batch size in [`Member::batches`].
    pub(super) batch: usize,
}

/// The placement of the best configuration of a group.
pub(super) struct BestPlacement {
    /// The room that remains on each device.
    pub(super) rooms: Vec<DeviceRoom>,
    /// The group's replicas.
    pub(super) placed: Vec<PlacedReplica>,
}

/// A function that finds the best placement of a group, if there is one.
pub(super) type Search =
    fn(&Cluster, &[Member], &mut Budget<'_>) -> Result<Option<BestPlacement>, PlaceError>;

/// The devices with the room that the groups placed so far leave on them.
pub(super) struct Cluster {
    /// The class of each device.
    pub(super) class_of: Vec<usize>,
    /// The cost of a device of each class.
    pub(super) cost: Vec<f64>,
    /// The room on each device.
    pub(super) rooms: Vec<DeviceRoom>,
}

impl Cluster {
    pub(super) fn new(problem: &Problem, requirements: &Requirements<'_>) -> Self {
        let empty = DeviceRoom {
            compute: 100.0,
            memory: 100.0,
            owner: DeviceOwner::Nobody,
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

    /// Places a group by its best configuration and returns its replicas.
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
            if room.owner == DeviceOwner::ThisGroup {
                room.owner = DeviceOwner::AnotherGroup;
            }
        }
        let replica = |placed: PlacedReplica| {
            let required = self.requirement(members, &placed);
            let (model, device) = (members[placed.member].model, DeviceIndex(placed.device));
            PlannedReplica {
                compute_share: ComputeShare::new(required.compute).ok(),
                ..required.replica(model, device)
            }
        };
        Ok(best.placed.into_iter().map(replica).collect())
    }

    /// Returns the number of devices on which one replica fits, and its smallest requirements on any class.
    pub(super) fn room_for(&self, batch: &MemberBatch) -> BatchRoom {
        let requirements = || batch.requirements.iter().flatten();
        let holds = |(room, class): &(&DeviceRoom, &usize)| {
            let required = batch.requirements[**class].as_ref();
            required.is_some_and(|required| room.holds(required))
        };
        let devices = self.rooms.iter().zip(&self.class_of).filter(holds);
        let smallest = |resource: fn(&Requirement) -> f64| {
            requirements().map(resource).fold(f64::INFINITY, f64::min)
        };
        BatchRoom {
            devices: devices.count(),
            compute: smallest(|required| required.compute),
            memory: smallest(|required| required.memory),
        }
    }

    /// Returns the free resources of all devices.
    pub(super) fn free_resources(&self) -> FreeResources {
        FreeResources::new(self.rooms.iter().map(|room| (room.compute, room.memory)))
    }

    fn requirement(&self, members: &[Member], placed: &PlacedReplica) -> Requirement {
        let batch = &members[placed.member].batches[placed.batch];
        batch.requirements[self.class_of[placed.device]].expect("placed where it can run")
    }
}

/// Returns the members in the order of placement: compute-heavy and memory-heavy ones alternately, then the others, each sorted by
/// Creq + Mreq, largest first.
pub(super) fn placement_order(
    members: &[Member],
    chosen: &[MemberChoice],
) -> impl Iterator<Item = usize> + use<> {
    let batch = |member: usize| &members[member].batches[chosen[member].batch];
    let dominated_by = |dominant: Dominant| {
        let mut heavy: Vec<usize> = (0..members.len())
            .filter(|&member| batch(member).dominant == dominant)
            .collect();
        heavy.sort_by(|&a, &b| batch(b).total.total_cmp(&batch(a).total));
        heavy
    };
    let (compute, memory) = (
        dominated_by(Dominant::Compute),
        dominated_by(Dominant::Memory),
    );
    let pairs = compute.len().max(memory.len());
    let mut order = Vec::with_capacity(members.len());
    for pair in 0..pairs {
        order.extend(compute.get(pair));
        order.extend(memory.get(pair));
    }
    order.extend(dominated_by(Dominant::Neither));
    order.into_iter()
}

/// Returns `c`, the number of replicas with the largest batch on the fastest devices that carry the rate, at least one.
///
/// # Errors
/// The reason why the model cannot be served.
pub(super) fn fewest_replicas(
    problem: &Problem,
    requirements: &Requirements<'_>,
    model: ModelIndex,
) -> Result<usize, Shortfall> {
    if let Some(reason) = requirements.infeasible(model) {
        return Err(reason.clone());
    }
    let classes = 0..requirements.classes.len();
    let largest = classes.filter_map(|class| requirements.on_class(model, class).last());
    let throughput = largest
        .map(|requirement| requirement.throughput)
        .fold(0.0, f64::max);
    let needed = round_up(problem.models[model.0].rate.get() / throughput);
    let devices = problem.devices.len();
    if needed > devices as f64 {
        return Err(Shortfall::TooManyReplicas {
            replicas: needed,
            devices,
        });
    }
    Ok((needed as usize).max(1))
}

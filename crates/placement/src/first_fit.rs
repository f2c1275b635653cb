//! `first-fit`: packs replicas onto devices by memory and by time.
//!
//! A replica that carries `r` requests/s in full batches of `b` keeps its device busy for the fraction `r · latency(b) / b` of the time.
//! The replicas of a device must fit its memory and may use 85 % of its time. The next replica of a model goes to the first device
//! without the model that can carry all of its remaining rate, or, if there is none, to the one that can carry most of it. Every model
//! gets its first replica before any model gets a second one. A model for which no device has time left still gets one replica if there
//! is memory for it, which then uses the time that the others leave.
//!
//! The policy moves as few running replicas as it can: it reserves their memory before it places anything, places running models before
//! new ones (each in the problem's order), and prefers the devices on which a model runs already.
//!
//! The batch size is the one with the highest throughput among those with which a request that just missed a batch is still in time:
//! `2 · latency(b) + transfer(b) ≤ SLO`. If there is none, it is the fastest within the SLO. Interference is not modelled.
//!
//! The predicted goodput is the rate that the replicas carry, including the last 15 % of a device's time for models that need them.
//!
//! Source: first fit, Johnson et al., "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974. Deviations:
//! there are two resources, items can be divided, and running replicas are preferred.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::RangeInclusive,
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, DeviceIndex, ModelForecast, ModelIndex, Plan, PlannedReplica, Problem,
    RequestsPerSecond, Shortfall,
};

use self::equal_devices::{DeviceState, EqualDevices};
use crate::{
    Budget, PlaceError, PlanningOptions, Policy,
    candidates::{Candidate, Candidates},
    tolerance::ROUNDING,
};

mod equal_devices;

pub(crate) const NAME: &str = "first-fit";

/// The fraction of a device's time that is planned, because the queue of a device that is always busy grows without limit.
const PLANNED_TIME: f64 = 0.85;

/// The smallest fraction of a device's time that is worth the memory of a further replica.
const MIN_REPLICA_TIME: f64 = 0.05;

pub(crate) struct FirstFit;

impl Policy for FirstFit {
    fn place(
        &self,
        problem: &Problem,
        _options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        pack(problem, BY_EQUAL_DEVICES, budget)
    }
}

/// A function that returns the possible next replicas of a model. It may leave out devices with clearly less planned time left than a
/// given fraction, and all but the first of devices that differ only in their index.
type PossibleReplicas = fn(&Packing<'_>, ModelIndex, f64) -> Vec<PossibleReplica>;

/// The function of the policy, which considers one of each set of equal devices.
const BY_EQUAL_DEVICES: PossibleReplicas =
    |packing, model, time| packing.possible_replicas(model, time);

fn pack(
    problem: &Problem,
    possible_replicas: PossibleReplicas,
    budget: &mut Budget<'_>,
) -> Result<Plan, PlaceError> {
    let mut packing = Packing::new(problem, possible_replicas);
    let mut order: Vec<ModelIndex> = problem.models().map(|(model, _)| model).collect();
    order.sort_by_key(|&model| !packing.is_running(model));
    packing.place_first_replicas(&order, budget)?;
    packing.place_further_replicas(&order, budget)?;
    // Running replicas that the plan does not keep make room for models without a replica.
    packing.release_reservations();
    packing.place_first_replicas(&order, budget)?;
    packing.use_headroom();
    Ok(packing.into_plan())
}

/// A replica that could be placed.
#[derive(Clone, Copy)]
struct PossibleReplica {
    device: DeviceIndex,
    candidate: Candidate,
    /// The requests per second that it could carry in the planned time of the device.
    capacity: f64,
}

/// The remaining resources of a device.
struct DeviceRoom {
    /// The free memory.
    memory: ByteCount,
    /// The fraction of the device's time that its replicas use.
    busy: f64,
}

/// A plan in progress.
struct Packing<'a> {
    problem: &'a Problem,
    candidates: Candidates<'a>,
    /// The running replicas.
    current: BTreeSet<(ModelIndex, DeviceIndex)>,
    /// The memory reserved for running replicas.
    reserved: BTreeMap<(ModelIndex, DeviceIndex), ByteCount>,
    /// The remaining resources of each device.
    rooms: Vec<DeviceRoom>,
    /// The devices by their remaining resources.
    equal_devices: EqualDevices,
    possible_replicas: PossibleReplicas,
    /// The replicas of the plan.
    placed: BTreeMap<(ModelIndex, DeviceIndex), Candidate>,
    /// The rate of each model that no replica carries yet, in requests per second.
    unserved: Vec<f64>,
}

impl<'a> Packing<'a> {
    fn new(problem: &'a Problem, possible_replicas: PossibleReplicas) -> Self {
        let rooms = problem.devices.iter().map(|device| DeviceRoom {
            memory: device.memory,
            busy: 0.0,
        });
        let mut packing = Self {
            problem,
            candidates: Candidates::new(problem),
            current: problem
                .current
                .iter()
                .map(|replica| (replica.model, replica.device))
                .collect(),
            reserved: BTreeMap::new(),
            rooms: rooms.collect(),
            equal_devices: EqualDevices::default(),
            possible_replicas,
            placed: BTreeMap::new(),
            unserved: problem
                .models
                .iter()
                .map(|model| model.rate.get())
                .collect(),
        };
        for replica in &problem.current {
            packing.reserve(replica);
        }
        packing.group_equal_devices();
        packing
    }

    /// Reserves the memory of a running replica, if the replica can stay as it is.
    fn reserve(&mut self, replica: &PlannedReplica) {
        let PlannedReplica {
            model,
            device,
            batch_size,
            ..
        } = *replica;
        if model.0 >= self.problem.models.len() || device.0 >= self.problem.devices.len() {
            return;
        }
        let sizes = self.candidates.on_device(model, device);
        let unchanged = sizes
            .iter()
            .find(|candidate| candidate.batch_size == batch_size);
        let room = &mut self.rooms[device.0].memory;
        if let Some(memory) = unchanged.and_then(|candidate| candidate.memory)
            && let Entry::Vacant(vacant) = self.reserved.entry((model, device))
            && memory <= *room
        {
            vacant.insert(memory);
            *room = room.saturating_sub(memory);
        }
    }

    /// Frees the memory of running replicas that the plan does not keep.
    fn release_reservations(&mut self) {
        for ((_, device), memory) in std::mem::take(&mut self.reserved) {
            let room = &mut self.rooms[device.0].memory;
            *room = room.saturating_add(memory);
        }
        self.group_equal_devices();
    }

    fn group_equal_devices(&mut self) {
        self.equal_devices = EqualDevices::default();
        for (device, _) in self.problem.devices() {
            self.equal_devices.insert(self.state(device), device);
        }
    }

    /// Returns the state of a device, which is all that matters to a model without a replica on it.
    fn state(&self, device: DeviceIndex) -> DeviceState {
        let room = &self.rooms[device.0];
        DeviceState::new(room.busy, room.memory, self.candidates.kind_index(device))
    }

    /// Places one replica of each model without one.
    fn place_first_replicas(
        &mut self,
        order: &[ModelIndex],
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        for &model in order {
            if self.is_placed(model) {
                continue;
            }
            budget.spend(self.equal_devices.len() as u64)?;
            let replica = self.choose(model);
            if let Some(replica) = replica.or_else(|| self.largest_capacity(model, 0.0)) {
                self.place(model, replica);
            }
        }
        Ok(())
    }

    /// Places replicas of each model until they carry its rate or none can be placed.
    fn place_further_replicas(
        &mut self,
        order: &[ModelIndex],
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        for &model in order {
            while !self.is_carried(model) {
                budget.spend(self.equal_devices.len() as u64)?;
                let Some(replica) = self.choose(model) else {
                    break;
                };
                self.place(model, replica);
            }
        }
        Ok(())
    }

    /// Returns the replica on the first device that carries all of the unserved rate, else the one that carries most of it, if it is worth
    /// its memory.
    fn choose(&self, model: ModelIndex) -> Option<PossibleReplica> {
        let unserved = self.unserved[model.0] * (1.0 - ROUNDING);
        let time = unserved
            / self
                .candidates
                .best_throughput(model)
                .max(f64::MIN_POSITIVE);
        let sufficient = (self.possible_replicas)(self, model, time)
            .into_iter()
            .filter(|replica| replica.capacity > 0.0 && replica.capacity >= unserved);
        let first =
            sufficient.min_by_key(|replica| (self.is_new(model, replica.device), replica.device));
        first.or_else(|| self.largest_capacity(model, MIN_REPLICA_TIME))
    }

    /// Returns the replica with the largest capacity among devices with at least the fraction `least` of their time left. Devices on
    /// which the model runs already come first.
    fn largest_capacity(&self, model: ModelIndex, least: f64) -> Option<PossibleReplica> {
        let enough =
            |replica: &PossibleReplica| replica.capacity >= least * replica.candidate.throughput;
        let busy = |replica: &PossibleReplica| self.rooms[replica.device.0].busy;
        let possible = (self.possible_replicas)(self, model, least).into_iter();
        possible.filter(enough).min_by(|a, b| {
            (self
                .is_new(model, a.device)
                .cmp(&self.is_new(model, b.device)))
            .then(b.capacity.total_cmp(&a.capacity))
            .then(busy(a).total_cmp(&busy(b)))
            .then(a.device.cmp(&b.device))
        })
    }

    /// Returns the possible replicas on each device where the model runs, and on the first of each set of other equal devices.
    fn possible_replicas(&self, model: ModelIndex, time: f64) -> Vec<PossibleReplica> {
        let other = |device: &DeviceIndex| {
            self.is_new(model, *device) && !self.placed.contains_key(&(model, *device))
        };
        // If no time is required, devices without free time count too.
        let busy = if time > 0.0 {
            PLANNED_TIME - time + ROUNDING
        } else {
            f64::INFINITY
        };
        let sets = self.equal_devices.up_to(busy);
        let others = sets.filter_map(|mut devices| devices.find(other));
        let own = self.current.range(all_devices(model));
        let own = own.map(|&(_, device)| device);
        let own = own.filter(|device| device.0 < self.rooms.len());
        own.chain(others)
            .filter_map(|device| self.possible_replica(model, device))
            .collect()
    }

    /// Returns the model's next replica on a device, if it can be placed there.
    fn possible_replica(&self, model: ModelIndex, device: DeviceIndex) -> Option<PossibleReplica> {
        if self.placed.contains_key(&(model, device)) {
            return None;
        }
        let candidate = self.candidate(model, device)?;
        let time = (PLANNED_TIME - self.rooms[device.0].busy).max(0.0);
        Some(PossibleReplica {
            device,
            candidate,
            capacity: time * candidate.throughput,
        })
    }

    /// Returns the batch size for a replica on a device, if its memory was measured and is free.
    fn candidate(&self, model: ModelIndex, device: DeviceIndex) -> Option<Candidate> {
        let own = self
            .reserved
            .get(&(model, device))
            .copied()
            .unwrap_or_default();
        let room = self.rooms[device.0].memory.saturating_add(own);
        let fits = |candidate: &&Candidate| candidate.memory.is_some_and(|memory| memory <= room);
        let fitting = || self.candidates.on_device(model, device).iter().filter(fits);
        let in_time = fitting().filter(|candidate| self.is_in_time(model, candidate));
        // `max_by` returns the last of equals: in reverse order that is the smallest one.
        let best = in_time
            .rev()
            .max_by(|a, b| a.throughput.total_cmp(&b.throughput));
        best.or_else(|| fitting().min_by_key(|candidate| candidate.latency))
            .copied()
    }

    /// Returns true if a request that just missed a batch is in time with the next one.
    fn is_in_time(&self, model: ModelIndex, candidate: &Candidate) -> bool {
        let model = &self.problem.models[model.0];
        let network = &self.problem.network;
        let bytes = model.payload.as_u64() as f64 * f64::from(candidate.batch_size);
        let transfer =
            Duration::try_from_secs_f64(bytes / network.bytes_per_second).unwrap_or(Duration::MAX);
        let two_batches = candidate.latency.saturating_mul(2);
        two_batches
            .saturating_add(network.base)
            .saturating_add(transfer)
            <= model.slo
    }

    fn place(&mut self, model: ModelIndex, replica: PossibleReplica) {
        let PossibleReplica {
            device,
            candidate,
            capacity,
        } = replica;
        let own = self.reserved.remove(&(model, device)).unwrap_or_default();
        let needed = candidate
            .memory
            .expect("only batch sizes of known memory are chosen");
        let carried = capacity.min(self.unserved[model.0]);
        self.equal_devices.remove(self.state(device), device);
        let room = &mut self.rooms[device.0];
        room.memory = room.memory.saturating_add(own).saturating_sub(needed);
        room.busy += carried / candidate.throughput;
        self.unserved[model.0] -= carried;
        self.equal_devices.insert(self.state(device), device);
        self.placed.insert((model, device), candidate);
    }

    /// Uses the time that was not planned for the rates that are still unserved.
    fn use_headroom(&mut self) {
        for (&(model, device), candidate) in &self.placed {
            let room = &mut self.rooms[device.0];
            let carried =
                self.unserved[model.0].min((1.0 - room.busy).max(0.0) * candidate.throughput);
            room.busy += carried / candidate.throughput;
            self.unserved[model.0] -= carried;
        }
    }

    fn into_plan(self) -> Plan {
        let models = self
            .problem
            .models()
            .map(|(model, _)| self.forecast(model))
            .collect();
        let replicas = self.placed.iter().map(|(&(model, device), candidate)| {
            PlannedReplica::new(model, device, candidate.batch_size)
        });
        Plan {
            policy: NAME,
            replicas: replicas.collect(),
            models,
        }
    }

    fn forecast(&self, model: ModelIndex) -> ModelForecast {
        let rate = self.problem.models[model.0].rate;
        let carried = (rate.get() - self.unserved[model.0]).clamp(0.0, rate.get());
        let goodput = RequestsPerSecond::new(carried).expect("between zero and a rate");
        let shortfall = if !self.is_placed(model) {
            Some(self.unplaced(model))
        } else if !self.is_carried(model) {
            Some(Shortfall::DeviceTime { goodput, rate })
        } else {
            None
        };
        let slowest = self
            .replicas(model)
            .map(|candidate| candidate.latency)
            .max();
        ModelForecast {
            goodput,
            latency: slowest.map(|latency| latency.saturating_mul(2)),
            shortfall,
        }
    }

    /// Returns the reason why a model has no replica.
    fn unplaced(&self, model: ModelIndex) -> Shortfall {
        if let Some(infeasible) = self.candidates.infeasible(model) {
            return infeasible;
        }
        let suitable = || {
            self.problem
                .devices()
                .filter(|&(device, _)| !self.candidates.on_device(model, device).is_empty())
        };
        let sizes = suitable().flat_map(|(device, _)| self.candidates.on_device(model, device));
        match sizes.filter_map(|candidate| candidate.memory).min() {
            None => Shortfall::UnknownMemory,
            Some(needed) => {
                let left = suitable()
                    .map(|(device, _)| self.rooms[device.0].memory)
                    .max()
                    .unwrap_or_default();
                Shortfall::NoMemoryLeft { needed, left }
            }
        }
    }

    fn is_running(&self, model: ModelIndex) -> bool {
        self.current.range(all_devices(model)).next().is_some()
    }

    /// Returns true if a replica on the device would have to be started.
    fn is_new(&self, model: ModelIndex, device: DeviceIndex) -> bool {
        !self.current.contains(&(model, device))
    }

    fn replicas(&self, model: ModelIndex) -> impl Iterator<Item = &Candidate> {
        let placed = self.placed.range(all_devices(model));
        placed.map(|(_, candidate)| candidate)
    }

    fn is_placed(&self, model: ModelIndex) -> bool {
        self.replicas(model).next().is_some()
    }

    fn is_carried(&self, model: ModelIndex) -> bool {
        self.unserved[model.0] <= self.problem.models[model.0].rate.get() * ROUNDING
    }
}

/// Returns the range of the keys of a model on any device.
fn all_devices(model: ModelIndex) -> RangeInclusive<(ModelIndex, DeviceIndex)> {
    (model, DeviceIndex(0))..=(model, DeviceIndex(usize::MAX))
}

#[cfg(test)]
mod tests;

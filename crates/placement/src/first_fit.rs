//! `first-fit`: packs replicas onto devices by memory and by time.
//!
//! A replica that carries `r` requests/s in full batches of `b` keeps its device busy for `r · latency(b) / b` of the time; the
//! replicas of a device may plan 85 % of it, and have its memory. A model's next replica goes to the first device, of those that
//! it is not on yet, that can carry all that is left of its rate; if there is none, to the one that can carry most. Every model
//! gets its first replica before any gets a second one. A model for which no device has time left still gets one replica where
//! memory allows: served in what the others leave is better than not at all.
//!
//! What runs moves as little as it can: its memory is set aside before anything is placed, models that run are placed before
//! newcomers (each in the problem's order), and a model prefers the devices that it is on already.
//!
//! The batch size is the one with the highest throughput of those in which a request that just missed a batch is still in time:
//! `2 · latency(b) + transfer(b) ≤ SLO`. Where there is none, the fastest within the SLO. Interference is not modelled.
//!
//! Predicted goodput is what the replicas carry, the last 15 % of a device's time included where a model needs them.
//!
//! Source: first fit, Johnson et al., "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974, here
//! with two resources, items that can be split, and a memory of what runs.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::RangeInclusive,
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, DeviceIndex, ModelForecast, ModelIndex, Plan, PlannedReplica, Problem,
    RequestsPerSecond,
};

use self::piles::Piles;
use crate::{
    Budget, PlaceError, Policy, PolicyOptions,
    candidates::{Candidate, Candidates},
};

mod piles;

pub(crate) const NAME: &str = "first-fit";

/// How much of a device's time is planned: a queue in front of a device that is always busy never ends.
const PLANNED_TIME: f64 = 0.85;

/// A further replica that would carry less than this of a device's time is not worth its memory.
const WORTH_A_REPLICA: f64 = 0.05;

/// Rates are quotients of rounded times: a rate is carried once less than this part of it is left.
const ROUNDING: f64 = 1e-9;

pub(crate) struct FirstFit;

impl Policy for FirstFit {
    fn place(
        &self,
        problem: &Problem,
        _options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        pack(problem, PILES, budget)
    }
}

/// Where a model's next replica could go, but for devices that have clearly less planned time left than given, as a part of all of
/// it. Of devices that differ in nothing but their index the first is enough.
type Choices = fn(&Packing<'_>, ModelIndex, f64) -> Vec<Choice>;

const PILES: Choices = |packing, model, time| packing.choices(model, time);

fn pack(problem: &Problem, choices: Choices, budget: &mut Budget<'_>) -> Result<Plan, PlaceError> {
    let mut packing = Packing::new(problem, choices);
    let mut order: Vec<ModelIndex> = problem.models().map(|(model, _)| model).collect();
    order.sort_by_key(|&model| !packing.runs(model));
    packing.place_first_replicas(&order, budget)?;
    packing.place_further_replicas(&order, budget)?;
    // What runs and was not taken over makes room for those that found none.
    packing.release();
    packing.place_first_replicas(&order, budget)?;
    packing.use_headroom();
    Ok(packing.into_plan())
}

/// A replica that could be put somewhere.
#[derive(Clone, Copy)]
struct Choice {
    device: DeviceIndex,
    candidate: Candidate,
    /// What it could carry in the time that may be planned there, in requests/s.
    capacity: f64,
}

struct Room {
    memory: ByteCount,
    /// Share of the device's time that is taken.
    busy: f64,
}

/// A plan in the making.
struct Packing<'a> {
    problem: &'a Problem,
    candidates: Candidates<'a>,
    /// Where what runs now is.
    current: BTreeSet<(ModelIndex, DeviceIndex)>,
    /// The memory that is set aside for it there.
    reserved: BTreeMap<(ModelIndex, DeviceIndex), ByteCount>,
    rooms: Vec<Room>,
    /// The devices by what is left of them, as long as something is placed.
    piles: Piles,
    choices: Choices,
    placed: BTreeMap<(ModelIndex, DeviceIndex), Candidate>,
    /// What is left of each model's rate.
    left: Vec<f64>,
}

impl<'a> Packing<'a> {
    fn new(problem: &'a Problem, choices: Choices) -> Self {
        let rooms = problem.devices.iter().map(|device| Room {
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
            piles: Piles::default(),
            choices,
            placed: BTreeMap::new(),
            left: problem
                .models
                .iter()
                .map(|model| model.rate.get())
                .collect(),
        };
        for replica in &problem.current {
            packing.reserve(replica);
        }
        packing.pile_up();
        packing
    }

    /// Sets the memory of a running replica aside for it, if it can go on as it is.
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
        let sizes = self.candidates.of(model, device);
        let as_it_is = sizes
            .iter()
            .find(|candidate| candidate.batch_size == batch_size);
        let room = &mut self.rooms[device.0].memory;
        if let Some(memory) = as_it_is.and_then(|candidate| candidate.memory)
            && let Entry::Vacant(vacant) = self.reserved.entry((model, device))
            && memory <= *room
        {
            vacant.insert(memory);
            *room = room.saturating_sub(memory);
        }
    }

    fn release(&mut self) {
        for ((_, device), memory) in std::mem::take(&mut self.reserved) {
            let room = &mut self.rooms[device.0].memory;
            *room = room.saturating_add(memory);
        }
        self.pile_up();
    }

    fn pile_up(&mut self) {
        self.piles = Piles::default();
        for (device, _) in self.problem.devices() {
            self.piles.add(self.look(device), device);
        }
    }

    /// What tells a device from others, for a model that is not on it.
    fn look(&self, device: DeviceIndex) -> piles::Look {
        let room = &self.rooms[device.0];
        piles::Look::new(room.busy, room.memory, self.candidates.kind(device))
    }

    fn place_first_replicas(
        &mut self,
        order: &[ModelIndex],
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        for &model in order {
            if self.is_placed(model) {
                continue;
            }
            budget.spend(self.piles.len() as u64)?;
            if let Some(choice) = self.choose(model).or_else(|| self.roomiest(model, 0.0)) {
                self.put(model, choice);
            }
        }
        Ok(())
    }

    fn place_further_replicas(
        &mut self,
        order: &[ModelIndex],
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        for &model in order {
            while !self.is_carried(model) {
                budget.spend(self.piles.len() as u64)?;
                let Some(choice) = self.choose(model) else {
                    break;
                };
                self.put(model, choice);
            }
        }
        Ok(())
    }

    /// The first device that carries all that is left, else the one that carries most of it, if that is worth a replica.
    fn choose(&self, model: ModelIndex) -> Option<Choice> {
        let left = self.left[model.0] * (1.0 - ROUNDING);
        let time = left
            / self
                .candidates
                .best_throughput(model)
                .max(f64::MIN_POSITIVE);
        let whole = (self.choices)(self, model, time)
            .into_iter()
            .filter(|choice| choice.capacity > 0.0 && choice.capacity >= left);
        let first = whole.min_by_key(|choice| (self.moves(model, choice.device), choice.device));
        first.or_else(|| self.roomiest(model, WORTH_A_REPLICA))
    }

    /// The device that carries most, if at least `least` of its time is left; those that the model is on already before others.
    fn roomiest(&self, model: ModelIndex, least: f64) -> Option<Choice> {
        let enough = |choice: &Choice| choice.capacity >= least * choice.candidate.throughput;
        let busy = |choice: &Choice| self.rooms[choice.device.0].busy;
        let choices = (self.choices)(self, model, least).into_iter();
        choices.filter(enough).min_by(|a, b| {
            (self
                .moves(model, a.device)
                .cmp(&self.moves(model, b.device)))
            .then(b.capacity.total_cmp(&a.capacity))
            .then(busy(a).total_cmp(&busy(b)))
            .then(a.device.cmp(&b.device))
        })
    }

    /// Where it is now, one by one, and the first of each pile of others.
    fn choices(&self, model: ModelIndex, time: f64) -> Vec<Choice> {
        let other = |device: &DeviceIndex| {
            self.moves(model, *device) && !self.placed.contains_key(&(model, *device))
        };
        // Where no time is asked for, a device without any is a choice too.
        let busy = if time > 0.0 {
            PLANNED_TIME - time + ROUNDING
        } else {
            f64::INFINITY
        };
        let piles = self.piles.up_to(busy);
        let others = piles.filter_map(|mut devices| devices.find(other));
        let own = of_model(model);
        let own = self.current.range(own).map(|&(_, device)| device);
        let own = own.filter(|device| device.0 < self.rooms.len());
        own.chain(others)
            .filter_map(|device| self.choice(model, device))
            .collect()
    }

    /// The model's next replica on a device, if it could go there.
    fn choice(&self, model: ModelIndex, device: DeviceIndex) -> Option<Choice> {
        if self.placed.contains_key(&(model, device)) {
            return None;
        }
        let candidate = self.candidate(model, device)?;
        let time = (PLANNED_TIME - self.rooms[device.0].busy).max(0.0);
        Some(Choice {
            device,
            candidate,
            capacity: time * candidate.throughput,
        })
    }

    /// The batch size for a replica on a device, if its memory is known and there.
    fn candidate(&self, model: ModelIndex, device: DeviceIndex) -> Option<Candidate> {
        let own = self
            .reserved
            .get(&(model, device))
            .copied()
            .unwrap_or_default();
        let room = self.rooms[device.0].memory.saturating_add(own);
        let fits = |candidate: &&Candidate| candidate.memory.is_some_and(|memory| memory <= room);
        let fitting = || self.candidates.of(model, device).iter().filter(fits);
        let prompt = fitting().filter(|candidate| self.is_prompt(model, candidate));
        // The smaller one of equals: it comes last in reverse order.
        let best = prompt
            .rev()
            .max_by(|a, b| a.throughput.total_cmp(&b.throughput));
        best.or_else(|| fitting().min_by_key(|candidate| candidate.latency))
            .copied()
    }

    /// Whether a request that just missed a batch is still in time with the next one.
    fn is_prompt(&self, model: ModelIndex, candidate: &Candidate) -> bool {
        let model = &self.problem.models[model.0];
        let network = &self.problem.network;
        let bytes = model.payload.as_u64() as f64 * f64::from(candidate.batch_size);
        let transfer =
            Duration::try_from_secs_f64(bytes / network.bytes_per_second).unwrap_or(Duration::MAX);
        let computing = candidate.latency.saturating_mul(2);
        computing
            .saturating_add(network.base)
            .saturating_add(transfer)
            <= model.slo
    }

    fn put(&mut self, model: ModelIndex, choice: Choice) {
        let Choice {
            device,
            candidate,
            capacity,
        } = choice;
        let own = self.reserved.remove(&(model, device)).unwrap_or_default();
        let needed = candidate
            .memory
            .expect("only batch sizes of known memory are chosen");
        let carried = capacity.min(self.left[model.0]);
        self.piles.remove(self.look(device), device);
        let room = &mut self.rooms[device.0];
        room.memory = room.memory.saturating_add(own).saturating_sub(needed);
        room.busy += carried / candidate.throughput;
        self.left[model.0] -= carried;
        self.piles.add(self.look(device), device);
        self.placed.insert((model, device), candidate);
    }

    /// Has replicas carry what their models still lack in time that was kept free.
    fn use_headroom(&mut self) {
        for (&(model, device), candidate) in &self.placed {
            let room = &mut self.rooms[device.0];
            let carried = self.left[model.0].min((1.0 - room.busy).max(0.0) * candidate.throughput);
            room.busy += carried / candidate.throughput;
            self.left[model.0] -= carried;
        }
    }

    fn into_plan(self) -> Plan {
        let models = self
            .problem
            .models()
            .map(|(model, _)| self.forecast(model))
            .collect();
        let replicas = self
            .placed
            .iter()
            .map(|(&(model, device), candidate)| PlannedReplica {
                model,
                device,
                batch_size: candidate.batch_size,
                compute_share: None,
                duty_cycle: None,
            });
        Plan {
            policy: NAME,
            replicas: replicas.collect(),
            models,
        }
    }

    fn forecast(&self, model: ModelIndex) -> ModelForecast {
        let rate = self.problem.models[model.0].rate.get();
        let carried = (rate - self.left[model.0]).clamp(0.0, rate);
        let shortfall = if !self.is_placed(model) {
            Some(self.why_nowhere(model))
        } else if !self.is_carried(model) {
            Some(format!(
                "the devices have time for {carried:.1} of {rate} requests/s"
            ))
        } else {
            None
        };
        let slowest = self
            .replicas(model)
            .map(|candidate| candidate.latency)
            .max();
        ModelForecast {
            goodput: RequestsPerSecond::new(carried).expect("between zero and a rate"),
            latency: slowest.map(|latency| latency.saturating_mul(2)),
            shortfall,
        }
    }

    fn why_nowhere(&self, model: ModelIndex) -> String {
        if let Some(unfit) = self.candidates.unfit(model) {
            return unfit;
        }
        let suitable = || {
            self.problem
                .devices()
                .filter(|&(device, _)| !self.candidates.of(model, device).is_empty())
        };
        let sizes = suitable().flat_map(|(device, _)| self.candidates.of(model, device));
        match sizes.filter_map(|candidate| candidate.memory).min() {
            None => "its profiles do not say how much memory it needs".to_owned(),
            Some(least) => {
                let most = suitable()
                    .map(|(device, _)| self.rooms[device.0].memory)
                    .max()
                    .unwrap_or_default();
                format!(
                    "it needs {least} of memory, and no suitable device has more than {most} left"
                )
            }
        }
    }

    fn runs(&self, model: ModelIndex) -> bool {
        self.current.range(of_model(model)).next().is_some()
    }

    /// Whether a replica there would be one more to start.
    fn moves(&self, model: ModelIndex, device: DeviceIndex) -> bool {
        !self.current.contains(&(model, device))
    }

    fn replicas(&self, model: ModelIndex) -> impl Iterator<Item = &Candidate> {
        let of_model = self.placed.range(of_model(model));
        of_model.map(|(_, candidate)| candidate)
    }

    fn is_placed(&self, model: ModelIndex) -> bool {
        self.replicas(model).next().is_some()
    }

    fn is_carried(&self, model: ModelIndex) -> bool {
        self.left[model.0] <= self.problem.models[model.0].rate.get() * ROUNDING
    }
}

/// The model on every device.
fn of_model(model: ModelIndex) -> RangeInclusive<(ModelIndex, DeviceIndex)> {
    (model, DeviceIndex(0))..=(model, DeviceIndex(usize::MAX))
}

#[cfg(test)]
mod tests;

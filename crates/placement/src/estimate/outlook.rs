//! A placement with the state that it settles into.
//!
//! How busy a replica is depends on how its device's other replicas slow it, which depends on how busy they are, which depends on
//! what comes to them, which depends on what the replicas of their models elsewhere carry. [`Outlook::settle`] goes round that circle
//! from nobody being busy upwards until it stands still, for whole placements; a change of one device settles where it acts first
//! ([`Outlook::settle_around`]), which is what a search needs. How many requests are in time then is no part of the circle, and is
//! worked out behind it.

use packhorse_cluster::{ComputeShare, PlannedReplica};

use super::{
    fate::{Fate, Passage, come_to, crowded_rows},
    service::Service,
    sharing::{Company, Neighbour, Pace},
    world::World,
};

/// Rounds of the circle for a whole placement.
const SWEEPS: usize = 12;
/// Batches that a replica holds at a time: one that it computes, one on its way.
const CREDITS: f64 = 2.0;
/// They do not change places without loss where the way is longer than the computing.
const SLIP: f64 = 1.15;
/// Rounds for a change of one device.
const ROUNDS: usize = 3;

/// A replica on a device, and how it fares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) device: usize,
    pub(crate) model: usize,
    pub(crate) batch: u32,
    pub(crate) share: Option<ComputeShare>,
    /// Requests per second that come to it.
    pub(crate) offered: f64,
    /// Mean rows of its batches.
    pub(crate) rows: f64,
    /// The part of the time in which it computes.
    pub(crate) busy: f64,
    /// What it uses of the device then, in percent.
    pub(crate) utilization: f64,
    /// Rows of its batches behind a backlog: as many as are in time then, at most `batch`.
    pub(crate) most_rows: f64,
    /// What batches of so many rows use.
    pub(crate) full_utilization: f64,
    /// Rows of its batches in a burst.
    pub(crate) burst_rows: f64,
    /// What those use.
    pub(crate) burst_utilization: f64,
    /// How fast it progresses in a burst, when all the model's replicas are busy.
    pub(crate) burst_pace: Pace,
    /// How fast it progresses beside its neighbours.
    pub(crate) pace: Pace,
    /// Requests per second of batches of the most rows beside them.
    pub(crate) capacity: f64,
    /// How long a full batch takes beside them, in seconds.
    pub(crate) full_seconds: f64,
    /// How its requests fare if no queue forms.
    pub(crate) passage: Passage,
    /// It does not run yet.
    pub(crate) fresh: bool,
}

/// Replicas on devices, ordered by device, with what becomes of the models.
#[derive(Debug)]
pub(crate) struct Outlook<'w, 'a> {
    pub(crate) world: &'w World<'a>,
    slots: Vec<Slot>,
    /// By model.
    fates: Vec<Fate>,
    company: Company,
    neighbours: Vec<Neighbour>,
    touched: Vec<usize>,
    /// By model, while it settles: where its replicas stand among all.
    places: Vec<Vec<usize>>,
}

impl<'w, 'a> Outlook<'w, 'a> {
    /// Without any replica.
    pub(crate) fn new(world: &'w World<'a>) -> Self {
        Self {
            world,
            slots: Vec::new(),
            fates: world.demands.iter().map(|_| Fate::UNSERVED).collect(),
            company: Company::default(),
            neighbours: Vec::new(),
            touched: Vec::new(),
            places: world.demands.iter().map(|_| Vec::new()).collect(),
        }
    }

    /// Of replicas that the problem has profiles for, settled. Others are left out.
    pub(crate) fn of(world: &'w World<'a>, replicas: &[PlannedReplica]) -> Self {
        let mut outlook = Self::new(world);
        // As slots stand, so that each is put behind all that are there.
        let mut by_device: Vec<&PlannedReplica> = replicas.iter().collect();
        by_device.sort_by_key(|replica| replica.device);
        for replica in by_device {
            let (device, model) = (replica.device.0, replica.model.0);
            if world
                .service(model, device)
                .is_some_and(|service| replica.batch_size <= service.largest())
            {
                outlook.put(device, model, replica.batch_size, replica.compute_share);
            }
        }
        outlook.settle();
        outlook
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(crate) fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// Where a device's replicas stand among all.
    pub(crate) fn range(&self, device: usize) -> std::ops::Range<usize> {
        let start = self.slots.partition_point(|slot| slot.device < device);
        let length = self.slots[start..].partition_point(|slot| slot.device == device);
        start..start + length
    }

    pub(crate) fn on(&self, device: usize) -> &[Slot] {
        &self.slots[self.range(device)]
    }

    /// Adds a replica, behind the others of its device; the model must have a profile there.
    pub(crate) fn put(
        &mut self,
        device: usize,
        model: usize,
        batch: u32,
        share: Option<ComputeShare>,
    ) {
        let alike = self
            .on(device)
            .iter()
            .filter(|slot| slot.is_like(model, batch, share));
        let fresh = alike.count() >= self.world.running(device, model, batch, share);
        let slot = self.idle(device, model, batch, share, fresh);
        let place = self.range(device).end;
        self.slots.insert(place, slot);
        self.settle_device(device);
    }

    /// A replica to which nothing has come yet.
    fn idle(
        &self,
        device: usize,
        model: usize,
        batch: u32,
        share: Option<ComputeShare>,
        fresh: bool,
    ) -> Slot {
        let service = self
            .world
            .service(model, device)
            .expect("only what has a profile is put");
        let full = f64::from(batch);
        Slot {
            device,
            model,
            batch,
            share,
            offered: 0.0,
            rows: full,
            most_rows: full,
            burst_rows: full,
            burst_utilization: service.utilization(full, share),
            burst_pace: Pace::ALONE,
            busy: 0.0,
            utilization: service.utilization(full, share),
            full_utilization: service.utilization(full, share),
            pace: Pace::ALONE,
            capacity: full / service.seconds(full, share),
            full_seconds: service.seconds(full, share),
            passage: Passage::default(),
            fresh,
        }
    }

    /// Takes a replica away, by its place among all.
    pub(crate) fn take(&mut self, place: usize) {
        let Slot {
            device,
            model,
            batch,
            share,
            fresh,
            ..
        } = self.slots.remove(place);
        let range = self.range(device);
        // Of equal replicas, some of which run, the running ones are kept.
        let twin = self.slots[range]
            .iter_mut()
            .find(|slot| slot.fresh && slot.is_like(model, batch, share));
        if let Some(twin) = twin {
            twin.fresh = fresh;
        }
    }

    /// Becomes what another outlook of the same world is.
    pub(crate) fn copy(&mut self, other: &Self) {
        self.slots.clone_from(&other.slots);
        self.fates.clone_from(&other.fates);
    }

    /// Settles everything, from nobody being busy upwards, whatever was before: where there is more than one fixed point, it is the
    /// same one for the same replicas.
    pub(crate) fn settle(&mut self) {
        for place in 0..self.slots.len() {
            let Slot {
                device,
                model,
                batch,
                share,
                fresh,
                ..
            } = self.slots[place];
            self.slots[place] = self.idle(device, model, batch, share, fresh);
        }
        self.find_places();
        for _ in 0..SWEEPS {
            self.share_out_all();
            let mut device = 0;
            while let Some(next) = self.slots.get(self.range(device).start) {
                device = next.device;
                self.settle_device(device);
                device += 1;
            }
        }
        self.share_out_all();
        (0..self.fates.len()).for_each(|model| self.judge(model, None));
    }

    /// Settles a device with the models that have replicas there, or had: `before`. What else those models' replicas do elsewhere
    /// stays as it is.
    pub(crate) fn settle_around(&mut self, device: usize, before: &[usize]) {
        let mut models = std::mem::take(&mut self.touched);
        models.clear();
        models.extend(
            self.on(device)
                .iter()
                .map(|slot| slot.model)
                .chain(before.iter().copied()),
        );
        models.sort_unstable();
        models.dedup();
        self.find_places();
        for _ in 0..ROUNDS {
            for &model in &models {
                self.share_out(model, Some(device));
            }
            self.settle_device(device);
        }
        for &model in &models {
            self.share_out(model, Some(device));
            self.judge(model, Some(device));
        }
        self.touched = models;
    }

    /// For what follows, while no replica is put or taken.
    fn find_places(&mut self) {
        self.places.iter_mut().for_each(Vec::clear);
        for (place, slot) in self.slots.iter().enumerate() {
            self.places[slot.model].push(place);
        }
    }

    fn share_out_all(&mut self) {
        (0..self.fates.len()).for_each(|model| self.share_out(model, None));
    }

    /// How fast a device's replicas progress, as busy as they are.
    fn settle_device(&mut self, device: usize) {
        let range = self.range(device);
        for place in range.clone() {
            let subject = self.slots[place].model;
            let demand = &self.world.demands[subject];
            let of_subject = |slot: &Slot| slot.model == subject;
            self.gather(place, &range, |slot| (slot.busy, slot.utilization));
            let pace = self.company.pace(self.slots[place].utilization);
            let mut burst_pace = pace;
            if demand.burst() > 1.0 {
                self.gather(place, &range, |slot| {
                    if of_subject(slot) {
                        (1.0, slot.burst_utilization)
                    } else {
                        (slot.busy, slot.utilization)
                    }
                });
                burst_pace = self.company.pace(self.slots[place].burst_utilization);
            }
            // A model whose requests wait has all its replicas busy.
            self.gather(place, &range, |slot| {
                let load = slot.offered / slot.capacity;
                let busy = if of_subject(slot) { 1.0 } else { load.min(1.0) };
                (busy, slot.full_utilization)
            });
            let slot = &mut self.slots[place];
            let service = service(self.world, slot);
            slot.pace = pace;
            slot.burst_pace = burst_pace;
            let full = self.company.pace(slot.full_utilization).mean;
            slot.full_seconds = service.seconds(f64::from(slot.batch), slot.share) / full;
            let rows = crowded_rows(slot, service, demand, full);
            // Fewer rows leave the neighbours more, who then have more rows: half the way, or they swing.
            slot.most_rows = f64::midpoint(slot.most_rows, rows);
            slot.full_utilization = service.utilization(slot.most_rows, slot.share);
            let seconds = service.seconds(slot.most_rows, slot.share) / full;
            let way = demand.way + demand.way_per_row * slot.most_rows;
            slot.capacity = slot.most_rows / seconds.max((seconds + way) * SLIP / CREDITS);
        }
    }

    /// Gathers the company of a replica, each neighbour as often busy, and then using as much, as `active` says.
    fn gather(
        &mut self,
        place: usize,
        range: &std::ops::Range<usize>,
        active: impl Fn(&Slot) -> (f64, f64),
    ) {
        let subject = &self.slots[place];
        let neighbour = |other: usize| {
            let slot = &self.slots[other];
            let (busy, utilization) = active(slot);
            let sensitivity = self
                .world
                .sensitivity(slot.device, subject.model, slot.model);
            Neighbour {
                busy,
                utilization,
                extra: sensitivity * utilization / 100.0,
            }
        };
        let others = range.clone().filter(|&other| other != place);
        self.neighbours.clear();
        self.neighbours.extend(others.map(neighbour));
        self.company.gather(&mut self.neighbours);
    }

    /// Shares out what comes to a model among its replicas, as fast as they progress; only on one device, if one is given.
    fn share_out(&mut self, model: usize, only: Option<usize>) {
        let demand = &self.world.demands[model];
        let places = &self.places[model];
        let capacity: f64 = places.iter().map(|&place| self.slots[place].capacity).sum();
        for &place in places {
            let slot = &mut self.slots[place];
            if only.is_none_or(|only| only == slot.device) {
                let offered = demand.rate * slot.capacity / capacity;
                come_to(slot, service(self.world, slot), demand, offered);
            }
        }
    }

    /// What becomes of what comes to a model's replicas; where only one device has changed, the others' requests fare as before.
    fn judge(&mut self, model: usize, only: Option<usize>) {
        let demand = &self.world.demands[model];
        let places = &self.places[model];
        for &place in places {
            let slot = &mut self.slots[place];
            if only.is_none_or(|only| only == slot.device) {
                let service = service(self.world, slot);
                slot.passage = Passage::of(slot, service, demand, places.len() as f64);
            }
        }
        self.fates[model] = Fate::of(demand, places.iter().map(|&place| &self.slots[place]));
    }
}

fn service<'w>(world: &'w World<'_>, slot: &Slot) -> &'w Service {
    let service = world.service(slot.model, slot.device);
    service.expect("only what has a profile is put")
}

impl Slot {
    pub(crate) fn is_like(&self, model: usize, batch: u32, share: Option<ComputeShare>) -> bool {
        (self.model, self.batch, self.share) == (model, batch, share)
    }
}

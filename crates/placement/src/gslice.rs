//! `gslice`: a loop tunes the batch size and the compute share of every model until latency and throughput have little slack. If the
//! shares add up to more than the cluster has, each model gets a max-min fair part.
//!
//! `T = SLO / 2` is the limit of a batch's time, the other half being the time until a batch is full. `L(b, s)` is the time of a batch
//! under a share of `s` percent, and `r` the rate of a model.
//!
//! 1. *Tuning* starts from a batch of 1 and a share of 30 %. It takes up to five rounds of up to five steps of the batch size and one
//!    step of the share, until nothing changes, then up to five more steps of the batch size. A batch stays if the slack `T − L` is
//!    between 0 and 10 % of `T`; otherwise it becomes `ceil(b + b · (T − L) / L)`. A share stays if that slack and `b / L − r`, as a part
//!    of `r`, are both between 0 and 10 %; otherwise it changes by itself times the larger of `|T − L| / L` and `|b / L − r| / (b / L)`:
//!    it grows if either slack is negative, and shrinks otherwise.
//! 2. *Fair split.* `G` devices have `G · 100 %`. A model that wants less than an equal part of what is left gets what it wants; the
//!    others share the rest equally and tune their batch size to their part.
//! 3. *Placement.* The largest share is placed first, on the device that then has the least left among those with enough share and
//!    memory.
//!
//! The predicted goodput is `min(r, Σ b / L)`. Interference is not modelled, as in the original.
//!
//! Source: Dhakal et al., "GSLICE: controlled spatial sharing of GPUs for a scalable inference platform", SoCC 2020. We found no release
//! by its authors: step 1 is the reimplementation in iGniter's published code (icloud-ecnu/igniter, gslice.py), step 2 the one in
//! GPUlet's (casys-kaist/glet, self-tuning).
//!
//! Choices and deviations from both:
//! - The loop and its thresholds are iGniter's. glet's has 5 % and uses the larger slack ratio as the change of the share.
//! - The loop may end late or short of its rate, because it oscillates where a step is larger than the slack, or at a fraction of a
//!   percent. Shares are rounded up to whole percents; a model that is late or short there gets the smallest share with which a batch
//!   within `T` carries its rate. A deployed loop would continue instead.
//! - The latency under a share is measured if the profile has rows for shares; otherwise it follows the rule of
//!   `packhorse_contention`. The published loops measure.
//! - A rate above the throughput of a whole device gets whole devices with the largest batch within `T`, and the loop tunes the rest. The
//!   published loops stop at 100 %.
//! - The fair split rounds down to whole percents, because glet's next larger partition could exceed the cluster. A model whose part
//!   computes no batch in time returns it, the model that wants most first, and the others split again.
//! - In iGniter's version shares need not fit on devices, and glet's has partitions. Here a share that fits on no device is reduced to
//!   the largest part that is left. Memory is a limit, and no device has two replicas of a model.
//! - Batches are at most the largest profiled one, not 32.
//! - Devices of several kinds: a model is placed on the kind with the most requests per cost (per device if no cost is given).
//! - Models without expected requests come last, with the smallest share that computes one request in time.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    ByteCount, ComputeShare, Device, DeviceIndex, ModelIndex, Plan, PlannedReplica, Problem,
    Profile, Shortfall,
};

use self::tuning::{OperatingPoint, TuningTarget};
use crate::{
    Budget, PlaceError, PlanningOptions, Policy,
    candidates::{Candidates, largest_batch},
    device_classes::{DeviceClass, device_classes},
    forecast::forecast,
    share_latency::ShareLatency,
    tolerance::CARRIED,
};

mod fairness;
mod tuning;

pub(crate) const NAME: &str = "gslice";

/// The share of a whole device, in percent.
const WHOLE: f64 = 100.0;

pub(crate) struct Gslice;

impl Policy for Gslice {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let classes = device_classes(problem);
        let mut tuned: Vec<Result<TunedModel<'_>, Shortfall>> = Vec::new();
        let candidates = Candidates::new(problem);
        for (model, _) in problem.models() {
            budget.spend(problem.devices.len() as u64)?;
            let infeasible = candidates.infeasible(model);
            tuned.push(
                infeasible.map_or_else(|| TunedModel::new(problem, options, &classes, model), Err),
            );
        }
        let mut packing = Packing::new(problem);
        for (number, class) in classes.iter().enumerate() {
            let on_class = || {
                let models = tuned.iter().filter_map(|tuned| tuned.as_ref().ok());
                models.filter(|tuned| tuned.class == number)
            };
            let busy: Vec<&TunedModel<'_>> = on_class().filter(|tuned| tuned.rate > 0.0).collect();
            let mut slices = fair_slices(&busy, class, budget)?;
            let idle = on_class().filter(|tuned| tuned.rate == 0.0);
            slices.extend(idle.filter_map(|tuned| Some(tuned.slice(tuned.remainder?))));
            packing.select_class(class);
            for slice in slices {
                budget.spend(1)?;
                packing.place(&slice);
            }
        }
        Ok(packing.into_plan(&tuned))
    }
}

/// A model with the result of the loop.
struct TunedModel<'a> {
    model: ModelIndex,
    class: usize,
    profile: &'a Profile,
    latencies: ShareLatency<'a>,
    /// The rate in requests per second.
    rate: f64,
    /// The limit `T`, in seconds.
    limit: f64,
    /// The largest batch size.
    max_batch: u32,
    /// The number of whole devices that the rate fills.
    full_devices: usize,
    /// The batch size on a whole device.
    whole: OperatingPoint,
    /// The operating point for the rest of the rate.
    remainder: Option<OperatingPoint>,
}

/// A share of a device for a model.
struct Slice<'t> {
    tuned: &'t TunedModel<'t>,
    point: OperatingPoint,
}

impl<'a> TunedModel<'a> {
    /// Tunes a model on the class with the most requests per cost.
    ///
    /// # Errors
    /// If no batch is in time and fits the memory.
    fn new(
        problem: &'a Problem,
        options: &PlanningOptions,
        classes: &[DeviceClass<'a>],
        model: ModelIndex,
    ) -> Result<Self, Shortfall> {
        let numbered = classes.iter().enumerate();
        let possible = numbered.filter_map(|(number, class)| {
            let alone = Self::untuned(problem, options, number, class, model)?;
            let per_cost = alone.target(alone.rate).throughput(alone.whole) / class.cost;
            Some((per_cost, alone))
        });
        // `max_by` returns the last of equals: in reverse order that is the first one.
        let possible: Vec<_> = possible.collect();
        let best = possible
            .into_iter()
            .rev()
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, mut tuned)) = best else {
            let slo = problem.models[model.0].slo;
            return Err(Shortfall::NoBatchWithinHalfSlo { slo });
        };
        tuned.tune(classes[tuned.class].devices.len());
        Ok(tuned)
    }

    /// Returns the model before the loop; `None` if no batch on a whole device of the class is in time and fits the memory.
    fn untuned(
        problem: &'a Problem,
        options: &PlanningOptions,
        number: usize,
        class: &DeviceClass<'_>,
        model: ModelIndex,
    ) -> Option<Self> {
        let demanded = &problem.models[model.0];
        let profile = problem.profiles.get(&demanded.id, class.kind)?;
        let fits = |batch: &u32| class.replica_memory(profile, *batch) <= class.memory;
        let sizes = 1..=largest_batch(profile, demanded);
        let max_batch = sizes.rev().find(fits)?;
        let mut tuned = Self {
            model,
            class: number,
            profile,
            latencies: ShareLatency::new(options, &demanded.id, class.kind, profile),
            rate: demanded.rate.get(),
            limit: demanded.slo.as_secs_f64() / 2.0,
            max_batch,
            full_devices: 0,
            whole: OperatingPoint {
                batch: 1,
                share: WHOLE,
            },
            remainder: None,
        };
        let largest = tuned.target(tuned.rate).largest_batch(max_batch, WHOLE)?;
        tuned.whole.batch = largest;
        Some(tuned)
    }

    /// Returns the target of the loop for a rate.
    fn target(&self, rate: f64) -> TuningTarget<impl Fn(u32, f64) -> f64> {
        TuningTarget {
            limit: self.limit,
            rate,
            max_batch: self.max_batch,
            latency: |batch, share| self.latencies.seconds(batch, share),
        }
    }

    /// Gives the model as many whole devices as its rate fills, at most `devices`, and runs the loop for the rest.
    fn tune(&mut self, devices: usize) {
        let throughput = self.target(self.rate).throughput(self.whole);
        let full = (self.rate / throughput / CARRIED).floor();
        self.full_devices = full.min(devices as f64) as usize;
        let rest = self.rate - self.full_devices as f64 * throughput;
        if rest > self.rate * (1.0 - CARRIED) && self.full_devices < devices {
            let target = self.target(rest);
            let remainder = target.settle(target.tune());
            drop(target);
            self.remainder = remainder;
        }
        if self.rate == 0.0 {
            let smallest = OperatingPoint {
                batch: 1,
                share: 1.0,
            };
            let remainder = self.target(0.0).settle(smallest);
            self.remainder = remainder;
        }
    }

    /// Returns the sum of the shares that the model wants, in percent of a device.
    fn wanted(&self) -> f64 {
        let remainder = self.remainder.map_or(0.0, |point| point.share);
        self.full_devices as f64 * WHOLE + remainder
    }

    fn slice(&self, point: OperatingPoint) -> Slice<'_> {
        Slice { tuned: self, point }
    }

    /// Returns the slices of a granted share: whole devices, and the rest if it computes a batch in time.
    fn slices(&self, granted: f64) -> impl Iterator<Item = Slice<'_>> {
        let full = ((granted / WHOLE) as usize).min(self.full_devices);
        let share = (granted - full as f64 * WHOLE).min(WHOLE).floor();
        let rest = match self.remainder {
            Some(point) if full == self.full_devices && share >= point.share => Some(point),
            _ if share >= 1.0 => self.target(self.rate).under(share),
            _ => None,
        };
        let whole = std::iter::repeat_n(self.whole, full);
        whole.chain(rest).map(|point| self.slice(point))
    }
}

/// Divides a class of devices fairly among models, and returns their slices, the largest first.
fn fair_slices<'t>(
    models: &[&'t TunedModel<'t>],
    class: &DeviceClass<'_>,
    budget: &mut Budget<'_>,
) -> Result<Vec<Slice<'t>>, PlaceError> {
    let mut models = models.to_vec();
    loop {
        budget.spend(models.len() as u64)?;
        let wanted: Vec<f64> = models.iter().map(|tuned| tuned.wanted()).collect();
        let granted = fairness::max_min(&wanted, class.devices.len() as f64 * WHOLE);
        let is_useless = |&index: &usize| {
            let granted: f64 = granted[index];
            granted < wanted[index] && models[index].slices(granted).next().is_none()
        };
        let useless = (0..models.len()).filter(is_useless);
        let Some(largest) = useless.max_by(|&a, &b| wanted[a].total_cmp(&wanted[b])) else {
            let with_grants = models.iter().zip(granted);
            let mut slices: Vec<Slice<'t>> = with_grants
                .flat_map(|(tuned, granted)| tuned.slices(granted))
                .collect();
            slices.sort_by(|a, b| b.point.share.total_cmp(&a.point.share));
            return Ok(slices);
        };
        models.remove(largest);
    }
}

/// The remaining resources of a device.
struct DeviceRoom {
    /// The free share, in whole percents.
    share: u8,
    /// The free memory.
    memory: ByteCount,
    /// The models with a replica on the device.
    hosts: BTreeSet<ModelIndex>,
}

/// A plan in progress.
struct Packing<'a> {
    problem: &'a Problem,
    /// The remaining resources of each device.
    rooms: Vec<DeviceRoom>,
    /// The free share of each device of the selected class, with the device.
    by_share: BTreeSet<(u8, DeviceIndex)>,
    replicas: Vec<PlannedReplica>,
    /// The number of replicas of each model, and the rate that they carry, in requests per second.
    carried: BTreeMap<ModelIndex, (usize, f64)>,
}

impl<'a> Packing<'a> {
    fn new(problem: &'a Problem) -> Self {
        let room = |device: &Device| DeviceRoom {
            share: 100,
            memory: device.memory,
            hosts: BTreeSet::new(),
        };
        Self {
            problem,
            rooms: problem.devices.iter().map(room).collect(),
            by_share: BTreeSet::new(),
            replicas: Vec::new(),
            carried: BTreeMap::new(),
        }
    }

    /// Selects the class of the next slices.
    fn select_class(&mut self, class: &DeviceClass<'_>) {
        self.by_share = class.devices.iter().map(|device| (100, *device)).collect();
    }

    /// Places a slice on the device that then has the least left, or a smaller slice if it fits on no device.
    fn place(&mut self, slice: &Slice<'_>) {
        let Slice { tuned, point } = *slice;
        let share = point.share as u8;
        let fitting = self.by_share.range((share, DeviceIndex(0))..);
        let found = fitting
            .map(|(_, device)| *device)
            .find(|device| self.can_host(*device, tuned, point.batch));
        if let Some(device) = found {
            self.add_replica(device, tuned, point);
        } else if let Some((device, point)) = self.reduced(tuned, share) {
            self.add_replica(device, tuned, point);
        }
    }

    /// Returns the device with the largest free share below `share` that computes a batch in time, and the operating point there.
    fn reduced(&self, tuned: &TunedModel<'_>, share: u8) -> Option<(DeviceIndex, OperatingPoint)> {
        let mut tried: Option<(u8, Option<OperatingPoint>)> = None;
        let smaller = self.by_share.range(..(share, DeviceIndex(0))).rev();
        for &(left, device) in smaller.take_while(|(left, _)| *left > 0) {
            let point = match tried {
                Some((same, point)) if same == left => point,
                _ => tuned.target(tuned.rate).under(f64::from(left)),
            };
            tried = Some((left, point));
            let Some(point) = point else {
                continue;
            };
            if self.can_host(device, tuned, point.batch) {
                return Some((device, point));
            }
        }
        None
    }

    fn can_host(&self, device: DeviceIndex, tuned: &TunedModel<'_>, batch: u32) -> bool {
        let room = &self.rooms[device.0];
        !room.hosts.contains(&tuned.model) && self.memory(device, tuned, batch) <= room.memory
    }

    fn memory(&self, device: DeviceIndex, tuned: &TunedModel<'_>, batch: u32) -> ByteCount {
        let whole = self.problem.devices[device.0].memory;
        tuned.profile.memory(batch).unwrap_or(whole)
    }

    fn add_replica(&mut self, device: DeviceIndex, tuned: &TunedModel<'_>, point: OperatingPoint) {
        let memory = self.memory(device, tuned, point.batch);
        let room = &mut self.rooms[device.0];
        self.by_share.remove(&(room.share, device));
        room.share -= point.share as u8;
        room.memory = room.memory.saturating_sub(memory);
        room.hosts.insert(tuned.model);
        self.by_share.insert((room.share, device));
        let (replicas, carried) = self.carried.entry(tuned.model).or_default();
        *replicas += 1;
        *carried += tuned.target(tuned.rate).throughput(point);
        let share = ComputeShare::new(point.share).expect("between 1 and 100 percent");
        self.replicas.push(PlannedReplica {
            model: tuned.model,
            device,
            batch_size: point.batch,
            // A whole device needs no limit.
            compute_share: (point.share < WHOLE).then_some(share),
            duty_cycle: None,
            memory: None,
            backbone: None,
            pool: None,
        });
    }

    fn into_plan(mut self, tuned: &[Result<TunedModel<'_>, Shortfall>]) -> Plan {
        self.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        let mut plan = Plan::empty(NAME, self.problem, &Shortfall::NoDeviceLeft);
        for ((model, demanded), tuned) in self.problem.models().zip(tuned) {
            let rate = demanded.rate;
            let (replicas, carried) = self.carried.get(&model).copied().unwrap_or_default();
            let infeasible = tuned.as_ref().err();
            plan.models[model.0] = forecast(
                rate,
                replicas,
                carried,
                || infeasible.cloned().unwrap_or(Shortfall::NoComputeShareLeft),
                |goodput| Shortfall::ShareThroughput { goodput, rate },
            );
        }
        plan.replicas = self.replicas;
        plan
    }
}

//! `gslice`: a loop tunes every model's batch size and compute share until latency and throughput have little slack; where the
//! shares are more than the cluster has, everybody gets a max-min fair part.
//!
//! With `T = SLO / 2`, the other half being the time until a batch is full, `L(b, s)` the time of a batch under a share of `s` percent,
//! and `r` the rate:
//!
//! 1. *Tuning*, from a batch of 1 and 30 %: up to five rounds of up to five steps of the batch size and one of the share, until
//!    nothing changes, then up to five more of the batch size. A batch stays if the slack `T − L` is between 0 and 10 % of `T`, else it
//!    becomes `ceil(b + b · (T − L) / L)`. A share stays if that slack and `b / L − r`, of `r`, are both between 0 and 10 %; else it changes by
//!    itself times the larger of `|T − L| / L` and `|b / L − r| / (b / L)`: it grows if either is missing, and shrinks otherwise.
//! 2. *Fair split.* `G` devices have `G · 100 %`. Whoever wants less than an equal part of what is left has it; the others share the
//!    rest equally, and tune their batch size to what they have.
//! 3. *Placement.* The largest share first, onto the device that is left with least of those that have the share and the memory.
//!
//! Predicted goodput is `min(r, Σ b / L)`. Interference is not modelled (nor is it there).
//!
//! Source: Dhakal et al., "GSLICE: controlled spatial sharing of GPUs for a scalable inference platform", SoCC 2020. No release of its
//! authors was found: step 1 is the reimplementation in iGniter's published code (icloud-ecnu/igniter, gslice.py), step 2 that in
//! GPUlet's (casys-kaist/glet, self-tuning).
//!
//! Which reading, and where we deviate from both:
//! - The loop and its thresholds are iGniter's; glet's has 5 % and takes the larger slack ratio for the share as it is.
//! - The loop may end late or short of its rate (it swings where a step is larger than the slack), or on a fraction of a percent.
//!   Shares are rounded up to whole percents; a model that is late or short there gets the least share with which a batch within `T`
//!   carries its rate. A deployed loop would go on instead.
//! - Latency under a share is as measured, where the profile has rows under shares, else by the rule of `packhorse_contention`. The published loops measure.
//! - A rate that is more than all of a device carries takes whole devices, with the largest batch within `T`, and the loop tunes the
//!   rest; the published ones stop at 100 %.
//! - The fair split rounds down to whole percents: glet's next larger partition could exceed the cluster. A model whose part computes
//!   nothing in time gives it back, the one that wants most first, and the others split again.
//! - iGniter's has no device that shares must fit on, glet's has partitions. Here a share that fits no device whole is cut to the
//!   largest that is left. Memory is a limit, and no device has two replicas of a model.
//! - Batches are at most the largest profiled one, not 32.
//! - Devices of several kinds: a model is placed on the kind that gives most requests per cost (per device where no cost is given).
//! - Models that expect no requests come last, with the least share that computes one request in time.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    ByteCount, ComputeShare, DeviceIndex, ModelForecast, ModelIndex, Plan, PlannedReplica, Problem,
    Profile, RequestsPerSecond,
};

use self::tuning::{Setting, Target};
use crate::{
    Budget, PlaceError, Policy, PolicyOptions,
    candidates::Candidates,
    classes::{Class, classes},
    shares,
};

mod fairness;
mod tuning;

pub(crate) const NAME: &str = "gslice";

/// All of a device, in percent.
const WHOLE: f64 = 100.0;

/// Rates are quotients of rounded times: a rate is carried if this much of it is.
const CARRIED: f64 = 1.0 - 1e-9;

pub(crate) struct Gslice;

impl Policy for Gslice {
    fn place(
        &self,
        problem: &Problem,
        _options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let classes = classes(problem);
        let mut tuned: Vec<Result<Tuned<'_>, String>> = Vec::new();
        let candidates = Candidates::new(problem);
        for (model, _) in problem.models() {
            budget.spend(problem.devices.len() as u64)?;
            let unfit = candidates.unfit(model);
            tuned.push(unfit.map_or_else(|| Tuned::new(problem, &classes, model), Err));
        }
        let mut slices = Slices::new(problem);
        for (number, class) in classes.iter().enumerate() {
            let of_class = || {
                let models = tuned.iter().filter_map(|tuned| tuned.as_ref().ok());
                models.filter(|tuned| tuned.class == number)
            };
            let busy: Vec<&Tuned<'_>> = of_class().filter(|tuned| tuned.rate > 0.0).collect();
            let mut pieces = split(&busy, class, budget)?;
            let idle = of_class().filter(|tuned| tuned.rate == 0.0);
            pieces.extend(idle.filter_map(|tuned| Some(tuned.piece(tuned.rest?))));
            slices.open(class);
            for piece in pieces {
                budget.spend(1)?;
                slices.put(&piece);
            }
        }
        Ok(slices.into_plan(&tuned))
    }
}

/// A model with what the loop has found for it.
struct Tuned<'a> {
    model: ModelIndex,
    class: usize,
    profile: &'a Profile,
    rate: f64,
    /// `T`, in seconds.
    limit: f64,
    most: u32,
    /// How many whole devices it fills, and with what batch.
    full: usize,
    whole: Setting,
    /// For what is left of its rate.
    rest: Option<Setting>,
}

/// A share of a device for a model.
struct Piece<'t> {
    tuned: &'t Tuned<'t>,
    setting: Setting,
}

impl<'a> Tuned<'a> {
    fn new(problem: &'a Problem, classes: &[Class<'a>], model: ModelIndex) -> Result<Self, String> {
        let on_classes = classes.iter().enumerate();
        let possible = on_classes.filter_map(|(number, class)| {
            let alone = Self::on(problem, number, class, model)?;
            let per_cost = alone.target(alone.rate).throughput(alone.whole) / class.cost;
            Some((per_cost, alone))
        });
        // The first one of equals: it comes last in reverse order.
        let possible: Vec<_> = possible.collect();
        let best = possible
            .into_iter()
            .rev()
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, mut tuned)) = best else {
            let slo = problem.models[model.0].slo;
            return Err(format!(
                "no batch that a device has the memory for takes less than half of the SLO of {slo:?}"
            ));
        };
        tuned.tune(classes[tuned.class].devices.len());
        Ok(tuned)
    }

    /// Not tuned yet; `None` if no batch is in time, or has the memory.
    fn on(
        problem: &'a Problem,
        number: usize,
        class: &Class<'_>,
        model: ModelIndex,
    ) -> Option<Self> {
        let demanded = &problem.models[model.0];
        let profile = problem.profiles.get(&demanded.id, class.kind)?;
        let profiled = profile.whole().iter().map(|row| row.batch_size).max()?;
        // A replica whose memory was never measured may have a whole device.
        let fits = |batch: &u32| profile.memory(*batch).unwrap_or(class.memory) <= class.memory;
        let most = (1..=profiled.min(demanded.max_batch_size).max(1))
            .rev()
            .find(fits)?;
        let mut tuned = Self {
            model,
            class: number,
            profile,
            rate: demanded.rate.get(),
            limit: demanded.slo.as_secs_f64() / 2.0,
            most,
            full: 0,
            whole: Setting {
                batch: 1,
                share: WHOLE,
            },
            rest: None,
        };
        tuned.whole.batch = tuned.target(tuned.rate).largest_batch(most, WHOLE)?;
        Some(tuned)
    }

    fn target(&self, rate: f64) -> Target<impl Fn(u32, f64) -> f64 + use<'a>> {
        let profile = self.profile;
        Target {
            limit: self.limit,
            rate,
            most: self.most,
            latency: move |batch, share| shares::latency(profile, batch, share),
        }
    }

    /// Whole devices, at most so many, and the loop for the rest.
    fn tune(&mut self, devices: usize) {
        let throughput = self.target(self.rate).throughput(self.whole);
        let full = (self.rate / throughput / CARRIED).floor();
        self.full = full.min(devices as f64) as usize;
        let rest = self.rate - self.full as f64 * throughput;
        if rest > self.rate * (1.0 - CARRIED) && self.full < devices {
            let target = self.target(rest);
            self.rest = target.settle(target.tune());
        }
        if self.rate == 0.0 {
            let least = Setting {
                batch: 1,
                share: 1.0,
            };
            self.rest = self.target(0.0).settle(least);
        }
    }

    /// In percent of a device.
    fn wanted(&self) -> f64 {
        self.full as f64 * WHOLE + self.rest.map_or(0.0, |rest| rest.share)
    }

    fn piece(&self, setting: Setting) -> Piece<'_> {
        Piece {
            tuned: self,
            setting,
        }
    }

    /// The pieces of a grant: whole devices, and the rest if it computes anything in time.
    fn pieces(&self, granted: f64) -> impl Iterator<Item = Piece<'_>> {
        let full = ((granted / WHOLE) as usize).min(self.full);
        let share = (granted - full as f64 * WHOLE).min(WHOLE).floor();
        let rest = match self.rest {
            Some(rest) if full == self.full && share >= rest.share => Some(rest),
            _ if share >= 1.0 => self.target(self.rate).under(share),
            _ => None,
        };
        let whole = std::iter::repeat_n(self.whole, full);
        whole.chain(rest).map(|setting| self.piece(setting))
    }
}

/// Everybody's pieces of a class of devices, the largest first.
fn split<'t>(
    models: &[&'t Tuned<'t>],
    class: &Class<'_>,
    budget: &mut Budget<'_>,
) -> Result<Vec<Piece<'t>>, PlaceError> {
    let mut models = models.to_vec();
    loop {
        budget.spend(models.len() as u64)?;
        let wanted: Vec<f64> = models.iter().map(|tuned| tuned.wanted()).collect();
        let granted = fairness::max_min(&wanted, class.devices.len() as f64 * WHOLE);
        let idle = |&index: &usize| {
            let granted: f64 = granted[index];
            granted < wanted[index] && models[index].pieces(granted).next().is_none()
        };
        let useless = (0..models.len()).filter(idle);
        let Some(last) = useless.max_by(|&a, &b| wanted[a].total_cmp(&wanted[b])) else {
            let with_grants = models.iter().zip(granted);
            let mut pieces: Vec<Piece<'t>> = with_grants
                .flat_map(|(tuned, granted)| tuned.pieces(granted))
                .collect();
            pieces.sort_by(|a, b| b.setting.share.total_cmp(&a.setting.share));
            return Ok(pieces);
        };
        models.remove(last);
    }
}

/// What a device has left.
struct Room {
    /// In whole percents.
    share: u8,
    memory: ByteCount,
    hosts: BTreeSet<ModelIndex>,
}

/// A plan in the making.
struct Slices<'a> {
    problem: &'a Problem,
    rooms: Vec<Room>,
    /// What a device has left of its share, and which, by class.
    by_share: BTreeSet<(u8, DeviceIndex)>,
    replicas: Vec<PlannedReplica>,
    carried: BTreeMap<ModelIndex, f64>,
}

impl<'a> Slices<'a> {
    fn new(problem: &'a Problem) -> Self {
        let room = |device: &packhorse_cluster::Device| Room {
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

    /// From here on pieces are of this class.
    fn open(&mut self, class: &Class<'_>) {
        self.by_share = class.devices.iter().map(|device| (100, *device)).collect();
    }

    /// Onto the device that is left with least, else with as large a share as there is.
    fn put(&mut self, piece: &Piece<'_>) {
        let Piece { tuned, setting } = *piece;
        let share = setting.share as u8;
        let fitting = self.by_share.range((share, DeviceIndex(0))..);
        let found = fitting
            .map(|(_, device)| *device)
            .find(|device| self.takes(*device, tuned, setting.batch));
        if let Some(device) = found {
            self.place(device, tuned, setting);
        } else if let Some((device, setting)) = self.cut(tuned, share) {
            self.place(device, tuned, setting);
        }
    }

    /// The largest share below this one that is left and computes anything in time.
    fn cut(&self, tuned: &Tuned<'_>, share: u8) -> Option<(DeviceIndex, Setting)> {
        let mut tried: Option<(u8, Option<Setting>)> = None;
        let smaller = self.by_share.range(..(share, DeviceIndex(0))).rev();
        for &(left, device) in smaller.take_while(|(left, _)| *left > 0) {
            let setting = match tried {
                Some((same, setting)) if same == left => setting,
                _ => tuned.target(tuned.rate).under(f64::from(left)),
            };
            tried = Some((left, setting));
            let Some(setting) = setting else {
                continue;
            };
            if self.takes(device, tuned, setting.batch) {
                return Some((device, setting));
            }
        }
        None
    }

    fn takes(&self, device: DeviceIndex, tuned: &Tuned<'_>, batch: u32) -> bool {
        let room = &self.rooms[device.0];
        !room.hosts.contains(&tuned.model) && self.memory(device, tuned, batch) <= room.memory
    }

    fn memory(&self, device: DeviceIndex, tuned: &Tuned<'_>, batch: u32) -> ByteCount {
        let whole = self.problem.devices[device.0].memory;
        tuned.profile.memory(batch).unwrap_or(whole)
    }

    fn place(&mut self, device: DeviceIndex, tuned: &Tuned<'_>, setting: Setting) {
        let memory = self.memory(device, tuned, setting.batch);
        let room = &mut self.rooms[device.0];
        self.by_share.remove(&(room.share, device));
        room.share -= setting.share as u8;
        room.memory = room.memory.saturating_sub(memory);
        room.hosts.insert(tuned.model);
        self.by_share.insert((room.share, device));
        let throughput = tuned.target(tuned.rate).throughput(setting);
        *self.carried.entry(tuned.model).or_default() += throughput;
        let share = ComputeShare::new(setting.share).expect("between 1 and 100 percent");
        self.replicas.push(PlannedReplica {
            model: tuned.model,
            device,
            batch_size: setting.batch,
            // A whole device needs no limit.
            compute_share: (setting.share < WHOLE).then_some(share),
            duty_cycle: None,
        });
    }

    fn into_plan(mut self, tuned: &[Result<Tuned<'_>, String>]) -> Plan {
        self.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        let mut plan = Plan::empty(NAME, self.problem, "");
        for ((model, demanded), tuned) in self.problem.models().zip(tuned) {
            let rate = demanded.rate;
            let carried = self.carried.get(&model);
            let shortfall = match (tuned, carried) {
                (Err(why), _) => Some(why.clone()),
                (Ok(_), None) => Some("no share is left that computes a batch in time".to_owned()),
                (Ok(_), Some(carried)) if *carried < rate.get() * CARRIED => Some(format!(
                    "its shares carry {carried:.1} of {rate} requests/s"
                )),
                _ => None,
            };
            let goodput = carried.copied().unwrap_or_default().min(rate.get());
            plan.models[model.0] = ModelForecast {
                goodput: RequestsPerSecond::new(goodput).expect("between zero and a rate"),
                latency: None,
                shortfall,
            };
        }
        plan.replicas = self.replicas;
        plan
    }
}

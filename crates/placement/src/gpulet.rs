//! `gpulet`: devices are cut into at most two gpulets, partitions of their multiprocessors of the size at which a model's throughput
//! grows most, and shared in time where no partition is left.
//!
//! With `L(b, p)` the time of a batch of `b` on a gpulet of `p` percent (20, 40, 50, 60, 80 or 100) and `r` a model's rate:
//!
//! 1. *Order.* Models by rate · SLO, smallest first, later ones first among equals.
//! 2. *Sizes.* A gpulet is *saturated* by the largest batch with `2 · L(b, p) ≤ SLO` (a request that just missed a batch waits
//!    for a whole one); its throughput is `b / L`. The *preferred* size is the upper one of the two neighbouring sizes between which
//!    throughput grows most per percent; pairs that differ by less than 5 % are passed over, and 80 to 100 is never looked at. While
//!    the rate is above the preferred size's throughput the model gets saturated gpulets of it; then the smallest that serves the
//!    residue: `L(b, p) + b / r ≤ SLO`, and `L(b, p) ≤ b / r`.
//! 3. *Best fit.* The largest gpulet first, onto a free part of just that size, else onto an untouched device, which is split into
//!    `p` and `100 − p`, else onto the smallest free part that is larger. The device has the memory for it, and its link the bytes.
//! 4. *What found no place* is split over the free parts there are, the largest first; then joins the model's own gpulets as far as
//!    they have slack; then shares a device in time: with a duty cycle `D`, the least `b / r` of those that take turns, batches of
//!    `ceil(D · rᵢ)`, `Σ Lᵢ ≤ D`, and `Σ Lᵢ + D ≤ SLO` for each. The device whose occupancy `Σ Lᵢ / D` becomes the highest.
//! 5. *Retry.* A model that ends below 85 % of its rate gives everything back and is tried once more with its full rate on whole
//!    devices; the better of the two stands. On a fixed cluster this is best effort: a model that stays below keeps what it has, and the next ones follow.
//!
//! Predicted goodput is what the gpulets carry.
//!
//! Source: Choi et al., "Serving Heterogeneous Machine Learning Models on Multi-GPU Servers with Spatio-Temporal Sharing", USENIX
//! ATC 2022, section 4 (elastic partitioning), with what its published code (casys-kaist/glet) adds: the order, the 5 %, the 85 %,
//! a tenth on every latency, the check of the link.
//!
//! Where we deviate:
//! - Latency under a share is as measured, where the profile has rows under shares, else by the rule of `packhorse_contention`; the published code
//!   interpolates its own tables. It gathers requests on the host before a batch: we do not, and leave that time out.
//! - *Interference.* The published model is linear in the neighbours' use of the L2 cache and of memory bandwidth, which no profile
//!   of ours has. By our rule two gpulets do not slow each other, as they add up to at most the device. So the published shrinking of neighbours has nothing to do.
//! - *Sharing in time* makes the device whole again, where the published code has up to three models take turns on a gpulet. A
//!   plan's shares are limits that hold at once and add up to at most 100 %, so it cannot say that one is handed around; and by our rule
//!   a whole device in turns carries whatever its parts would. Up to six models, as two gpulets of three.
//! - A model's residue goes somewhere even if it is below 15 requests/s, which the published code leaves out: ours may expect less in all.
//! - A residue whose requests come so rarely that they never fill a batch of one in time (`L(1) + 1 / r > SLO`) is served one by one.
//! - Any integer batch up to the largest profiled one, not 32. Memory is what the profile says of a replica, and limited by the
//!   device's; the published code adds 1230 MB per process and keeps a tenth free.
//! - The link is the problem's network model, not 3 Gbit/s. A gpulet whose neighbour leaves it too little of it goes elsewhere.
//! - The retry has whole devices: without interference another try with the same sizes would end the same.
//! - Devices of several kinds: a model takes the kinds in the order of requests per cost, the next one for what is left.
//! - Models that expect no requests come last, with the smallest gpulet that serves one in time.
//! - Estimating rates from epochs is not placement and left out.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ComputeShare, DeviceIndex, ModelForecast, ModelIndex, Plan, PlannedReplica, Problem,
    RequestsPerSecond,
};

use self::{
    curve::{Curve, Demand, Unfit},
    devices::{Device, Devices, Member, Needs},
};
use crate::{
    Budget, PlaceError, Policy, PolicyOptions,
    candidates::Candidates,
    classes::{Class, classes},
};

mod curve;
mod devices;

pub(crate) const NAME: &str = "gpulet";

/// A device without partitions, in percent.
const WHOLE: u8 = 100;

/// The sizes of gpulets, in percent.
const PARTITIONS: [u8; 6] = [20, 40, 50, 60, 80, WHOLE];

/// A model that has less of its rate is tried again.
const ENOUGH: f64 = 0.85;

/// The most models that share a device in time.
const MOST_IN_TURNS: usize = 6;

/// What a turn on a shared device is tried with, of what is left of a rate: where not all of it fits, a part may.
const PARTS: [f64; 4] = [1.0, 0.5, 0.25, 0.125];

/// A turn for less than this part of a model's rate is not worth its memory.
const WORTH_A_TURN: f64 = 0.05;

/// Products and quotients of rounded times: what misses a limit by this part of it meets it.
const ROUNDING: f64 = 1e-9;

pub(crate) struct Gpulet;

impl Policy for Gpulet {
    fn place(
        &self,
        problem: &Problem,
        _options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let mut partitioning = Partitioning::new(problem);
        let mut order: Vec<ModelIndex> = problem.models().map(|(model, _)| model).collect();
        let idle = |model: ModelIndex| problem.models[model.0].rate == RequestsPerSecond::ZERO;
        let work = |model: ModelIndex| {
            let demanded = &problem.models[model.0];
            demanded.rate.get() * demanded.slo.as_secs_f64()
        };
        order.sort_by(|&a, &b| {
            (idle(a).cmp(&idle(b)))
                .then(work(a).total_cmp(&work(b)))
                .then(b.cmp(&a))
        });
        for model in order {
            budget.spend(problem.devices.len() as u64)?;
            partitioning.place(model);
        }
        Ok(partitioning.into_plan())
    }
}

/// A gpulet that is wanted.
#[derive(Clone, Copy)]
struct Piece {
    /// Of [`PARTITIONS`].
    size: usize,
    demand: Demand,
}

struct Partitioning<'a> {
    problem: &'a Problem,
    classes: Vec<Class<'a>>,
    /// By model, then class.
    curves: Vec<Vec<Result<Curve, Unfit>>>,
    devices: Devices,
}

impl<'a> Partitioning<'a> {
    fn new(problem: &'a Problem) -> Self {
        let classes = classes(problem);
        let mut class_of = vec![0; problem.devices.len()];
        for (number, class) in classes.iter().enumerate() {
            class
                .devices
                .iter()
                .for_each(|device| class_of[device.0] = number);
        }
        let of_model = |model| {
            classes
                .iter()
                .map(|class| Curve::new(problem, model, class))
                .collect()
        };
        Self {
            curves: problem.models().map(|(model, _)| of_model(model)).collect(),
            devices: Devices::new(problem, &class_of),
            problem,
            classes,
        }
    }

    fn curve(&self, model: ModelIndex, class: usize) -> Option<&Curve> {
        self.curves[model.0][class].as_ref().ok()
    }

    /// The classes that the model can run on, those with most requests per cost first.
    fn preferred_classes(&self, model: ModelIndex) -> Vec<usize> {
        let value = |class: usize| {
            let curve = self.curve(model, class)?;
            Some(curve.throughput(PARTITIONS.len() - 1) / self.classes[class].cost)
        };
        let mut classes: Vec<(usize, f64)> = (0..self.classes.len())
            .filter_map(|class| Some((class, value(class)?)))
            .collect();
        classes.sort_by(|a, b| b.1.total_cmp(&a.1));
        classes.into_iter().map(|(class, _)| class).collect()
    }

    fn place(&mut self, model: ModelIndex) {
        let rate = self.problem.models[model.0].rate.get();
        let classes = self.preferred_classes(model);
        self.devices.begin();
        let left = self.allocate(model, &classes, rate, Curve::preferred);
        if left <= rate * (1.0 - ENOUGH) {
            return;
        }
        let first = self.devices.take_back();
        let left_again = self.allocate(model, &classes, rate, |_| PARTITIONS.len() - 1);
        if left_again >= left {
            self.devices.take_back();
            self.devices.restore(first);
        }
    }

    /// Places as much of the rate as it can; returns what is left of it. A model without a rate gets one gpulet.
    fn allocate(
        &mut self,
        model: ModelIndex,
        classes: &[usize],
        rate: f64,
        preferred: impl Fn(&Curve) -> usize,
    ) -> f64 {
        let mut left = Left {
            rate,
            served: false,
        };
        for &class in classes {
            if left.is_something() {
                self.partition(model, class, &mut left, &preferred);
            }
        }
        for &class in classes {
            if left.is_something() {
                self.readjust(model, class, &mut left);
            }
        }
        if left.is_something() {
            self.merge_own(model, &mut left);
        }
        for &class in classes {
            if left.is_something() {
                self.take_turns(model, class, &mut left);
            }
        }
        left.rate
    }

    /// Gpulets of the sizes that the model wants, where there are such.
    fn partition(
        &mut self,
        model: ModelIndex,
        class: usize,
        left: &mut Left,
        preferred: impl Fn(&Curve) -> usize,
    ) {
        let Some(curve) = self.curve(model, class) else {
            return;
        };
        // Two gpulets of a model on every device is all that there can be.
        let most = 2 * self.classes[class].devices.len();
        let pieces = pieces(curve, preferred(curve), left.rate, most);
        for piece in pieces {
            let needs = self.needs(model, class, piece.demand);
            let fit = self.devices.best_fit(class, PARTITIONS[piece.size], needs);
            if let Some((number, percent)) = fit {
                self.put(model, class, number, percent, piece.demand, left);
            }
        }
    }

    /// Splits what is left over the parts that are free.
    fn readjust(&mut self, model: ModelIndex, class: usize, left: &mut Left) {
        while left.is_something() {
            let Some(curve) = self.curve(model, class) else {
                return;
            };
            let needs = |size| Some(self.needs(model, class, curve.demand(size, left.rate)?));
            let Some((number, size)) = self.devices.largest_free(class, needs) else {
                return;
            };
            let demand = curve.demand(size, left.rate);
            let demand = demand.expect("the part was found for it");
            self.put(model, class, number, PARTITIONS[size], demand, left);
        }
    }

    /// Has the model's own gpulets carry what they can.
    fn merge_own(&mut self, model: ModelIndex, left: &mut Left) {
        let own: Vec<(usize, usize)> = self
            .devices
            .iter()
            .filter(|(_, device)| !device.turns)
            .flat_map(|(number, device)| {
                let places = device.members.iter().enumerate();
                places
                    .filter(|(_, member)| member.model == model)
                    .map(move |(place, _)| (number, place))
            })
            .collect();
        for (number, place) in own {
            let device = self.devices.at(number);
            let member = &device.members[place];
            let Some(curve) = self.curve(model, device.class) else {
                continue;
            };
            let size = size_of(member.percent);
            let Some(demand) = curve.demand(size, member.demand.rate + left.rate) else {
                continue;
            };
            let more = demand.rate - member.demand.rate;
            let mut needs = self.needs(model, device.class, demand);
            needs.received = more * self.problem.models[model.0].payload.as_u64() as f64;
            if more > 0.0 && self.devices.may_grow(number, place, needs) {
                self.devices.grow(number, place, demand, needs);
                left.take(more);
            }
        }
    }

    /// Shares devices in time: one for all of what is left, else several for parts of it.
    fn take_turns(&mut self, model: ModelIndex, class: usize, left: &mut Left) {
        let least = WORTH_A_TURN * self.problem.models[model.0].rate.get();
        while left.is_something() {
            let parts = PARTS.map(|part| left.rate * part);
            let mut worth = parts.into_iter().filter(|rate| *rate >= least);
            let found = worth.find_map(|rate| Some((rate, self.best_turn(model, class, rate)?)));
            let Some((rate, (number, members))) = found else {
                return;
            };
            let received = self.received(model, rate);
            self.devices.share_in_time(number, members, received);
            left.take(rate);
        }
    }

    /// The device whose occupancy becomes the highest with one more in turns, and its members then.
    fn best_turn(
        &self,
        model: ModelIndex,
        class: usize,
        rate: f64,
    ) -> Option<(usize, Vec<Member>)> {
        let mut best: Option<(f64, usize, Vec<Member>)> = None;
        for (number, device) in self.devices.iter() {
            if let Some((occupancy, members)) = self.turns(number, device, class, model, rate)
                && best.as_ref().is_none_or(|(most, ..)| occupancy > *most)
            {
                best = Some((occupancy, number, members));
            }
        }
        best.map(|(_, number, members)| (number, members))
    }

    /// The members of a device with one more, all in turns, and its occupancy; `None` if there is no time for that.
    fn turns(
        &self,
        number: usize,
        device: &Device,
        class: usize,
        model: ModelIndex,
        rate: f64,
    ) -> Option<(f64, Vec<Member>)> {
        let others = &device.members;
        let is_new = others.iter().all(|member| member.model != model);
        if device.class != class || others.len() >= MOST_IN_TURNS || !is_new {
            return None;
        }
        let demand = self
            .curve(model, class)?
            .demand(PARTITIONS.len() - 1, rate)?;
        if demand.rate < rate {
            return None;
        }
        let duties = others.iter().map(|member| member.demand.duty);
        let duty = duties.fold(demand.duty, f64::min);
        let with_rates = others
            .iter()
            .map(|member| (member.model, member.demand.rate))
            .chain([(model, rate)]);
        let (mut members, mut busy, mut least_slo) = (Vec::new(), 0.0, f64::INFINITY);
        for (model, rate) in with_rates {
            let curve = self.curve(model, class)?;
            // A batch that is a rounding error over an integer is that integer.
            let batch = (duty * rate - 1e-6).ceil().max(1.0);
            if batch > f64::from(curve.largest_batch()) {
                return None;
            }
            let batch = batch as u32;
            busy += curve.latency(batch, PARTITIONS.len() - 1);
            if busy > duty * (1.0 + ROUNDING) {
                return None;
            }
            least_slo = least_slo.min(curve.slo());
            members.push(Member {
                model,
                percent: WHOLE,
                demand: Demand { batch, duty, rate },
                memory: curve.memory(batch),
            });
        }
        let in_time = busy + duty <= least_slo * (1.0 + ROUNDING);
        let received = self.received(model, rate);
        (in_time && self.devices.holds(number, &members, received))
            .then_some((busy / duty, members))
    }

    fn received(&self, model: ModelIndex, rate: f64) -> f64 {
        rate * self.problem.models[model.0].payload.as_u64() as f64
    }

    fn needs(&self, model: ModelIndex, class: usize, demand: Demand) -> Needs {
        let curve = self.curve(model, class).expect("it has a demand there");
        Needs {
            memory: curve.memory(demand.batch),
            received: self.received(model, demand.rate),
        }
    }

    fn put(
        &mut self,
        model: ModelIndex,
        class: usize,
        number: usize,
        percent: u8,
        demand: Demand,
        left: &mut Left,
    ) {
        let Needs { memory, received } = self.needs(model, class, demand);
        let member = Member {
            model,
            percent,
            demand,
            memory,
        };
        self.devices.put(number, member, received);
        left.take(demand.rate);
    }

    fn into_plan(self) -> Plan {
        let mut plan = Plan::empty(NAME, self.problem, "");
        let mut carried: BTreeMap<ModelIndex, (usize, f64)> = BTreeMap::new();
        for (number, device) in self.devices.iter() {
            for member in &device.members {
                let of_model = carried.entry(member.model).or_default();
                of_model.0 += 1;
                of_model.1 += member.demand.rate;
                plan.replicas.push(planned(number, device, member));
            }
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        let candidates = Candidates::new(self.problem);
        for (model, _) in self.problem.models() {
            let (replicas, carried) = carried.get(&model).copied().unwrap_or_default();
            plan.models[model.0] = self.forecast(&candidates, model, replicas, carried);
        }
        plan
    }

    fn forecast(
        &self,
        candidates: &Candidates<'_>,
        model: ModelIndex,
        replicas: usize,
        carried: f64,
    ) -> ModelForecast {
        let rate = self.problem.models[model.0].rate;
        let shortfall = if replicas == 0 {
            let unfit = candidates.unfit(model);
            Some(unfit.unwrap_or_else(|| self.why_nowhere(model).to_owned()))
        } else if carried < rate.get() * (1.0 - ROUNDING) {
            Some(format!(
                "{replicas} gpulets carry {carried:.1} of {rate} requests/s, and there is no room for more"
            ))
        } else {
            None
        };
        let goodput = RequestsPerSecond::new(carried.min(rate.get()));
        ModelForecast {
            goodput: goodput.expect("between zero and a rate"),
            latency: None,
            shortfall,
        }
    }

    fn why_nowhere(&self, model: ModelIndex) -> &'static str {
        let of_classes = &self.curves[model.0];
        if of_classes.iter().any(Result::is_ok) {
            "no partition is left that serves it in time"
        } else if of_classes
            .iter()
            .any(|curve| matches!(curve, Err(Unfit::Memory)))
        {
            "no device has the memory for a batch that leaves a request the time to wait for another one"
        } else {
            "no batch takes less than half of its SLO, even on a whole device"
        }
    }
}

/// What is to be placed of a model yet.
struct Left {
    rate: f64,
    served: bool,
}

impl Left {
    fn is_something(&self) -> bool {
        self.rate > 0.0 || !self.served
    }

    fn take(&mut self, rate: f64) {
        self.served = true;
        let left = self.rate - rate;
        self.rate = if left > self.rate * ROUNDING {
            left
        } else {
            0.0
        };
    }
}

/// Saturated gpulets of the preferred size and one for the residue, at most so many; the largest first.
fn pieces(curve: &Curve, preferred: usize, rate: f64, most: usize) -> Vec<Piece> {
    let mut left = Left {
        rate,
        served: false,
    };
    let mut pieces = Vec::new();
    while left.is_something() && pieces.len() < most {
        let whole = curve.throughput(preferred) * (1.0 + ROUNDING);
        let size = if left.rate > whole {
            preferred
        } else {
            curve.smallest(left.rate).unwrap_or(PARTITIONS.len() - 1)
        };
        let Some(demand) = curve.demand(size, left.rate) else {
            break;
        };
        left.take(demand.rate);
        pieces.push(Piece { size, demand });
    }
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.size));
    pieces
}

fn size_of(percent: u8) -> usize {
    PARTITIONS
        .iter()
        .position(|size| *size == percent)
        .expect("gpulets have the sizes of partitions")
}

fn planned(number: usize, device: &Device, member: &Member) -> PlannedReplica {
    let share = ComputeShare::new(f64::from(member.percent));
    PlannedReplica {
        model: member.model,
        device: DeviceIndex(number),
        batch_size: member.demand.batch,
        // A whole device needs no limit.
        compute_share: (member.percent < WHOLE).then(|| share.expect("between 20 and 80 percent")),
        // An SLO may be as long as a duration can be, and a rate as low.
        duty_cycle: device
            .turns
            .then(|| Duration::try_from_secs_f64(member.demand.duty).unwrap_or(Duration::MAX)),
    }
}

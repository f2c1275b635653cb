//! `gpulet`: each device is divided into at most two gpulets, partitions of its multiprocessors of the size at which a model's throughput
//! grows most, and is shared in time if no partition is left.
//!
//! `L(b, p)` is the time of a batch of `b` on a gpulet of `p` percent (20, 40, 50, 60, 80 or 100), and `r` the rate of a model.
//!
//! 1. *Order.* Models in ascending order of rate · SLO; among equals the later model comes first.
//! 2. *Sizes.* A gpulet is *saturated* by the largest batch with `2 · L(b, p) ≤ SLO`, because a request that just missed a batch waits
//!    for a whole one; its throughput is `b / L`. The *preferred* size is the upper one of the two neighbouring sizes between which the
//!    throughput grows most per percent. Pairs that differ by less than 5 % are skipped, and the pair of 80 and 100 is never considered.
//!    The model gets saturated gpulets of the preferred size while its rate is above their throughput, then the smallest gpulet that
//!    serves the residual rate: `L(b, p) + b / r ≤ SLO` and `L(b, p) ≤ b / r`.
//! 3. *Best fit.* The largest gpulet is placed first: on a free part of exactly its size, else on an unused device, which is split into
//!    `p` and `100 − p`, else on the smallest free part that is larger. The device must have the memory for it, and its link the
//!    bandwidth.
//! 4. *Remainder.* A rate for which there is no such place is divided over the free parts, the largest first. What remains is added to
//!    the model's own gpulets as far as they have slack. What still remains shares a device in time: with a duty cycle `D`, the smallest
//!    `b / r` of the members, batches of `ceil(D · rᵢ)`, `Σ Lᵢ ≤ D`, and `Σ Lᵢ + D ≤ SLO` for each member. The device whose occupancy
//!    `Σ Lᵢ / D` becomes the highest is chosen.
//! 5. *Retry.* A model with less than 85 % of its rate releases everything and is placed once more with its full rate on whole devices;
//!    the better result is kept. On a fixed cluster this is best effort: a model that stays below 85 % keeps what it has, and the next
//!    models follow.
//!
//! The predicted goodput is the rate that the gpulets carry.
//!
//! Source: Choi et al., "Serving Heterogeneous Machine Learning Models on Multi-GPU Servers with Spatio-Temporal Sharing", USENIX ATC
//! 2022, section 4 (elastic partitioning), with the additions of its published code (casys-kaist/glet): the order, the 5 %, the 85 %, a
//! tenth on every latency, and the check of the link.
//!
//! Deviations:
//! - The latency under a share is measured if the profile has rows for shares; otherwise it follows the rule of
//!   `packhorse_contention`. The published code interpolates its own tables. The time to gather requests on the host before a batch,
//!   which the published code adds, is left out, because we do not gather them.
//! - *Interference.* The published model is linear in the neighbours' use of the L2 cache and of memory bandwidth, which our profiles do
//!   not contain. By our rule two gpulets do not slow each other, because they add up to at most the device. The published step that
//!   shrinks neighbours therefore has no effect.
//! - *Time sharing* uses the whole device, whereas the published code lets up to three models take turns on a gpulet. The shares of a
//!   plan are limits that hold at once and add up to at most 100 %, so a plan cannot express that a share is passed on; and by our rule
//!   a time-shared whole device carries whatever its parts would carry. Up to six models share a device, as on two gpulets of three.
//! - A residual rate below 15 requests/s is placed as well; the published code drops it. A model of ours may have a lower rate in total.
//! - Residual requests that arrive too rarely to fill a batch of one in time (`L(1) + 1 / r > SLO`) are served one by one.
//! - Batches are any integer up to the largest profiled one, not up to 32. A replica needs the memory of its profile, and the limit is
//!   the device's memory; the published code adds 1230 MB per process and keeps a tenth free.
//! - The link is the problem's network model, not 3 Gbit/s. A gpulet goes elsewhere if its neighbour leaves it too little of the link.
//! - The retry uses whole devices: without interference another attempt with the same sizes would give the same result.
//! - Devices of several kinds: a model uses the kinds in the order of requests per cost, the next one for the remaining rate.
//! - Models without expected requests come last, with the smallest gpulet that serves one request in time.
//! - The estimation of rates from epochs is not part of placement and is left out.

use std::collections::BTreeMap;

use packhorse_cluster::{
    ComputeShare, DeviceIndex, ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond,
    Shortfall,
};

use self::{
    partition_sizes::{SIZES, WHOLE, WHOLE_INDEX, index_of},
    partitioned_devices::{Member, PartitionedDevice, PartitionedDevices, RequiredResources},
    throughput_curve::{BatchSchedule, CurveError, ThroughputCurve},
};
use crate::{
    Budget, PlaceError, PlanningOptions, Policy,
    candidates::Candidates,
    device_classes::{DeviceClass, class_of_each_device, device_classes},
    duty_cycle::{planned_duration, turns},
    forecast::forecast,
    tolerance::ROUNDING,
};

mod partition_sizes;
mod partitioned_devices;
mod throughput_curve;

pub(crate) const NAME: &str = "gpulet";

/// The fraction of its rate below which a model is placed once more.
const RETRY_BELOW: f64 = 0.85;

/// The largest number of models that share a device in time.
const MAX_TIME_SHARED: usize = 6;

/// The fractions of the remaining rate that are tried on a time-shared device, in this order.
const TIME_SHARED_FRACTIONS: [f64; 4] = [1.0, 0.5, 0.25, 0.125];

/// The smallest fraction of a model's rate that is worth the memory of a replica on a time-shared device.
const MIN_TIME_SHARED_FRACTION: f64 = 0.05;

pub(crate) struct Gpulet;

impl Policy for Gpulet {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let mut partitioning = Partitioning::new(problem, options);
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

/// A gpulet to be placed.
#[derive(Clone, Copy)]
struct WantedGpulet {
    /// The index in [`SIZES`].
    size: usize,
    schedule: BatchSchedule,
}

/// A plan in progress.
struct Partitioning<'a> {
    problem: &'a Problem,
    classes: Vec<DeviceClass<'a>>,
    /// The curves by model, then class.
    curves: Vec<Vec<Result<ThroughputCurve, CurveError>>>,
    devices: PartitionedDevices,
}

impl<'a> Partitioning<'a> {
    fn new(problem: &'a Problem, options: &PlanningOptions) -> Self {
        let classes = device_classes(problem);
        let curves = |model| {
            classes
                .iter()
                .map(|class| ThroughputCurve::new(problem, options, model, class))
                .collect()
        };
        Self {
            curves: problem.models().map(|(model, _)| curves(model)).collect(),
            devices: PartitionedDevices::new(problem, &class_of_each_device(&classes)),
            problem,
            classes,
        }
    }

    fn curve(&self, model: ModelIndex, class: usize) -> Option<&ThroughputCurve> {
        self.curves[model.0][class].as_ref().ok()
    }

    /// Returns the classes that the model can run on, those with the most requests per cost first.
    fn preferred_classes(&self, model: ModelIndex) -> Vec<usize> {
        let per_cost = |class: usize| {
            let curve = self.curve(model, class)?;
            Some(curve.throughput(WHOLE_INDEX) / self.classes[class].cost)
        };
        let mut classes: Vec<(usize, f64)> = (0..self.classes.len())
            .filter_map(|class| Some((class, per_cost(class)?)))
            .collect();
        classes.sort_by(|a, b| b.1.total_cmp(&a.1));
        classes.into_iter().map(|(class, _)| class).collect()
    }

    /// Places a model, and once more if it gets too little of its rate.
    fn place(&mut self, model: ModelIndex) {
        let rate = self.problem.models[model.0].rate.get();
        let classes = self.preferred_classes(model);
        self.devices.begin_changes();
        let unserved = self.allocate(model, &classes, rate, ThroughputCurve::preferred);
        if unserved <= rate * (1.0 - RETRY_BELOW) {
            return;
        }
        let first = self.devices.undo_changes();
        let unserved_by_retry = self.allocate(model, &classes, rate, |_| WHOLE_INDEX);
        if unserved_by_retry >= unserved {
            self.devices.undo_changes();
            self.devices.redo_changes(first);
        }
    }

    /// Places as much of the rate as possible and returns the unserved rate. A model without a rate gets one gpulet.
    fn allocate(
        &mut self,
        model: ModelIndex,
        classes: &[usize],
        rate: f64,
        preferred: impl Fn(&ThroughputCurve) -> usize,
    ) -> f64 {
        let mut left = UnservedRate {
            rate,
            served: false,
        };
        for &class in classes {
            if left.needs_gpulet() {
                self.place_gpulets(model, class, &mut left, &preferred);
            }
        }
        for &class in classes {
            if left.needs_gpulet() {
                self.fill_free_parts(model, class, &mut left);
            }
        }
        if left.needs_gpulet() {
            self.grow_own_gpulets(model, &mut left);
        }
        for &class in classes {
            if left.needs_gpulet() {
                self.share_in_time(model, class, &mut left);
            }
        }
        left.rate
    }

    /// Places gpulets of the sizes that suit the model, as far as there is room for them.
    fn place_gpulets(
        &mut self,
        model: ModelIndex,
        class: usize,
        left: &mut UnservedRate,
        preferred: impl Fn(&ThroughputCurve) -> usize,
    ) {
        let Some(curve) = self.curve(model, class) else {
            return;
        };
        // A device has at most two gpulets of a model.
        let most = 2 * self.classes[class].devices.len();
        for gpulet in wanted_gpulets(curve, preferred(curve), left.rate, most) {
            let required = self.required(model, class, gpulet.schedule);
            let fit = self.devices.best_fit(class, SIZES[gpulet.size], required);
            if let Some((number, percent)) = fit {
                self.add_gpulet(model, class, number, percent, gpulet.schedule, left);
            }
        }
    }

    /// Divides the unserved rate over the free parts.
    fn fill_free_parts(&mut self, model: ModelIndex, class: usize, left: &mut UnservedRate) {
        while left.needs_gpulet() {
            let Some(curve) = self.curve(model, class) else {
                return;
            };
            let required = |size| {
                let schedule = curve.schedule(size, left.rate)?;
                Some(self.required(model, class, schedule))
            };
            let Some((number, size)) = self.devices.largest_free_part(class, required) else {
                return;
            };
            let schedule = curve.schedule(size, left.rate);
            let schedule = schedule.expect("the part was found for it");
            self.add_gpulet(model, class, number, SIZES[size], schedule, left);
        }
    }

    /// Raises the rate of the model's own gpulets as far as they have slack.
    fn grow_own_gpulets(&mut self, model: ModelIndex, left: &mut UnservedRate) {
        let own: Vec<(usize, usize)> = self
            .devices
            .iter()
            .filter(|(_, device)| !device.time_shared)
            .flat_map(|(number, device)| {
                let members = device.members.iter().enumerate();
                members
                    .filter(|(_, member)| member.model == model)
                    .map(move |(index, _)| (number, index))
            })
            .collect();
        for (number, index) in own {
            let device = self.devices.get(number);
            let member = &device.members[index];
            let Some(curve) = self.curve(model, device.class) else {
                continue;
            };
            let size = index_of(member.percent);
            let Some(schedule) = curve.schedule(size, member.schedule.rate + left.rate) else {
                continue;
            };
            let more = schedule.rate - member.schedule.rate;
            let mut required = self.required(model, device.class, schedule);
            required.bandwidth = self.bandwidth(model, more);
            if more > 0.0 && self.devices.can_grow(number, index, required) {
                self.devices.grow(number, index, schedule, required);
                left.subtract(more);
            }
        }
    }

    /// Shares devices in time: one for all of the unserved rate, else several for parts of it.
    fn share_in_time(&mut self, model: ModelIndex, class: usize, left: &mut UnservedRate) {
        let least = MIN_TIME_SHARED_FRACTION * self.problem.models[model.0].rate.get();
        while left.needs_gpulet() {
            let rates = TIME_SHARED_FRACTIONS.map(|fraction| left.rate * fraction);
            let mut rates = rates.into_iter().filter(|rate| *rate >= least);
            let found = rates.find_map(|rate| {
                let device = self.best_time_shared(model, class, rate)?;
                Some((rate, device))
            });
            let Some((rate, (number, members))) = found else {
                return;
            };
            let bandwidth = self.bandwidth(model, rate);
            self.devices.share_in_time(number, members, bandwidth);
            left.subtract(rate);
        }
    }

    /// Returns the device whose occupancy becomes the highest if it serves the rate too, and its members then.
    fn best_time_shared(
        &self,
        model: ModelIndex,
        class: usize,
        rate: f64,
    ) -> Option<(usize, Vec<Member>)> {
        let mut best: Option<(f64, usize, Vec<Member>)> = None;
        for (number, device) in self.devices.iter() {
            if let Some((occupancy, members)) = self.time_shared(number, device, class, model, rate)
                && best.as_ref().is_none_or(|(most, ..)| occupancy > *most)
            {
                best = Some((occupancy, number, members));
            }
        }
        best.map(|(_, number, members)| (number, members))
    }

    /// Returns the occupancy and the members of a device that serves the rate too and is shared in time; `None` if it has too little
    /// time, memory or bandwidth.
    fn time_shared(
        &self,
        number: usize,
        device: &PartitionedDevice,
        class: usize,
        model: ModelIndex,
        rate: f64,
    ) -> Option<(f64, Vec<Member>)> {
        let others = &device.members;
        let is_new = others.iter().all(|member| member.model != model);
        if device.class != class || others.len() >= MAX_TIME_SHARED || !is_new {
            return None;
        }
        let schedule = self.curve(model, class)?.schedule(WHOLE_INDEX, rate)?;
        if schedule.rate < rate {
            return None;
        }
        let duties = others.iter().map(|member| member.schedule.duty);
        let duty = duties.fold(schedule.duty, f64::min);
        let rates = others
            .iter()
            .map(|member| (member.model, member.schedule.rate));
        let rates = rates.chain([(model, rate)]);
        let (turns, busy) = turns(duty, rates, |model| self.curve(model, class))?;
        let (mut members, mut least_slo) = (Vec::new(), f64::INFINITY);
        for turn in turns {
            let curve = self.curve(turn.model, class)?;
            least_slo = least_slo.min(curve.slo());
            members.push(Member {
                model: turn.model,
                percent: WHOLE,
                schedule: BatchSchedule {
                    batch: turn.batch_size,
                    duty,
                    rate: turn.rate,
                },
                memory: curve.memory(turn.batch_size),
            });
        }
        let in_time = busy + duty <= least_slo * (1.0 + ROUNDING);
        let bandwidth = self.bandwidth(model, rate);
        (in_time && self.devices.can_share_in_time(number, &members, bandwidth))
            .then_some((busy / duty, members))
    }

    /// Returns the bytes per second that the model receives at a rate.
    fn bandwidth(&self, model: ModelIndex, rate: f64) -> f64 {
        rate * self.problem.models[model.0].payload.as_u64() as f64
    }

    /// Returns the resources that a gpulet of the model requires.
    fn required(
        &self,
        model: ModelIndex,
        class: usize,
        schedule: BatchSchedule,
    ) -> RequiredResources {
        let curve = self.curve(model, class).expect("it has a schedule there");
        RequiredResources {
            memory: curve.memory(schedule.batch),
            bandwidth: self.bandwidth(model, schedule.rate),
        }
    }

    /// Adds a gpulet of a size to a device.
    fn add_gpulet(
        &mut self,
        model: ModelIndex,
        class: usize,
        number: usize,
        percent: u8,
        schedule: BatchSchedule,
        left: &mut UnservedRate,
    ) {
        let RequiredResources { memory, bandwidth } = self.required(model, class, schedule);
        let member = Member {
            model,
            percent,
            schedule,
            memory,
        };
        self.devices.add_gpulet(number, member, bandwidth);
        left.subtract(schedule.rate);
    }

    fn into_plan(self) -> Plan {
        let mut plan = Plan::empty(NAME, self.problem, &Shortfall::NoDeviceLeft);
        let mut carried: BTreeMap<ModelIndex, (usize, f64)> = BTreeMap::new();
        for (number, device) in self.devices.iter() {
            for member in &device.members {
                let (replicas, rate) = carried.entry(member.model).or_default();
                *replicas += 1;
                *rate += member.schedule.rate;
                plan.replicas.push(planned(number, device, member));
            }
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        let candidates = Candidates::new(self.problem);
        for (model, demanded) in self.problem.models() {
            let (replicas, carried) = carried.get(&model).copied().unwrap_or_default();
            let rate = demanded.rate;
            plan.models[model.0] = forecast(
                rate,
                replicas,
                carried,
                || {
                    let infeasible = candidates.infeasible(model);
                    infeasible.unwrap_or_else(|| self.unplaced(model))
                },
                |goodput| Shortfall::NoPartitionLeftForMore {
                    partitions: replicas,
                    goodput,
                    rate,
                },
            );
        }
        plan
    }

    /// Returns the reason why a model that some device could serve alone has no gpulet.
    fn unplaced(&self, model: ModelIndex) -> Shortfall {
        let curves = &self.curves[model.0];
        if curves.iter().any(Result::is_ok) {
            Shortfall::NoPartitionLeft
        } else if curves
            .iter()
            .any(|curve| matches!(curve, Err(CurveError::Memory)))
        {
            Shortfall::NoMemoryWithinHalfSlo
        } else {
            Shortfall::WholeDeviceOverHalfSlo
        }
    }
}

/// The rate of a model that is not served yet.
struct UnservedRate {
    rate: f64,
    /// True if the model has a gpulet.
    served: bool,
}

impl UnservedRate {
    /// Returns true if the model needs another gpulet.
    fn needs_gpulet(&self) -> bool {
        self.rate > 0.0 || !self.served
    }

    /// Counts a rate as served.
    fn subtract(&mut self, rate: f64) {
        self.served = true;
        let left = self.rate - rate;
        self.rate = if left > self.rate * ROUNDING {
            left
        } else {
            0.0
        };
    }
}

/// Returns saturated gpulets of the preferred size and one for the residual rate, at most `most`, the largest first.
fn wanted_gpulets(
    curve: &ThroughputCurve,
    preferred: usize,
    rate: f64,
    most: usize,
) -> Vec<WantedGpulet> {
    let mut left = UnservedRate {
        rate,
        served: false,
    };
    let mut wanted = Vec::new();
    while left.needs_gpulet() && wanted.len() < most {
        let saturated = curve.throughput(preferred) * (1.0 + ROUNDING);
        let size = if left.rate > saturated {
            preferred
        } else {
            curve.smallest_for(left.rate).unwrap_or(WHOLE_INDEX)
        };
        let Some(schedule) = curve.schedule(size, left.rate) else {
            break;
        };
        left.subtract(schedule.rate);
        wanted.push(WantedGpulet { size, schedule });
    }
    wanted.sort_by_key(|gpulet| std::cmp::Reverse(gpulet.size));
    wanted
}

fn planned(number: usize, device: &PartitionedDevice, member: &Member) -> PlannedReplica {
    let share = ComputeShare::new(f64::from(member.percent));
    PlannedReplica {
        model: member.model,
        device: DeviceIndex(number),
        batch_size: member.schedule.batch,
        // A whole device needs no limit.
        compute_share: (member.percent < WHOLE).then(|| share.expect("between 20 and 80 percent")),
        duty_cycle: device
            .time_shared
            .then(|| planned_duration(member.schedule.duty)),
        memory: None,
        backbone: None,
        pool: None,
    }
}

//! `herd`: devices form groups, and every device of a group has every model of the group, so that a burst of one model finds all of them.
//!
//! A stream is a model with requests. Alone on one device it reaches at most the goodput `T`, here the throughput of the largest batch
//! of which two, the one before and its own, are within the SLO; `n = rate / T` is its load in devices. A group `j` has `size_j` devices,
//! at most `G = 12`, and a stream in it has the burst tolerance `size_j / n`: the factor by which its rate may grow before the whole group
//! is busy with it. Herd maximises the smallest burst tolerance of all streams, by an integer linear program:
//!
//! ```text
//! maximise B                                           subject to
//!   Σ_j size_j · x_ij / n_i ≥ B   for each stream i     Σ_j x_ij = 1                      for each stream i
//!   Σ_j size_j ≤ N                size_j ≤ G            Σ_i m_i · x_ij ≤ memory           for each group j
//!   x_ij = 0 unless the streams i and j are of one affinity set
//! ```
//!
//! Group `j` is that in which stream `j` stands first, so that no two solutions are the same groups in another order. The product
//! `size_j · x_ij` is a variable below both `size_j` and `G · x_ij`. Models of a group have similar times, as one batch of a slow
//! model makes the queue of a fast one late: [`affinity`] divides them into affinity sets, and a group has models of one set. Devices that
//! the program leaves go to the group with the smallest tolerance. [`packhorse_cluster::PolicyOptions::herd_greedy`] replaces the program by
//! [`greedy`], which also plans problems with more than [`MOST_EXACT`] possible memberships.
//!
//! The devices of a group compute one batch at a time: replicas take turns. The predicted goodput of a stream is its rate if the loads
//! of its group add up to at most the group's size, and that part of its rate otherwise.
//!
//! Source: Zhang et al., "SHEPHERD: Serving DNNs in the Wild", NSDI 2023, section 4 (Herd), from published reading notes; the affinity of
//! two models and the linearised product from a third-party simulator. Its online part, Flex, is a dispatch discipline.
//!
//! Deviations:
//! - The paper measures `T`; here it follows from the profile.
//! - A stream is a model: what several users send to one model is one stream here.
//! - The paper numbers groups freely and has a variable for the affinity set of each group. Here the first stream of a group determines both.
//! - The third inequality of the product is left out, because the product is only maximised. So is the third-party simulator's memory limit
//!   of `G` times the device, which is a slip: every device of a group has all of its models.
//! - *Small clusters.* With fewer devices than affinity sets some models would have no device. The bound of affinity then grows until
//!   the sets suffice.
//! - *Full clusters.* If memory leaves no group with a device for some stream, `B` is 0 for every plan. A second term of the objective, which
//!   is too small to change a `B`, serves as much of every stream as it can.
//! - Devices of several kinds: a group has devices of one class, and `n` and the memory are those of the class.
//! - Models without expected requests get one replica where memory is left.

use packhorse_cluster::{
    ByteCount, ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond, Shortfall,
};

use crate::{
    Budget, PlaceError, PlanningOptions, Policy,
    candidates::{Candidates, largest_batch},
    device_classes::{DeviceClass, device_classes},
    duty_cycle::planned_duration,
    forecast::forecast,
};

mod affinity;
mod exact;
mod greedy;
#[cfg(test)]
mod tests;

pub(crate) const NAME: &str = "herd";

/// The largest number of devices in a group, `G`. Source: the third-party simulators; it bounds the work of the online part.
const LARGEST_GROUP: usize = 12;

/// The largest number of possible memberships, the square of the streams times the classes of devices, for which the integer program is
/// solved. Larger ones take minutes.
const MOST_EXACT: usize = 400;

pub(crate) struct Herd;

impl Policy for Herd {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        budget.spend((problem.devices.len() * problem.models.len()) as u64)?;
        let cluster = Cluster::new(problem);
        let memberships = cluster.streams.len().pow(2) * cluster.classes.len();
        let mut groups = if options.policy.herd_greedy || memberships > MOST_EXACT {
            greedy::groups(&cluster)
        } else {
            exact::groups(&cluster, budget)?
        };
        cluster.give_remaining_devices(&mut groups);
        Ok(cluster.into_plan(&groups))
    }
}

/// A model on a class of devices.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OnClass {
    batch: u32,
    /// The time of a batch in seconds.
    seconds: f64,
    memory: ByteCount,
    /// The load in devices, `n`.
    load: f64,
}

/// A model with requests that some device can serve.
#[derive(Clone, Debug)]
struct Stream {
    model: ModelIndex,
    /// The model on each class; `None` where it cannot run.
    on_class: Vec<Option<OnClass>>,
    /// The number of the affinity set.
    set: usize,
}

/// Devices that serve the same streams.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    class: usize,
    /// The numbers of the streams, ascending.
    streams: Vec<usize>,
    /// The number of devices.
    size: usize,
}

/// A problem in Herd's terms.
struct Cluster<'a> {
    problem: &'a Problem,
    classes: Vec<DeviceClass<'a>>,
    streams: Vec<Stream>,
    /// The models without requests that some device can serve.
    idle: Vec<Stream>,
}

impl<'a> Cluster<'a> {
    fn new(problem: &'a Problem) -> Self {
        let classes = device_classes(problem);
        let (mut streams, mut idle) = (Vec::new(), Vec::new());
        for (model, demanded) in problem.models() {
            let on_class = |class| on_class(problem, model, class);
            let on_class: Vec<_> = classes.iter().map(on_class).collect();
            if on_class.iter().all(Option::is_none) {
                continue;
            }
            let stream = Stream {
                model,
                on_class,
                set: 0,
            };
            if demanded.rate == RequestsPerSecond::ZERO {
                idle.push(stream);
            } else {
                streams.push(stream);
            }
        }
        affinity::divide(problem, &classes, &mut streams);
        Self {
            problem,
            classes,
            streams,
            idle,
        }
    }

    /// Returns the smallest burst tolerance of a group's streams, infinite without streams.
    fn tolerance(&self, group: &Group) -> f64 {
        let loads = group.streams.iter().map(|&stream| self.load(stream, group));
        group.size as f64 / loads.fold(0.0, f64::max)
    }

    fn load(&self, stream: usize, group: &Group) -> f64 {
        let on_class = self.streams[stream].on_class[group.class];
        on_class
            .expect("a stream is in a group that can serve it")
            .load
    }

    /// Gives the devices that no group has to the groups with the smallest tolerance.
    fn give_remaining_devices(&self, groups: &mut [Group]) {
        for (number, class) in self.classes.iter().enumerate() {
            let used: usize = groups
                .iter()
                .filter(|group| group.class == number)
                .map(|group| group.size)
                .sum();
            for _ in used..class.devices.len() {
                let open = groups.iter_mut().filter(|group| {
                    group.class == number && group.size < LARGEST_GROUP && !group.streams.is_empty()
                });
                let tightest = open.min_by(|a, b| self.tolerance(a).total_cmp(&self.tolerance(b)));
                let Some(tightest) = tightest else {
                    break;
                };
                tightest.size += 1;
            }
        }
    }

    fn into_plan(self, groups: &[Group]) -> Plan {
        let mut plan = Plan::empty(NAME, self.problem, &Shortfall::NoDeviceLeft);
        let mut carried = vec![(0, 0.0); self.problem.models.len()];
        let mut free: Vec<_> = self
            .classes
            .iter()
            .map(|class| class.devices.iter().copied())
            .collect();
        let mut room: Vec<ByteCount> = self
            .problem
            .devices
            .iter()
            .map(|device| device.memory)
            .collect();
        for group in groups {
            let members: Vec<(ModelIndex, OnClass)> = group
                .streams
                .iter()
                .map(|&stream| {
                    let stream = &self.streams[stream];
                    let on_class = stream.on_class[group.class];
                    (stream.model, on_class.expect("the group can serve it"))
                })
                .collect();
            let turns: f64 = members.iter().map(|(_, member)| member.seconds).sum();
            let load: f64 = members.iter().map(|(_, member)| member.load).sum();
            let served = (group.size as f64 / load).min(1.0);
            for device in free[group.class].by_ref().take(group.size) {
                for (model, member) in &members {
                    room[device.0] = room[device.0].saturating_sub(member.memory);
                    carried[model.0].0 += 1;
                    plan.replicas.push(PlannedReplica {
                        duty_cycle: Some(planned_duration(turns)),
                        ..PlannedReplica::new(*model, device, member.batch)
                    });
                }
            }
            for (model, _) in &members {
                carried[model.0].1 = served * self.problem.models[model.0].rate.get();
            }
        }
        self.place_idle(&mut room, &mut carried, &mut plan);
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        let candidates = Candidates::new(self.problem);
        for (model, demanded) in self.problem.models() {
            let (replicas, carried) = carried[model.0];
            let rate = demanded.rate;
            let unplaced = || {
                let infeasible = candidates.infeasible(model);
                infeasible.unwrap_or_else(|| self.unplaced(model))
            };
            let partly = |goodput| Shortfall::Throughput {
                replicas,
                goodput,
                rate,
            };
            plan.models[model.0] = forecast(rate, replicas, carried, unplaced, partly);
        }
        plan
    }

    /// Gives each model without requests a replica on the first device with the memory.
    fn place_idle(&self, room: &mut [ByteCount], carried: &mut [(usize, f64)], plan: &mut Plan) {
        for idle in &self.idle {
            let found = self.classes.iter().zip(&idle.on_class);
            let found = found.filter_map(|(class, on_class)| Some((class, on_class.as_ref()?)));
            let on_devices = found.flat_map(|(class, on_class)| {
                class.devices.iter().map(move |device| (*device, on_class))
            });
            let first = on_devices
                .filter(|(device, on_class)| on_class.memory <= room[device.0])
                .min_by_key(|(device, _)| *device);
            if let Some((device, on_class)) = first {
                room[device.0] = room[device.0].saturating_sub(on_class.memory);
                carried[idle.model.0].0 += 1;
                let seconds = on_class.seconds;
                plan.replicas.push(PlannedReplica {
                    duty_cycle: Some(planned_duration(seconds)),
                    ..PlannedReplica::new(idle.model, device, on_class.batch)
                });
            }
        }
    }

    /// Returns the reason why a model that some device could serve by its profile has no group.
    fn unplaced(&self, model: ModelIndex) -> Shortfall {
        let possible = self.streams.iter().chain(&self.idle);
        let fits_one = possible.into_iter().any(|stream| stream.model == model);
        if fits_one {
            Shortfall::NoDeviceWithMemoryLeft
        } else {
            Shortfall::NoMemoryWithinHalfSlo
        }
    }
}

/// Returns the batch of a model on a class with which one device reaches the most goodput; `None` if no batch is within the SLO and fits
/// the memory. If no batch is within half of the SLO, it is the fastest one.
fn on_class(problem: &Problem, model: ModelIndex, class: &DeviceClass<'_>) -> Option<OnClass> {
    let demanded = &problem.models[model.0];
    let profile = problem.profiles.get(&demanded.id, class.kind)?;
    let slo = demanded.slo.as_secs_f64();
    let seconds = |batch: u32| profile.latency(batch).as_secs_f64();
    let fits = |batch: &u32| {
        profile.latency(*batch) <= demanded.slo
            && class.replica_memory(profile, *batch) <= class.memory
    };
    let feasible = (1..=largest_batch(profile, demanded)).filter(fits);
    let (in_time, late): (Vec<u32>, Vec<u32>) =
        feasible.partition(|batch| 2.0 * seconds(*batch) <= slo);
    let throughput = |batch: u32| f64::from(batch) / seconds(batch);
    let most = in_time
        .into_iter()
        .max_by(|a, b| throughput(*a).total_cmp(&throughput(*b)));
    let batch = most.or_else(|| {
        late.into_iter()
            .min_by(|a, b| seconds(*a).total_cmp(&seconds(*b)))
    })?;
    Some(OnClass {
        batch,
        seconds: seconds(batch),
        memory: class.replica_memory(profile, batch),
        load: demanded.rate.get() / throughput(batch),
    })
}

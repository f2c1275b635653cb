//! Plans in which the models of a device share a pool, and the device's scheduler decides among all of them.
//!
//! A policy decides about replicas that have worker processes of their own, and computes beside each other what leaves room. Where no model leaves room, a
//! device is one server, and who computes next is better decided when requests are there: then every model is at home on up to
//! [`MOST_HOMES`] devices, and only the weights that are resident at the start are planned.
//!
//! Copies are given by the load of a model, its rate times the time of a request in the best batch, over the number of copies that it has already:
//! what is asked for most is on several devices before the rarest models are on one.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use packhorse_cluster::{
    ByteCount, DeviceIndex, Discipline, MinReplicas, ModelForecast, ModelIndex, Plan,
    PlannedReplica, PoolPlace, Problem, Residency, Shortfall,
};

use crate::{Budget, PlaceError, candidates::Candidates, forecast::forecast};

/// The most devices that a model is at home on: as many as one can ask for. More would cost the engine time, and balance little.
const MOST_HOMES: usize = MinReplicas::MOST;

/// The part of the multiprocessors, in percent, from which on a batch leaves no room for another one.
const NO_ROOM: f64 = 90.0;

/// The use of pools for the models of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolUse {
    /// Each replica has a worker process of its own.
    None,
    /// Pools are for when models would have no device otherwise.
    Spare,
    /// All models are members of pools.
    All,
}

/// Returns the use of pools: none unless all devices have one, the discipline decides by deadlines, and no model leaves room beside it, because the use of the
/// multiprocessors by its smallest batch is not measured, or is at least [`NO_ROOM`]. Where models are few, each rather has a process of its own;
/// where they are members of pools already, they stay until they are half as many, so that one model more or less does not move all others.
pub(crate) fn use_of_pools(problem: &Problem) -> PoolUse {
    let leaves_room = |device| {
        let mut profiles =
            { problem.models() }.filter_map(|(model, _)| problem.profile(model, device));
        profiles.any(|profile| {
            let used = profile.sm_utilization(1);
            used.is_some_and(|used| used.get() < NO_ROOM)
        })
    };
    let devices = problem.devices.iter();
    let own_workers: Option<usize> = { devices }
        .map(|device| device.pool.map(|pool| pool.own_workers as usize))
        .sum();
    let (Some(own_workers), Discipline::Deadline) = (own_workers, problem.discipline) else {
        return PoolUse::None;
    };
    if problem.devices.is_empty() || problem.devices().any(|(device, _)| leaves_room(device)) {
        return PoolUse::None;
    }
    let is_pooled = problem.current.iter().any(|replica| replica.pool.is_some());
    let few = if is_pooled {
        own_workers / 2
    } else {
        own_workers
    };
    if problem.models.len() > few {
        PoolUse::All
    } else {
        PoolUse::Spare
    }
}

/// The time that a batch is sent before its earliest deadline requires it, since batches of other models are sent before it. Source: what the serving engine
/// counts as urgent.
const SPARE: Duration = Duration::from_millis(20);

/// Makes the plan.
///
/// The forecast takes the devices as one server: batches fill in what an objective leaves beside their own time, and where not all can be served, the
/// requests that need least of the device's time are. On the scenarios of `docs/experiments/crowd.md` its sums are within two points of the
/// simulator's in the mean.
pub(crate) fn place(
    policy: &'static str,
    problem: &Problem,
    budget: &mut Budget<'_>,
) -> Result<Plan, PlaceError> {
    budget.spend((problem.models.len() * problem.devices.len()) as u64)?;
    let mut plan = Plan::empty(policy, problem, &Shortfall::NoDeviceWithMemoryLeft);
    let homes = Homes::plan(problem);
    plan.replicas = homes.replicas();
    plan.models = estimate(problem, &plan.replicas);
    debug_assert_eq!(plan.violations(problem), []);
    Ok(plan)
}

/// Returns the forecast of each model with these replicas, which are members of pools.
pub(crate) fn estimate(problem: &Problem, replicas: &[PlannedReplica]) -> Vec<ModelForecast> {
    let mut homes: Vec<Vec<&PlannedReplica>> = vec![Vec::new(); problem.models.len()];
    for replica in replicas {
        homes[replica.model.0].push(replica);
    }
    let carried = carried(problem, &homes);
    let candidates = Candidates::new(problem);
    let forecasts = problem.models().map(|(model, demanded)| {
        let replicas = homes[model.0].len();
        forecast(
            demanded.rate,
            replicas,
            demanded.rate.get() * carried[model.0],
            || {
                let infeasible = candidates.infeasible(model);
                infeasible.unwrap_or(Shortfall::NoDeviceWithMemoryLeft)
            },
            |goodput| Shortfall::NoDeviceLeftForMore {
                replicas,
                goodput,
                rate: demanded.rate,
            },
        )
    });
    forecasts.collect()
}

/// Returns the part of each model's requests that is served in time.
fn carried(problem: &Problem, homes: &[Vec<&PlannedReplica>]) -> Vec<f64> {
    let devices = problem.devices.iter();
    let mut left = devices.filter(|device| device.pool.is_some()).count() as f64;
    let cost = |model: ModelIndex| {
        let costs = homes[model.0].iter();
        let costs = costs.map(|home| seconds_per_row(problem, home));
        costs.min_by(f64::total_cmp)
    };
    let costs = problem.models().map(|(model, _)| cost(model));
    let costs: Vec<Option<f64>> = costs.collect();
    let mut order: Vec<(f64, usize)> = { costs.iter().enumerate() }
        .filter_map(|(model, cost)| Some(((*cost)?, model)))
        .collect();
    order.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut carried = vec![0.0; costs.len()];
    for (cost, model) in order {
        let needed = cost * problem.models[model].rate.get();
        carried[model] = if needed <= left { 1.0 } else { left / needed };
        left = (left - needed).max(0.0);
    }
    carried
}

/// Returns the seconds of a device that a request takes there, in the best of the batches that fill in time.
fn seconds_per_row(problem: &Problem, home: &PlannedReplica) -> f64 {
    let demanded = &problem.models[home.model.0];
    let Some(profile) = problem.profile(home.model, home.device) else {
        return f64::INFINITY;
    };
    let (conditions, network) = (problem.conditions, problem.network);
    let fixed = conditions.router_overhead + network.base + conditions.return_time + SPARE;
    let bytes = demanded.payload.as_u64() as f64;
    let seconds = |rows: u32| profile.latency(rows).as_secs_f64();
    let fills = |rows: &u32| {
        let transmitted = bytes * f64::from(*rows) / network.bytes_per_second;
        let needed = fixed.as_secs_f64() + transmitted + seconds(*rows);
        let left = demanded.slo.as_secs_f64() - needed;
        left > 0.0 && 1.0 + demanded.rate.get() * left >= f64::from(*rows)
    };
    let filled = (1..=home.batch_size).filter(fills);
    let costs = filled.map(|rows| seconds(rows) / f64::from(rows));
    costs.fold(seconds(1), f64::min)
}

/// The homes of all models.
struct Homes {
    by_model: Vec<Vec<Home>>,
    /// The bytes of each device that weights may have.
    memory: Vec<u64>,
}

impl Homes {
    /// Decides on which devices each model is at home, and where its weights are at the start.
    fn plan(problem: &Problem) -> Self {
        let devices = problem.devices();
        let memory = devices.map(|(device, _)| pool_memory(problem, device));
        let memory: Vec<u64> = memory.collect();
        let models = problem.models();
        let mut homes = Self {
            by_model: models
                .map(|(model, _)| homes_of(problem, model, &memory))
                .collect(),
            memory,
        };
        homes.make_resident(problem);
        homes
    }

    /// Makes the weights of models resident, while there is room.
    fn make_resident(&mut self, problem: &Problem) {
        let mut free = self.memory.clone();
        let load = |(model, homes): (usize, &Vec<Home>)| {
            let best = homes.iter().map(|home| home.seconds_per_row);
            let seconds = best.fold(f64::INFINITY, f64::min);
            problem.models[model].rate.get() * seconds
        };
        let loads: Vec<f64> = self.by_model.iter().enumerate().map(load).collect();
        let key = |model: usize, copies: u32| (loads[model] / f64::from(copies + 1) * 1e12) as u64;
        let mut queue: BinaryHeap<(u64, Reverse<usize>, u32)> = (0..loads.len())
            .map(|model| (key(model, 0), Reverse(model), 0))
            .collect();
        while let Some((_, Reverse(model), copies)) = queue.pop() {
            let open = self.by_model[model].iter_mut().filter(|home| {
                let fits = home.weights.as_u64() <= free[home.device.0];
                home.residency == Residency::Warm && fits
            });
            let roomiest = open.max_by_key(|home| (free[home.device.0], Reverse(home.device.0)));
            if let Some(home) = roomiest {
                home.residency = Residency::Resident;
                free[home.device.0] -= home.weights.as_u64();
                queue.push((key(model, copies + 1), Reverse(model), copies + 1));
            }
        }
    }

    /// Returns the homes as replicas, by model and device.
    fn replicas(&self) -> Vec<PlannedReplica> {
        let replica = |model: usize, home: &Home| PlannedReplica {
            pool: Some(PoolPlace {
                weights: home.weights,
                memory: ByteCount::new(self.memory[home.device.0]),
                load: home.load,
                residency: home.residency,
            }),
            memory: (home.residency == Residency::Resident).then_some(home.weights),
            ..PlannedReplica::new(ModelIndex(model), home.device, home.batch_size)
        };
        let models = self.by_model.iter().enumerate();
        let mut replicas: Vec<PlannedReplica> = models
            .flat_map(|(model, homes)| homes.iter().map(move |home| (model, home)))
            .map(|(model, home)| replica(model, home))
            .collect();
        replicas.sort_by_key(|replica| (replica.model, replica.device));
        replicas
    }
}

/// A device on which a model is at home.
#[derive(Clone, Copy, Debug)]
struct Home {
    device: DeviceIndex,
    weights: ByteCount,
    load: Duration,
    /// The most rows of a batch that takes no longer than the objective.
    batch_size: u32,
    /// The seconds of the device that a row takes in the best batch.
    seconds_per_row: f64,
    residency: Residency,
}

/// Returns the bytes of a device that the weights of its pool may have: what the process and the largest batch leave.
fn pool_memory(problem: &Problem, device: DeviceIndex) -> u64 {
    let Some(pool) = problem.devices[device.0].pool else {
        return 0;
    };
    let workspace = problem.models().filter_map(|(model, demanded)| {
        let sizes = (1..=demanded.max_batch_size).rev();
        let mut sizes = sizes.filter(|rows| leaves_room(problem, model, device, *rows));
        workspace(problem, model, device, sizes.next()?)
    });
    let taken = workspace.max().unwrap_or_default() + pool.process.as_u64();
    let memory = problem.devices[device.0].memory.as_u64();
    memory.saturating_sub(taken)
}

/// Returns true if a batch in the pool of a device leaves half of the room for weights, or has a single row. So no model takes the room of all others with
/// batches that are large, or of which nothing is known but a guess from smaller ones.
fn leaves_room(problem: &Problem, model: ModelIndex, device: DeviceIndex, rows: u32) -> bool {
    let whole = &problem.devices[device.0];
    let process = whole.pool.map_or(ByteCount::ZERO, |pool| pool.process);
    let most = whole.memory.saturating_sub(process).as_u64() / 2;
    rows == 1 || workspace(problem, model, device, rows).is_none_or(|needed| needed <= most)
}

/// Returns the bytes that a batch has beside the weights.
fn workspace(problem: &Problem, model: ModelIndex, device: DeviceIndex, rows: u32) -> Option<u64> {
    let whole = problem.profile(model, device)?.memory(rows)?;
    let weights = weights(problem, model, device)?;
    Some(whole.saturating_sub(weights).as_u64())
}

/// Returns the bytes of a model's weights: those that are known, or the memory of a batch of one row.
fn weights(problem: &Problem, model: ModelIndex, device: DeviceIndex) -> Option<ByteCount> {
    let profiled = || problem.profile(model, device)?.memory(1);
    problem.models[model.0].weights.or_else(profiled)
}

/// Returns the devices that a model is at home on, beginning at one that differs between models.
fn homes_of(problem: &Problem, model: ModelIndex, memory: &[u64]) -> Vec<Home> {
    let demanded = &problem.models[model.0];
    let devices = problem.devices.len();
    let order = (0..devices).map(|place| DeviceIndex((model.0 + place) % devices));
    let homes = order.filter_map(|device| {
        let pool = problem.devices[device.0].pool?;
        let profile = problem.profile(model, device)?;
        let weights = weights(problem, model, device)?;
        let sizes = (1..=demanded.max_batch_size).rev();
        let mut in_time = sizes.filter(|rows| profile.latency(*rows) <= demanded.slo);
        let batch_size = in_time.find(|rows| leaves_room(problem, model, device, *rows))?;
        let seconds = |rows: u32| profile.latency(rows).as_secs_f64() / f64::from(rows);
        let load = weights.as_u64() as f64 / pool.host_link_bytes_per_second;
        (weights.as_u64() <= memory[device.0]).then(|| Home {
            device,
            weights,
            load: Duration::from_secs_f64(load),
            batch_size,
            seconds_per_row: (1..=batch_size).map(seconds).fold(f64::INFINITY, f64::min),
            residency: Residency::Warm,
        })
    });
    homes.take(MOST_HOMES).collect()
}

//! The constraint that binds a model that is not served: the first one without which it would be served, or could be.

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{Bound, ByteCount, DemandedModel, Problem, Profile};

use super::{replanner::Replanner, served::SERVED};
use crate::estimate::{EstimatedReplica, ModelEstimate, PlacementEstimate};

/// The fraction of a device's time from which it has none left: the rest keeps the queue short.
const MAX_DEVICE_LOAD: f64 = 0.9;

/// Returns the problem with so much memory in each device that it binds no model.
pub(super) fn with_ample_memory(problem: &Problem) -> Problem {
    const AMPLE: ByteCount = ByteCount::new(1 << 44);
    let mut problem = problem.clone();
    for device in &mut problem.devices {
        device.memory = device.memory.max(AMPLE);
    }
    problem
}

/// Finds the bound of a model that is not served. `is_memory` is true if more memory would serve it.
pub(super) fn find_bound(
    estimate: &PlacementEstimate<'_, '_>,
    model: usize,
    is_memory: bool,
    replanner: &mut Replanner<'_, '_>,
) -> Bound {
    let problem = estimate.inputs.problem;
    let demanded = &problem.models[model];
    if problem.devices.is_empty() {
        return Bound::DeviceTime;
    }
    let mut replicas = estimate.replicas().iter();
    let is_placed = replicas.any(|replica| replica.model == model);
    match latency_floor(estimate, model, is_placed) {
        None => return Bound::NoProfile,
        Some(floor) if floor > demanded.slo => {
            let slo = demanded.slo;
            return Bound::LatencyFloor { floor, slo };
        }
        Some(_) => (),
    }
    if is_memory {
        return Bound::Memory;
    }
    if !is_placed {
        return policy_bound(problem, model, replanner).unwrap_or(Bound::DeviceTime);
    }
    let alone = without_neighbours(estimate, model);
    if alone.in_time >= SERVED {
        return if devices_have_time(estimate, model) {
            Bound::Interference
        } else {
            Bound::DeviceTime
        };
    }
    if alone.is_limited_by_batch_time() {
        let batches = replicas_of(estimate, model).map(|replica| replica.batch);
        return Bound::BatchTime {
            batch_size: batches.max().unwrap_or_default(),
            slo: demanded.slo,
        };
    }
    Bound::DeviceTime
}

fn replicas_of<'e>(
    estimate: &'e PlacementEstimate<'_, '_>,
    model: usize,
) -> impl Iterator<Item = &'e EstimatedReplica> {
    let replicas = estimate.replicas().iter();
    replicas.filter(move |replica| replica.model == model)
}

/// Returns the least latency of a request on any device; `None` if the model has no profile there. Without a replica it is that of
/// the fastest batch that may be planned, else of one row.
fn latency_floor(
    estimate: &PlacementEstimate<'_, '_>,
    model: usize,
    is_placed: bool,
) -> Option<Duration> {
    let problem = estimate.inputs.problem;
    let (demanded, demand) = (&problem.models[model], &estimate.inputs.demands[model]);
    let kinds: BTreeSet<_> = problem.devices.iter().map(|device| &device.kind).collect();
    let network = demand.network_latency + demand.network_latency_per_row;
    let network = Duration::from_secs_f64(network);
    let floor = |profile: &Profile| {
        let one_row = profile.latency(1).mul_f64(demanded.latency_scale) + network;
        if is_placed {
            one_row
        } else {
            one_row.max(fastest_batch(profile, demanded))
        }
    };
    let profiles = kinds
        .into_iter()
        .filter_map(|kind| problem.profiles.get(&demanded.id, kind));
    profiles.map(floor).min()
}

/// Returns the time of the fastest batch that may be planned, full and alone. The batches of a plan must be within the SLO.
fn fastest_batch(profile: &Profile, model: &DemandedModel) -> Duration {
    let sizes = profile.whole().iter().map(|row| row.batch_size);
    let allowed = sizes.filter(|size| *size <= model.max_batch_size);
    let fastest = allowed.map(|size| profile.latency(size)).min();
    fastest.unwrap_or_else(|| profile.latency(model.max_batch_size.max(1)))
}

/// Returns the policy's own reason if it plans no replica of the model even without other models.
fn policy_bound(
    problem: &Problem,
    model: usize,
    replanner: &mut Replanner<'_, '_>,
) -> Option<Bound> {
    let alone = Problem {
        models: vec![problem.models[model].clone()],
        current: Vec::new(),
        ..problem.clone()
    };
    let plan = replanner.plan(&alone)?;
    if !plan.replicas.is_empty() {
        return None;
    }
    let shortfall = plan.models.into_iter().find_map(|model| model.shortfall);
    Some(Bound::Policy {
        why: shortfall.map_or_else(
            || "it does not say why".to_owned(),
            |shortfall| shortfall.to_string(),
        ),
    })
}

/// Returns the estimate of the model if its replicas had no neighbours of other models.
fn without_neighbours(estimate: &PlacementEstimate<'_, '_>, model: usize) -> ModelEstimate {
    let mut alone = PlacementEstimate::new(estimate.inputs);
    for replica in replicas_of(estimate, model) {
        alone.add_replica(replica.device, model, replica.batch, replica.share);
    }
    alone.solve();
    alone.models()[model]
}

/// Returns true if the devices of the model's replicas have time left beside the arrivals of all their replicas, in full batches.
fn devices_have_time(estimate: &PlacementEstimate<'_, '_>, model: usize) -> bool {
    let load = |replica: &EstimatedReplica| {
        let costs = estimate.inputs.batch_costs(replica.model, replica.device);
        let costs = costs.expect("only replicas with a profile are added");
        let rows = f64::from(replica.batch);
        let seconds = costs.seconds(rows, replica.share);
        replica.arrival_rate * seconds / rows * replica.backlog_utilization / 100.0
    };
    let devices: BTreeSet<usize> = replicas_of(estimate, model)
        .map(|replica| replica.device)
        .collect();
    let device_load = |device| -> f64 { estimate.on_device(device).iter().map(load).sum() };
    devices
        .into_iter()
        .all(|device| device_load(device) <= MAX_DEVICE_LOAD)
}

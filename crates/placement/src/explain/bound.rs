//! What a model that is not served is bound by: the first constraint without which it would be served, or could be.

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{Bound, ByteCount, DemandedModel, Problem, Profile};

use super::{SERVED, asker::Asker};
use crate::estimate::{Outlook, Slot};

/// A device of whose time this part is asked for has none left: what is above is needed for requests not to queue.
const USED_UP: f64 = 0.9;

/// The problem with devices so large that memory bounds nothing.
pub(super) fn with_more_memory(problem: &Problem) -> Problem {
    const PLENTY: ByteCount = ByteCount::new(1 << 44);
    let mut problem = problem.clone();
    for device in &mut problem.devices {
        device.memory = device.memory.max(PLENTY);
    }
    problem
}

/// Of a model that is not served; `with_memory` if it would be served with more memory.
pub(super) fn bound(
    outlook: &Outlook<'_, '_>,
    model: usize,
    with_memory: bool,
    asker: &mut Asker<'_, '_>,
) -> Bound {
    let problem = outlook.world.problem;
    let demanded = &problem.models[model];
    if problem.devices.is_empty() {
        return Bound::DeviceTime;
    }
    let placed = outlook.slots().iter().any(|slot| slot.model == model);
    match floor(outlook, model, placed) {
        None => return Bound::NoProfile,
        Some(floor) if floor > demanded.slo => {
            let slo = demanded.slo;
            return Bound::LatencyFloor { floor, slo };
        }
        Some(_) => (),
    }
    if with_memory {
        return Bound::Memory;
    }
    if !placed {
        return refused(problem, model, asker).unwrap_or(Bound::DeviceTime);
    }
    if alone(outlook, model) >= SERVED {
        return if devices_have_time(outlook, model) {
            Bound::Interference
        } else {
            Bound::DeviceTime
        };
    }
    let fate = &outlook.fates()[model];
    if fate.too_slow > 1.0 - fate.fraction - fate.too_slow {
        let of_model = outlook.slots().iter().filter(|slot| slot.model == model);
        return Bound::BatchTime {
            batch_size: of_model.map(|slot| slot.batch).max().unwrap_or_default(),
            slo: demanded.slo,
        };
    }
    Bound::DeviceTime
}

/// The least latency of a request on any device; none if the model has no profile there. If it has no replica, the smallest
/// batch that may be planned counts, else one row.
fn floor(outlook: &Outlook<'_, '_>, model: usize, placed: bool) -> Option<Duration> {
    let problem = outlook.world.problem;
    let (demanded, demand) = (&problem.models[model], &outlook.world.demands[model]);
    let kinds: BTreeSet<_> = problem.devices.iter().map(|device| &device.kind).collect();
    let way = Duration::from_secs_f64(demand.way + demand.way_per_row);
    let of_profile = |profile: &Profile| {
        let answered = profile.latency(1).mul_f64(demanded.latency_scale) + way;
        if placed {
            answered
        } else {
            answered.max(quickest(profile, demanded))
        }
    };
    let profiles = kinds
        .into_iter()
        .filter_map(|kind| problem.profiles.get(&demanded.id, kind));
    profiles.map(of_profile).min()
}

/// The time of the quickest batch that may be planned, full and alone: plans may hold no slower one than the SLO allows.
fn quickest(profile: &Profile, model: &DemandedModel) -> Duration {
    let sizes = profile.whole().iter().map(|row| row.batch_size);
    let fitting = sizes.filter(|size| *size <= model.max_batch_size);
    let quickest = fitting.map(|size| profile.latency(size)).min();
    quickest.unwrap_or_else(|| profile.latency(model.max_batch_size.max(1)))
}

/// The policy's own reason, if it has none of the model's replicas where there is nothing else either.
fn refused(problem: &Problem, model: usize, asker: &mut Asker<'_, '_>) -> Option<Bound> {
    let alone = Problem {
        models: vec![problem.models[model].clone()],
        current: Vec::new(),
        ..problem.clone()
    };
    let plan = asker.plan(&alone)?;
    if !plan.replicas.is_empty() {
        return None;
    }
    let why = plan.models.into_iter().find_map(|model| model.shortfall);
    Some(Bound::Policy {
        why: why.unwrap_or_else(|| "it does not say why".to_owned()),
    })
}

/// The part of the model's requests that would be in time if its replicas had their devices to themselves.
fn alone(outlook: &Outlook<'_, '_>, model: usize) -> f64 {
    let mut alone = Outlook::new(outlook.world);
    for slot in outlook.slots().iter().filter(|slot| slot.model == model) {
        alone.put(slot.device, model, slot.batch, slot.share);
    }
    alone.settle();
    alone.fates()[model].fraction
}

/// Whether what is asked of the devices of the model's replicas, in full batches, leaves them time.
fn devices_have_time(outlook: &Outlook<'_, '_>, model: usize) -> bool {
    let used = |slot: &Slot| {
        let service = outlook.world.service(slot.model, slot.device);
        let service = service.expect("only what has a profile is put");
        let rows = f64::from(slot.batch);
        slot.offered * service.seconds(rows, slot.share) / rows * slot.full_utilization / 100.0
    };
    let of_model = outlook.slots().iter().filter(|slot| slot.model == model);
    let devices: BTreeSet<usize> = of_model.map(|slot| slot.device).collect();
    devices
        .into_iter()
        .all(|device| outlook.on(device).iter().map(used).sum::<f64>() <= USED_UP)
}

//! What comes to a replica under the discipline `fixed-wait`: batches are sent when they are full, or a fixed time after their first
//! request; nothing is dropped.
//!
//! With `λ` the model's rate, a batch takes `F = min((B - 1) / λ, wait)` to fill, up to `b = 1 + λ F` rows. A replica is busy `ρ = x · T / b`
//! of the time. Of a request that arrived evenly distributed over that time, what is left of the SLO after filling, `T` and the way
//! must cover the wait behind other batches, which exceeds `t` with probability `ρ · exp(-2 (1 - ρ) t / (c² T))`: a queue of batches
//! whose arrivals vary `1/b` as much as the requests', and whose services vary with the neighbours.
//!
//! Above `ρ = 1` the backlog grows for as long as the overload lasts; requests are in time until it is as long as what is left.
//!
//! Source of the exponent: Kingman, "The single server queue in heavy traffic", 1961.

use super::{fate::Passage, outlook::Slot, service::Service, world::Demand};

/// How long an overload is taken to last, in seconds.
const OVERLOAD: f64 = 10.0;

pub(super) fn come_to(slot: &mut Slot, service: &Service, demand: &Demand, wait: f64) {
    slot.rows = (1.0 + demand.rate * fill(slot, demand, wait)).min(f64::from(slot.batch));
    slot.busy = load(slot, time(slot, service)).min(1.0);
    slot.utilization = service.utilization(slot.rows, slot.share);
}

/// How the requests that come to a replica fare.
pub(super) fn passage(slot: &Slot, service: &Service, demand: &Demand, wait: f64) -> Passage {
    let (fill, time) = (fill(slot, demand, wait), time(slot, service));
    let way = demand.way + demand.way_per_row * slot.rows;
    let room = demand.slo - way - time;
    let variation = demand.dispersion / slot.rows + slot.pace.spread.powi(2);
    let prompt = if room <= 0.0 {
        0.0
    } else {
        in_time(room, fill, load(slot, time), time * variation)
    };
    Passage {
        prompt,
        sure: prompt,
        patience: room.max(0.0),
        jitter: 0.0,
        latency: way + time + fill,
    }
}

/// How long a batch takes to fill, in seconds.
fn fill(slot: &Slot, demand: &Demand, wait: f64) -> f64 {
    let missing = f64::from(slot.batch) - 1.0;
    f64::min(missing / demand.rate.max(f64::MIN_POSITIVE), wait)
}

/// How long a batch takes beside the neighbours, in seconds.
fn time(slot: &Slot, service: &Service) -> f64 {
    service.seconds(slot.rows, slot.share) / slot.pace.mean
}

/// How busy what comes wants a replica to be whose batches take so long.
fn load(slot: &Slot, time: f64) -> f64 {
    slot.offered * time / slot.rows
}

/// The part of requests that wait for their batch up to `fill`, evenly, and then for other batches, no longer than `room`.
fn in_time(room: f64, fill: f64, load: f64, spread: f64) -> f64 {
    let filled = if fill > 0.0 {
        (room / fill).min(1.0)
    } else {
        1.0
    };
    if load >= 1.0 {
        let left = room - 0.5 * fill.min(room);
        return filled * f64::min(1.0, left / (load - 1.0).max(f64::MIN_POSITIVE) / OVERLOAD);
    }
    let decay = 2.0 * (1.0 - load) / spread.max(f64::MIN_POSITIVE);
    let late = |left: f64| load * (-decay * left).exp();
    // The mean over what filling leaves, by Simpson's rule.
    let least = room - fill.min(room);
    let middle = 0.5 * (room + least);
    filled * (1.0 - (late(room) + 4.0 * late(middle) + late(least)) / 6.0)
}

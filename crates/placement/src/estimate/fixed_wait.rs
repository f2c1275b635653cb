//! Batches and waiting times of a replica under the discipline `fixed-wait`: batches are sent when they are full, or a fixed time
//! after their first request; no request is dropped.
//!
//! With `λ` the model's rate, a batch takes `F = min((B - 1) / λ, wait)` to fill, up to `b = 1 + λ F` rows. A replica is busy `ρ = x · T / b`
//! of the time. For a request that arrived evenly distributed over the filling time, the rest of the SLO after filling, `T` and the
//! network must cover the wait behind other batches, which exceeds `t` with probability `ρ · exp(-2 (1 - ρ) t / (c² T))`: a queue of
//! batches whose arrivals vary `1/b` as much as the requests', and whose services vary with the neighbours.
//!
//! Above `ρ = 1` the backlog grows for as long as the overload lasts; requests are in time until the backlog is as long as the rest of
//! the SLO.
//!
//! Source of the exponent: Kingman, "The single server queue in heavy traffic", 1961.

use super::{
    batch_costs::BatchCosts,
    demand::Demand,
    replica::{EstimatedReplica, ReplicaEstimate},
};

/// The assumed duration of an overload, in seconds.
const OVERLOAD: f64 = 10.0;

/// Computes a replica's batches and busy fraction from its arrival rate.
pub(super) fn update_load(
    replica: &mut EstimatedReplica,
    costs: &BatchCosts,
    demand: &Demand,
    wait: f64,
) {
    replica.rows =
        (1.0 + demand.rate * fill_seconds(replica, demand, wait)).min(f64::from(replica.batch));
    replica.busy = offered_load(replica, batch_seconds(replica, costs)).min(1.0);
    replica.utilization = costs.utilization(replica.rows, replica.share);
}

/// Estimates the times of the requests of a replica.
pub(super) fn estimate(
    replica: &EstimatedReplica,
    costs: &BatchCosts,
    demand: &Demand,
    wait: f64,
) -> ReplicaEstimate {
    let (fill, time) = (
        fill_seconds(replica, demand, wait),
        batch_seconds(replica, costs),
    );
    let network = demand.network_latency + demand.network_latency_per_row * replica.rows;
    let slack = demand.slo - network - time;
    let variation = demand.dispersion / replica.rows + replica.speed.variation.powi(2);
    let in_time = if slack <= 0.0 {
        0.0
    } else {
        fraction_in_time(slack, fill, offered_load(replica, time), time * variation)
    };
    ReplicaEstimate {
        in_time,
        in_time_conservative: in_time,
        patience: slack.max(0.0),
        dispersion: 0.0,
        latency: network + time + fill,
    }
}

/// Returns the seconds that a batch takes to fill.
fn fill_seconds(replica: &EstimatedReplica, demand: &Demand, wait: f64) -> f64 {
    let missing = f64::from(replica.batch) - 1.0;
    f64::min(missing / demand.rate.max(f64::MIN_POSITIVE), wait)
}

/// Returns the seconds that a batch takes to compute beside the neighbours.
fn batch_seconds(replica: &EstimatedReplica, costs: &BatchCosts) -> f64 {
    costs.seconds(replica.rows, replica.share) / replica.speed.mean
}

/// Returns the offered load `ρ` of a replica whose batches take `time` seconds.
fn offered_load(replica: &EstimatedReplica, time: f64) -> f64 {
    replica.arrival_rate * time / replica.rows
}

/// Returns the fraction of requests that wait at most `slack` seconds: first for their own batch, evenly distributed up to `fill`, and
/// then for other batches, whose mean wait grows with `variation`, in seconds.
fn fraction_in_time(slack: f64, fill: f64, load: f64, variation: f64) -> f64 {
    let filled = if fill > 0.0 {
        (slack / fill).min(1.0)
    } else {
        1.0
    };
    if load >= 1.0 {
        let left = slack - 0.5 * fill.min(slack);
        return filled * f64::min(1.0, left / (load - 1.0).max(f64::MIN_POSITIVE) / OVERLOAD);
    }
    let decay = 2.0 * (1.0 - load) / variation.max(f64::MIN_POSITIVE);
    let late = |left: f64| load * (-decay * left).exp();
    // The mean over the slack that filling leaves, by Simpson's rule.
    let least = slack - fill.min(slack);
    let middle = 0.5 * (slack + least);
    filled * (1.0 - (late(slack) + 4.0 * late(middle) + late(least)) / 6.0)
}

//! Batches and waiting times of a replica under the discipline `deadline`.
//!
//! **Split.** Late binding gives each of a model's `n` replicas what it can carry: `x = λ · μ / Σ μ` requests/s, with `μ` the
//! requests/s of its batches in the backlog state, beside its neighbours.
//!
//! **Batches behind a backlog.** The dispatcher lets no batch grow so that its first request is late. Behind the batch that computes,
//! and with requests of bursts of `g` that are `1 / λ g` apart, a batch of `b` rows is in time while
//!
//! ```text
//! network(b) + 2 T(b) + (b - 1) min(1 / (λ g), T(b) / b) ≤ SLO
//! ```
//!
//! with `T(b)` the solo time over the relative speed (requests that arrive slower than they are computed are no backlog): Nexus' two
//! conditions at once (Shen et al., SOSP 2019, section 6.1 for batches that wait behind another, algorithm 1 for those that gather
//! first). The capacity is that of the most such rows, at most the batch size. It has a step where a higher rate makes one more row possible:
//! around it, the estimated fraction in time may grow with the rate.
//!
//! **Batches.** While a replica computes, its next batch gathers: mean batches have `b = y + e^(-y)` rows, `y = x · T(b)`, the
//! arrivals during a batch, or the first request after a time without any (M/D^\[1,B\]/1, from regeneration at the ends of batches), up
//! to the rows of the backlog state. The replica is busy `x · T(b) / b` of the time.
//!
//! **Phase.** A request finds all replicas busy with probability `q = busy^n`. Then it waits for a credit, up to `T / n`, and for
//! [`DISPATCH_LEAD`] of a batch that the replica holds already, `q · T`, before its own is computed, `T`; else for its own only. The
//! SLO less the network latency must cover that. The neighbours' variation makes `T` larger or smaller, each half of the time.
//!
//! **Bursts.** All but the first of `g` requests that arrive at once find all replicas of the model busy, with batches that are larger by
//! [`CLUSTERED_BURSTS`] bursts. The dispatcher does not know the rest of a burst; the batches are no larger than it expects to be in time.
//!
//! **Queue.** Some of the requests that could be in time by these rules wait too long behind others: [`super::queue`].

use super::{
    batch_costs::BatchCosts,
    demand::Demand,
    neighbours::RelativeSpeed,
    replica::{EstimatedReplica, ReplicaEstimate},
};

/// The typical time between sending a batch to a busy replica and its computation, as a fraction of a batch time. Requests that arrive
/// before the batch is sent may still join it.
const DISPATCH_LEAD: f64 = 0.25;
/// The number of bursts that arrive close together.
const CLUSTERED_BURSTS: f64 = 3.0;
/// The largest coefficient of variation of a batch time.
const MAX_VARIATION: f64 = 0.9;

/// Returns the most rows of a batch, at most `batch`, that is in time behind another one; at most `gap` seconds lie between its requests.
fn most_rows_in_time(batch: u32, gap: f64, demand: &Demand, seconds: impl Fn(f64) -> f64) -> f64 {
    let is_late = |rows: f64| {
        let network = demand.network_latency + demand.network_latency_per_row * rows;
        let time = seconds(rows);
        network + 2.0 * time + (rows - 1.0) * gap.min(time / rows) > demand.slo
    };
    // More rows are never less late, and mostly a full batch is in time.
    if !is_late(f64::from(batch)) {
        return f64::from(batch);
    }
    let (mut most, mut least_late) = (1, batch);
    while most + 1 < least_late {
        let middle = most.midpoint(least_late);
        if is_late(f64::from(middle)) {
            least_late = middle;
        } else {
            most = middle;
        }
    }
    f64::from(most)
}

/// Returns the rows of a replica's batches in the backlog state.
pub(super) fn backlog_rows(
    replica: &EstimatedReplica,
    costs: &BatchCosts,
    demand: &Demand,
    speed: f64,
) -> f64 {
    if demand.rate <= 0.0 {
        return f64::from(replica.batch);
    }
    let gap = 1.0 / (demand.rate * demand.mean_burst());
    most_rows_in_time(replica.batch, gap, demand, |rows| {
        costs.seconds(rows, replica.share) / speed
    })
}

/// Computes a replica's batches and busy fraction from its arrival rate.
pub(super) fn update_load(replica: &mut EstimatedReplica, costs: &BatchCosts, demand: &Demand) {
    let arrival_rate = replica.arrival_rate;
    let (share, most) = (replica.share, replica.backlog_rows);
    let speed = replica.speed.mean;
    let seconds = |rows: f64| costs.seconds(rows, share) / speed;
    let rows = costs.least_rows(arrival_rate / speed, most as u32, share);
    let arrivals = arrival_rate * seconds(rows);
    replica.rows = (arrivals + (-arrivals).exp()).clamp(1.0, most);
    replica.busy = (arrival_rate * seconds(replica.rows) / replica.rows).min(1.0);
    replica.utilization = costs.utilization(replica.rows, share);

    let burst = demand.mean_burst();
    replica.burst_rows = replica.rows;
    if burst > 1.0 {
        let expected_in_time = most_rows_in_time(replica.batch, 0.0, demand, seconds);
        let gathered = replica.rows + CLUSTERED_BURSTS * (burst - 1.0);
        replica.burst_rows = gathered.min(expected_in_time).max(replica.rows);
    }
    replica.burst_utilization = costs.utilization(replica.burst_rows, share);
}

/// Estimates the times of the requests of one of `count` replicas of a model.
pub(super) fn estimate(
    replica: &EstimatedReplica,
    costs: &BatchCosts,
    demand: &Demand,
    count: f64,
) -> ReplicaEstimate {
    let seconds = |rows: f64, speed: f64| costs.seconds(rows, replica.share) / speed;
    let wait_probability = replica.busy.powf(count);
    // The fraction in time in batches of `rows`, if a request that waits does so for the first of `replicas` replicas, and behind the
    // fraction `lead` of a batch.
    let fraction_in_time = |rows: f64, speed: RelativeSpeed, lead: f64, replicas: f64| {
        let variation = speed.variation.hypot(costs.variation).min(MAX_VARIATION);
        let at_speed = |speed: f64| {
            let time = seconds(rows, speed);
            let slack =
                demand.slo - demand.network_latency - demand.network_latency_per_row * rows - time;
            if slack <= 0.0 {
                return 0.0;
            }
            let phase = (slack - lead * wait_probability * time) * replicas / time;
            1.0 - wait_probability + wait_probability * phase.clamp(0.0, 1.0)
        };
        0.5 * (at_speed(speed.mean * (1.0 - variation)) + at_speed(speed.mean * (1.0 + variation)))
    };
    let burst = demand.mean_burst();
    let in_time = |lead: f64| {
        let normal = fraction_in_time(replica.rows, replica.speed, lead, count);
        if burst > 1.0 {
            let bursting = fraction_in_time(replica.burst_rows, replica.burst_speed, lead, 1.0);
            return bursting + (normal - bursting) / burst;
        }
        normal
    };
    let time = seconds(replica.burst_rows, replica.speed.mean);
    let network = demand.network_latency + demand.network_latency_per_row * replica.burst_rows;
    let variation = replica
        .speed
        .variation
        .hypot(costs.variation)
        .min(MAX_VARIATION);
    ReplicaEstimate {
        in_time: in_time(DISPATCH_LEAD),
        in_time_conservative: in_time(1.0),
        patience: (demand.slo - network - time).max(0.0),
        dispersion: variation * variation * replica.backlog_rows,
        latency: network + time * (1.0 + wait_probability + wait_probability / count),
    }
}

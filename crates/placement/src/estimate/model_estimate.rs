//! The estimate for one model over all of its replicas.

use super::{
    demand::Demand, queue::SharedQueue, replica::EstimatedReplica, replica::ReplicaEstimate,
};

/// Multiples of the expected rate, and their weights in [`ModelEstimate::stressed`]. Of two placements that serve all, the one with
/// more headroom is better.
const STRESSES: [(f64, f64); 2] = [(1.15, 0.98), (1.6, 0.02)];
/// The multiple of the expected rate in [`ModelEstimate::surge`].
const SURGE: f64 = 2.0;

/// The estimated fraction of a model's requests in time, with latency and capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelEstimate {
    /// The fraction of requests answered within the SLO.
    pub(crate) in_time: f64,
    /// The fraction in time if each request that finds all replicas busy waits for one whole batch. The search uses this value,
    /// since `in_time` is sensitive where batches take about half of the SLO.
    pub(crate) in_time_conservative: f64,
    /// The conservative fraction in time at more than the expected rate: the weighted mean over [`STRESSES`].
    pub(crate) stressed: f64,
    /// The conservative fraction in time at [`SURGE`] times the expected rate of this model.
    pub(crate) surge: f64,
    /// The fraction late because of batch times alone, however few requests arrive.
    pub(crate) late_without_queue: f64,
    /// A latency in seconds that nearly all requests in time stay below.
    pub(crate) latency: f64,
    /// Requests per second that the replicas carry in the backlog state.
    pub(crate) capacity: f64,
}

impl ModelEstimate {
    pub(crate) const UNSERVED: Self = Self {
        in_time: 0.0,
        in_time_conservative: 0.0,
        stressed: 0.0,
        surge: 0.0,
        late_without_queue: 0.0,
        latency: 0.0,
        capacity: 0.0,
    };

    /// Combines the estimates of a model's replicas, weighted by their capacities.
    pub(crate) fn from_replicas<'s>(
        demand: &Demand,
        replicas: impl Iterator<Item = &'s EstimatedReplica>,
    ) -> Self {
        let mut sum = ReplicaEstimate::default();
        let mut capacity = 0.0;
        for replica in replicas {
            capacity += replica.capacity;
            sum.in_time += replica.capacity * replica.estimate.in_time;
            sum.in_time_conservative += replica.capacity * replica.estimate.in_time_conservative;
            sum.patience += replica.capacity * replica.estimate.patience;
            sum.dispersion += replica.capacity * replica.estimate.dispersion;
            sum.latency += replica.capacity * replica.estimate.latency;
        }
        if capacity <= 0.0 {
            return Self::UNSERVED;
        }
        let in_time = sum.in_time / capacity;
        let in_time_conservative = sum.in_time_conservative / capacity;
        let kept = |stress: f64| {
            if demand.fixed_wait.is_some() {
                return 1.0;
            }
            let queue = SharedQueue {
                rate: demand.rate * stress,
                capacity,
                patience: sum.patience / capacity,
                dispersion: demand.dispersion + sum.dispersion / capacity,
            };
            1.0 - queue.loss()
        };
        let as_expected = kept(1.0);
        let stressed = STRESSES.iter();
        Self {
            in_time: in_time * as_expected,
            in_time_conservative: in_time_conservative * as_expected,
            stressed: in_time_conservative
                * stressed
                    .map(|(stress, weight)| weight * kept(*stress))
                    .sum::<f64>(),
            surge: in_time_conservative * kept(SURGE),
            late_without_queue: 1.0 - in_time,
            latency: (sum.latency / capacity).min(demand.slo),
            capacity,
        }
    }

    /// Returns true if more requests are late because of batch times alone than because of the queue.
    pub(crate) fn is_limited_by_batch_time(&self) -> bool {
        self.late_without_queue > 1.0 - self.in_time - self.late_without_queue
    }

    /// Adds `other`, the estimate for a further part of the model's rate.
    pub(crate) fn plus_part(self, part: f64, other: Self) -> Self {
        Self {
            in_time: self.in_time + part * other.in_time,
            in_time_conservative: self.in_time_conservative + part * other.in_time_conservative,
            stressed: self.stressed + part * other.stressed,
            surge: self.surge + part * other.surge,
            late_without_queue: self.late_without_queue + part * other.late_without_queue,
            latency: self.latency.max(other.latency),
            capacity: self.capacity + other.capacity,
        }
    }
}

//! An upper bound of the goodput of a group on the remaining resources of a cluster. A configuration whose bound is no better than an
//! earlier configuration need not be placed.
//!
//! The bound is a relaxation, so that skipping configurations changes no plan: replicas may be divided, and all devices together are one
//! pool of compute, one of memory, and for each of the two one of places for replicas that require more than half of a device, of which
//! a device has at most one.

use crate::tolerance::PERCENT_ROUNDING;

/// Half of a device's compute or memory, in percent.
const HALF: f64 = 50.0;

/// The free resources of all devices.
pub(super) struct FreeResources {
    /// Percent of compute, percent of memory, devices with more than half of their compute, and devices with more than half of their
    /// memory.
    free: [f64; 4],
}

/// The room for replicas with one batch size.
pub(super) struct BatchRoom {
    /// The number of devices on which one replica fits.
    pub(super) devices: usize,
    /// The smallest compute requirement on any device, in percent.
    pub(super) compute: f64,
    /// The smallest memory requirement on any device, in percent.
    pub(super) memory: f64,
}

/// An upper bound of a model's goodput.
#[derive(Clone, Copy)]
pub(super) struct GoodputBound {
    /// The bound in requests per second.
    goodput: f64,
    /// The amount of each resource that one request per second requires at least.
    cost: [f64; 4],
}

impl FreeResources {
    /// Creates the resources from the free compute and memory of each device, in percent.
    pub(super) fn new(devices: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut free = [0.0; 4];
        for (compute, memory) in devices {
            free[0] += compute + PERCENT_ROUNDING;
            free[1] += memory + PERCENT_ROUNDING;
            free[2] += f64::from(u8::from(compute + PERCENT_ROUNDING > HALF));
            free[3] += f64::from(u8::from(memory + PERCENT_ROUNDING > HALF));
        }
        Self { free }
    }

    /// Returns an upper bound of the sum of the models' goodput: the smallest of the bounds by each single resource, where the models
    /// with the smallest cost per request get the resource first.
    pub(super) fn goodput_bound(
        &self,
        bounds: &(impl Iterator<Item = GoodputBound> + Clone),
    ) -> f64 {
        let by_resource = |resource: usize| {
            let mut left = self.free[resource];
            let mut goodput = 0.0;
            // A group has at most four models: selecting the next cheapest one is as fast as sorting.
            let mut last = (-1.0, 0);
            loop {
                let with_cost = bounds
                    .clone()
                    .enumerate()
                    .map(|(number, bound)| ((bound.cost[resource], number), bound));
                let next = with_cost
                    .filter(|(key, _)| *key > last)
                    .min_by(|a, b| a.0.0.total_cmp(&b.0.0).then(a.0.1.cmp(&b.0.1)));
                let Some((key, bound)) = next else {
                    return goodput;
                };
                last = key;
                let served = if bound.cost[resource] > 0.0 && bound.goodput > 0.0 {
                    bound.goodput.min(left / bound.cost[resource])
                } else {
                    bound.goodput
                };
                if served > 0.0 {
                    left -= served * bound.cost[resource];
                    goodput += served;
                }
            }
        };
        (0..4).map(by_resource).fold(f64::INFINITY, f64::min)
    }
}

impl BatchRoom {
    /// Returns the bound for replicas with a goodput of `goodput` in total and a throughput of `throughput` each.
    pub(super) fn goodput_bound(&self, goodput: f64, throughput: f64) -> GoodputBound {
        let big = |percent: f64| f64::from(u8::from(percent > HALF + 2.0 * PERCENT_ROUNDING));
        let required = [
            self.compute,
            self.memory,
            big(self.compute),
            big(self.memory),
        ];
        GoodputBound {
            goodput,
            cost: required.map(|required| required / throughput),
        }
    }
}

impl GoodputBound {
    /// The bound of a model that cannot be placed.
    pub(super) const ZERO: Self = Self {
        goodput: 0.0,
        cost: [f64::INFINITY; 4],
    };

    /// Returns a bound that is at least each of the two.
    pub(super) fn max(self, other: Self) -> Self {
        let cheaper = |resource: usize| self.cost[resource].min(other.cost[resource]);
        Self {
            goodput: self.goodput.max(other.goodput),
            cost: std::array::from_fn(cheaper),
        }
    }
}

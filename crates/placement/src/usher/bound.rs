//! What a group can have at most on what is left of a cluster: configurations that promise no more than one that was placed already
//! need not be placed.
//!
//! A relaxation, so that no plan changes by it: replicas may be cut, and devices are one pool of compute, one of memory, and one of
//! places for replicas that need more than half of a device (no device has room for two of them).

/// Above half of a device's compute or memory, in percent.
const HALF: f64 = 50.0;

/// Sums of percentages with two decimals.
const ROUNDING: f64 = 1e-9;

/// What is free.
pub(super) struct Resources {
    /// Percent of compute, percent of memory, devices with more than half of their compute, and with more than half of their memory.
    free: [f64; 4],
}

/// For a batch size.
pub(super) struct Room {
    /// On how many devices a replica fits by itself.
    pub(super) devices: usize,
    /// What it takes at least, in percent of a device.
    pub(super) compute: f64,
    pub(super) memory: f64,
}

/// What a model can have.
#[derive(Clone, Copy)]
pub(super) struct Promise {
    /// Requests per second.
    goodput: f64,
    /// Of each of the resources for one of those requests per second.
    cost: [f64; 4],
}

impl Resources {
    /// From what each device has free of compute and memory, in percent.
    pub(super) fn new(devices: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut free = [0.0; 4];
        for (compute, memory) in devices {
            free[0] += compute + ROUNDING;
            free[1] += memory + ROUNDING;
            free[2] += f64::from(u8::from(compute + ROUNDING > HALF));
            free[3] += f64::from(u8::from(memory + ROUNDING > HALF));
        }
        Self { free }
    }

    /// The most that models can have together: of every resource by itself, the models that ask least of it for a request first.
    pub(super) fn most(&self, promises: &(impl Iterator<Item = Promise> + Clone)) -> f64 {
        let of = |resource: usize| {
            let mut left = self.free[resource];
            let mut goodput = 0.0;
            // Groups are of four at most: picking the cheapest each time is as quick as sorting.
            let mut last = (-1.0, 0);
            loop {
                let with_cost = promises
                    .clone()
                    .enumerate()
                    .map(|(number, promise)| ((promise.cost[resource], number), promise));
                let next = with_cost
                    .filter(|(key, _)| *key > last)
                    .min_by(|a, b| a.0.0.total_cmp(&b.0.0).then(a.0.1.cmp(&b.0.1)));
                let Some((key, promise)) = next else {
                    return goodput;
                };
                last = key;
                let had = if promise.cost[resource] > 0.0 && promise.goodput > 0.0 {
                    promise.goodput.min(left / promise.cost[resource])
                } else {
                    promise.goodput
                };
                if had > 0.0 {
                    left -= had * promise.cost[resource];
                    goodput += had;
                }
            }
        };
        (0..4).map(of).fold(f64::INFINITY, f64::min)
    }
}

impl Room {
    /// For replicas of so many requests per second that give so much together.
    pub(super) fn promise(&self, goodput: f64, throughput: f64) -> Promise {
        let big = |percent: f64| f64::from(u8::from(percent > HALF + 2.0 * ROUNDING));
        let needed = [
            self.compute,
            self.memory,
            big(self.compute),
            big(self.memory),
        ];
        Promise {
            goodput,
            cost: needed.map(|needed| needed / throughput),
        }
    }
}

impl Promise {
    /// What a model has that cannot be placed.
    pub(super) const NOTHING: Self = Self {
        goodput: 0.0,
        cost: [f64::INFINITY; 4],
    };

    /// At least what either has.
    pub(super) fn best(self, other: Self) -> Self {
        let cheaper = |resource: usize| self.cost[resource].min(other.cost[resource]);
        Self {
            goodput: self.goodput.max(other.goodput),
            cost: std::array::from_fn(cheaper),
        }
    }
}

//! What a gpulet of each size does for a model.

use packhorse_cluster::{ByteCount, ModelIndex, Problem};

use super::{PARTITIONS, ROUNDING, WHOLE};
use crate::{classes::Class, shares};

/// Measured latencies are exceeded: the published code counts a tenth more.
const MARGIN: f64 = 1.1;

/// Neighbouring sizes whose throughputs are closer than this are not worth telling apart.
const WORTH_A_SIZE: f64 = 1.05;

/// A model on a class of devices.
pub(super) struct Curve {
    slo: f64,
    /// Of batches of 1, 2, … up to the largest that a whole device serves, as gpulets of each of [`PARTITIONS`], in seconds.
    latency: [Vec<f64>; PARTITIONS.len()],
    memory: Vec<ByteCount>,
    /// The batch of each size that keeps a gpulet busy all the time; `None` where even a batch of 1 takes too long.
    saturated: [Option<u32>; PARTITIONS.len()],
    /// Requests per second that a device's link brings.
    link: f64,
}

/// How a gpulet serves a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Demand {
    pub(super) batch: u32,
    /// How often there is a batch, in seconds.
    pub(super) duty: f64,
    /// What it carries, in requests per second.
    pub(super) rate: f64,
}

/// Why a model has no gpulet on a class.
pub(super) enum Unfit {
    NoProfile,
    TooSlow,
    Memory,
}

impl Curve {
    pub(super) fn new(
        problem: &Problem,
        model: ModelIndex,
        class: &Class<'_>,
    ) -> Result<Self, Unfit> {
        let demanded = &problem.models[model.0];
        let profile = problem
            .profiles
            .get(&demanded.id, class.kind)
            .ok_or(Unfit::NoProfile)?;
        let slo = demanded.slo.as_secs_f64();
        let latency = |batch, percent| MARGIN * shares::latency(profile, batch, f64::from(percent));
        let profiled = profile.whole().iter().map(|row| row.batch_size).max();
        let most = profiled.unwrap_or(1).min(demanded.max_batch_size).max(1);
        let in_time = |batch: &u32| 2.0 * latency(*batch, WHOLE) <= slo;
        let most = (1..=most).rev().find(in_time).ok_or(Unfit::TooSlow)?;
        // A replica whose memory was never measured may have a whole device.
        let memory = |batch| profile.memory(batch).unwrap_or(class.memory);
        let most = (1..=most)
            .rev()
            .find(|batch| memory(*batch) <= class.memory)
            .ok_or(Unfit::Memory)?;
        let mut curve = Self {
            slo,
            latency: PARTITIONS
                .map(|percent| (1..=most).map(|batch| latency(batch, percent)).collect()),
            memory: (1..=most).map(memory).collect(),
            saturated: [None; PARTITIONS.len()],
            link: problem.network.bytes_per_second / demanded.payload.as_u64().max(1) as f64,
        };
        curve.saturated = std::array::from_fn(|size| curve.find_saturated(size));
        Ok(curve)
    }

    /// The largest batch that leaves a request the time to wait for another one and that the link keeps up with.
    fn find_saturated(&self, size: usize) -> Option<u32> {
        let in_time = |batch: &u32| 2.0 * self.latency(*batch, size) <= self.slo * (1.0 + ROUNDING);
        let largest = (1..=self.memory.len() as u32).rev().find(in_time)?;
        let linked = |batch: &u32| f64::from(*batch) / self.latency(*batch, size) <= self.link;
        Some((1..=largest).rev().find(linked).unwrap_or(1))
    }

    pub(super) fn latency(&self, batch: u32, size: usize) -> f64 {
        self.latency[size][batch as usize - 1]
    }

    pub(super) fn memory(&self, batch: u32) -> ByteCount {
        self.memory[batch as usize - 1]
    }

    pub(super) fn slo(&self) -> f64 {
        self.slo
    }

    /// The largest batch of any gpulet.
    pub(super) fn largest_batch(&self) -> u32 {
        self.memory.len() as u32
    }

    /// Requests per second of a gpulet that is busy all the time; 0 where it serves nothing in time.
    pub(super) fn throughput(&self, size: usize) -> f64 {
        self.saturated[size].map_or(0.0, |batch| {
            (f64::from(batch) / self.latency(batch, size)).min(self.link)
        })
    }

    /// The preferred size: of all neighbouring sizes but the largest two, with 5 % between their throughputs, the upper one of the
    /// two between which throughput grows most per percent. The smallest that serves the model where there are none.
    pub(super) fn preferred(&self) -> usize {
        let mut best: Option<(f64, usize)> = None;
        for upper in (1..PARTITIONS.len() - 1).rev() {
            let (more, less) = (self.throughput(upper), self.throughput(upper - 1));
            if more == 0.0 || more < less * WORTH_A_SIZE {
                continue;
            }
            let percents = f64::from(PARTITIONS[upper] - PARTITIONS[upper - 1]);
            let slope = (more - less) / percents;
            if best.is_none_or(|(steepest, _)| slope > steepest) {
                best = Some((slope, upper));
            }
        }
        best.map_or_else(|| self.smallest_working(), |(_, size)| size)
    }

    fn smallest_working(&self) -> usize {
        let works = |size: &usize| self.saturated[*size].is_some();
        (0..PARTITIONS.len())
            .find(works)
            .unwrap_or(PARTITIONS.len() - 1)
    }

    /// The smallest size that serves a rate as a residue; `None` if none does.
    pub(super) fn smallest(&self, rate: f64) -> Option<usize> {
        (0..PARTITIONS.len()).find(|&size| self.residual(size, rate).is_some())
    }

    /// A rate below what keeps the gpulet busy: the largest batch with `L(b) + b / rate ≤ SLO` that keeps up. `None` if there is none.
    pub(super) fn residual(&self, size: usize, rate: f64) -> Option<Demand> {
        let saturated = self.saturated[size]?;
        if rate > self.throughput(size) * (1.0 + ROUNDING) {
            return None;
        }
        let fits = |batch: &u32| {
            let (latency, fills) = (self.latency(*batch, size), f64::from(*batch) / rate);
            rate > 0.0
                && latency + fills <= self.slo * (1.0 + ROUNDING)
                && latency <= fills * (1.0 + ROUNDING)
        };
        let demand = |batch, duty| Demand { batch, duty, rate };
        if let Some(batch) = (1..=saturated).rev().find(fits) {
            return Some(demand(batch, f64::from(batch) / rate));
        }
        // So few requests that they do not wait for each other.
        let latency = self.latency(1, size);
        let slack = self.slo - latency;
        (rate * slack <= 1.0 && latency <= slack).then(|| demand(1, slack))
    }

    /// As much of a rate as the gpulet carries; `None` if it serves nothing in time.
    pub(super) fn demand(&self, size: usize, rate: f64) -> Option<Demand> {
        let saturated = self.saturated[size]?;
        let throughput = self.throughput(size);
        if rate >= throughput * (1.0 - ROUNDING) {
            return Some(Demand {
                batch: saturated,
                duty: self.latency(saturated, size),
                rate: throughput.min(rate),
            });
        }
        self.residual(size, rate).or_else(|| {
            // No batch waits for its requests that long and keeps up with all of them: less of the rate, with the batch that it fills.
            let fits =
                |batch: &u32| self.latency(*batch, size) + f64::from(*batch) / rate <= self.slo;
            let batch = (1..=saturated).rev().find(fits).unwrap_or(1);
            let latency = self.latency(batch, size);
            Some(Demand {
                batch,
                duty: latency,
                rate: (f64::from(batch) / latency).min(rate),
            })
        })
    }
}

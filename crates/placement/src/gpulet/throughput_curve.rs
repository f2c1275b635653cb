//! The throughput of a model on gpulets of each size.

use packhorse_cluster::{ByteCount, ModelIndex, Problem};

use super::partition_sizes::{SIZES, WHOLE, WHOLE_INDEX};
use crate::{
    PlanningOptions, candidates::largest_batch, device_classes::DeviceClass,
    duty_cycle::BatchTimes, share_latency::ShareLatency, tolerance::ROUNDING,
};

/// The factor on measured latencies, which the published code uses because they are exceeded in practice.
const LATENCY_MARGIN: f64 = 1.1;

/// The smallest ratio of the throughputs of two neighbouring sizes that counts as a difference.
const MIN_THROUGHPUT_RATIO: f64 = 1.05;

/// The throughput of a model on gpulets of a class of devices.
pub(super) struct ThroughputCurve {
    /// The SLO in seconds.
    slo: f64,
    /// The times of batches of 1, 2, … up to the largest that a whole device serves in time, in seconds, by index in [`SIZES`].
    latency: [Vec<f64>; SIZES.len()],
    /// The memory of a replica with each of these batch sizes.
    memory: Vec<ByteCount>,
    /// The batch that saturates a gpulet, by index in [`SIZES`]; `None` if even a batch of 1 takes too long.
    saturated: [Option<u32>; SIZES.len()],
    /// The requests per second that the link of a device transfers.
    link: f64,
}

/// The periodic batches with which a gpulet serves a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BatchSchedule {
    /// The batch size.
    pub(super) batch: u32,
    /// The period of the batches, in seconds.
    pub(super) duty: f64,
    /// The rate that the gpulet carries, in requests per second.
    pub(super) rate: f64,
}

/// The reason why a model can have no gpulet on a class.
pub(super) enum CurveError {
    /// The model has no profile there.
    NoProfile,
    /// Every batch takes more than half of the SLO.
    TooSlow,
    /// Every batch within half of the SLO exceeds the memory.
    Memory,
}

impl ThroughputCurve {
    pub(super) fn new(
        problem: &Problem,
        options: &PlanningOptions,
        model: ModelIndex,
        class: &DeviceClass<'_>,
    ) -> Result<Self, CurveError> {
        let demanded = &problem.models[model.0];
        let profile = problem
            .profiles
            .get(&demanded.id, class.kind)
            .ok_or(CurveError::NoProfile)?;
        let slo = demanded.slo.as_secs_f64();
        let latencies = ShareLatency::new(options, &demanded.id, class.kind, profile);
        let latency =
            |batch, percent| LATENCY_MARGIN * latencies.seconds(batch, f64::from(percent));
        let in_time = |batch: &u32| 2.0 * latency(*batch, WHOLE) <= slo;
        let sizes = 1..=largest_batch(profile, demanded);
        let most = sizes.rev().find(in_time).ok_or(CurveError::TooSlow)?;
        let memory = |batch| class.replica_memory(profile, batch);
        let most = (1..=most)
            .rev()
            .find(|batch| memory(*batch) <= class.memory)
            .ok_or(CurveError::Memory)?;
        let mut curve = Self {
            slo,
            latency: SIZES.map(|percent| (1..=most).map(|batch| latency(batch, percent)).collect()),
            memory: (1..=most).map(memory).collect(),
            saturated: [None; SIZES.len()],
            link: problem.network.bytes_per_second / demanded.payload.as_u64().max(1) as f64,
        };
        curve.saturated = std::array::from_fn(|size| curve.find_saturated(size));
        Ok(curve)
    }

    /// Returns the largest batch that takes at most half of the SLO, reduced to what the link can supply.
    fn find_saturated(&self, size: usize) -> Option<u32> {
        let in_time = |batch: &u32| 2.0 * self.latency(*batch, size) <= self.slo * (1.0 + ROUNDING);
        let largest = (1..=self.memory.len() as u32).rev().find(in_time)?;
        let supplied = |batch: &u32| f64::from(*batch) / self.latency(*batch, size) <= self.link;
        Some((1..=largest).rev().find(supplied).unwrap_or(1))
    }

    /// Returns the time of a batch on a gpulet of a size, in seconds.
    fn latency(&self, batch: u32, size: usize) -> f64 {
        self.latency[size][batch as usize - 1]
    }

    /// Returns the memory of a replica with a batch size.
    pub(super) fn memory(&self, batch: u32) -> ByteCount {
        self.memory[batch as usize - 1]
    }

    /// Returns the SLO in seconds.
    pub(super) fn slo(&self) -> f64 {
        self.slo
    }

    /// Returns the throughput of a saturated gpulet, in requests per second; 0 if it serves no batch in time.
    pub(super) fn throughput(&self, size: usize) -> f64 {
        self.saturated[size].map_or(0.0, |batch| {
            (f64::from(batch) / self.latency(batch, size)).min(self.link)
        })
    }

    /// Returns the preferred size: the upper one of the two neighbouring sizes between which the throughput grows most per percent, among
    /// those that differ by at least 5 %, without the largest two. If there are none, returns the smallest size that serves the model.
    pub(super) fn preferred(&self) -> usize {
        let mut best: Option<(f64, usize)> = None;
        for upper in (1..WHOLE_INDEX).rev() {
            let (more, less) = (self.throughput(upper), self.throughput(upper - 1));
            if more == 0.0 || more < less * MIN_THROUGHPUT_RATIO {
                continue;
            }
            let percents = f64::from(SIZES[upper] - SIZES[upper - 1]);
            let slope = (more - less) / percents;
            if best.is_none_or(|(steepest, _)| slope > steepest) {
                best = Some((slope, upper));
            }
        }
        best.map_or_else(|| self.smallest_working(), |(_, size)| size)
    }

    fn smallest_working(&self) -> usize {
        let works = |size: &usize| self.saturated[*size].is_some();
        (0..SIZES.len()).find(works).unwrap_or(WHOLE_INDEX)
    }

    /// Returns the smallest size that serves a residual rate; `None` if no size does.
    pub(super) fn smallest_for(&self, rate: f64) -> Option<usize> {
        (0..SIZES.len()).find(|&size| self.residual(size, rate).is_some())
    }

    /// Returns the schedule for a residual rate: the largest batch with `L(b) + b / rate ≤ SLO` and `L(b) ≤ b / rate`; `None` if there is
    /// none.
    fn residual(&self, size: usize, rate: f64) -> Option<BatchSchedule> {
        let saturated = self.saturated[size]?;
        if rate > self.throughput(size) * (1.0 + ROUNDING) {
            return None;
        }
        let fits = |batch: &u32| {
            let (latency, fill_time) = (self.latency(*batch, size), f64::from(*batch) / rate);
            rate > 0.0
                && latency + fill_time <= self.slo * (1.0 + ROUNDING)
                && latency <= fill_time * (1.0 + ROUNDING)
        };
        let schedule = |batch, duty| BatchSchedule { batch, duty, rate };
        if let Some(batch) = (1..=saturated).rev().find(fits) {
            return Some(schedule(batch, f64::from(batch) / rate));
        }
        // Requests that arrive too rarely to wait for each other are served one by one.
        let latency = self.latency(1, size);
        let slack = self.slo - latency;
        (rate * slack <= 1.0 && latency <= slack).then(|| schedule(1, slack))
    }

    /// Returns the schedule for as much of a rate as the gpulet carries; `None` if it serves no batch in time.
    pub(super) fn schedule(&self, size: usize, rate: f64) -> Option<BatchSchedule> {
        let saturated = self.saturated[size]?;
        let throughput = self.throughput(size);
        if rate >= throughput * (1.0 - ROUNDING) {
            return Some(BatchSchedule {
                batch: saturated,
                duty: self.latency(saturated, size),
                rate: throughput.min(rate),
            });
        }
        self.residual(size, rate).or_else(|| {
            // No batch size is both in time and fast enough for the whole rate: the gpulet carries a part of the rate, with the largest
            // batch that is in time.
            let fits =
                |batch: &u32| self.latency(*batch, size) + f64::from(*batch) / rate <= self.slo;
            let batch = (1..=saturated).rev().find(fits).unwrap_or(1);
            let latency = self.latency(batch, size);
            Some(BatchSchedule {
                batch,
                duty: latency,
                rate: (f64::from(batch) / latency).min(rate),
            })
        })
    }
}

impl BatchTimes for ThroughputCurve {
    fn largest_batch(&self) -> u32 {
        self.memory.len() as u32
    }

    fn seconds(&self, batch_size: u32) -> f64 {
        self.latency(batch_size, WHOLE_INDEX)
    }
}

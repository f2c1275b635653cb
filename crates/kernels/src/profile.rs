//! The kernels of one batch and the profile metrics that are computed from them.

use std::time::Duration;

use packhorse_cluster::{ProfileRow, Time};

use crate::{Gpu, Launch, LaunchError, Timeline};

/// A kernel that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The kernel's name in the profiler.
    pub name: String,
    /// The launch configuration.
    pub launch: Launch,
    /// The start, relative to any common time.
    pub start: Time,
    /// The time that the kernel ran.
    pub duration: Duration,
}

/// The error for kernels without metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelProfileError {
    /// There are no kernels, or only kernels of no duration.
    #[error("there are no kernels with a duration above 0")]
    Empty,
    /// A kernel could not have run on the GPU.
    #[error("kernel {name:?}: {source}")]
    Launch {
        /// The kernel's name in the profiler.
        name: String,
        /// The limit that its launch exceeds.
        #[source]
        source: LaunchError,
    },
}

/// The use of a GPU by the kernels of one batch over time.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelProfile {
    /// The estimated achieved occupancy, as in the thesis' Figure 5.3 (which measured it).
    pub achieved_occupancy: Timeline,
    /// The SM utilisation, as in the thesis' Figure 5.4.
    pub sm_utilization: Timeline,
}

impl KernelProfile {
    /// Creates the profile of the kernels of one batch, given in any order.
    ///
    /// # Errors
    /// If no kernel has a duration, or if one could not have run on this GPU.
    pub fn new(gpu: &Gpu, kernels: &[Kernel]) -> Result<Self, KernelProfileError> {
        let mut metrics = Vec::with_capacity(kernels.len());
        for kernel in kernels {
            let launch = gpu.metrics(&kernel.launch);
            metrics.push(launch.map_err(|source| KernelProfileError::Launch {
                name: kernel.name.clone(),
                source,
            })?);
        }
        let timeline = |value: fn(&crate::LaunchMetrics) -> packhorse_cluster::Percent| {
            let bars = kernels.iter().zip(&metrics);
            Timeline::new(
                bars.map(|(kernel, launch)| (kernel.start, kernel.duration, value(launch))),
            )
            .ok_or(KernelProfileError::Empty)
        };
        Ok(Self {
            achieved_occupancy: timeline(|launch| launch.achieved_occupancy)?,
            sm_utilization: timeline(|launch| launch.sm_utilization)?,
        })
    }

    /// Sets the metrics that policies read in the profile row of this batch size: the maximum and the mean of the occupancy (thesis,
    /// section 5.3.1), and the mean of the SM utilisation (5.3.2), whose maximum is 100 for every model.
    pub fn fill(&self, row: &mut ProfileRow) {
        row.achieved_occupancy = Some(self.achieved_occupancy.max());
        row.mean_occupancy = Some(self.achieved_occupancy.mean());
        row.sm_utilization = Some(self.sm_utilization.mean());
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ByteCount, ComputeShare, Percent};

    use super::*;

    fn kernel(name: &str, blocks: u32, start: u64, nanos: u64) -> Kernel {
        Kernel {
            name: name.to_owned(),
            launch: Launch {
                grid: [blocks, 1, 1],
                block: [1024, 1, 1],
                registers_per_thread: 32,
                shared_memory: ByteCount::ZERO,
            },
            start: Time::from_nanos(start),
            duration: Duration::from_nanos(nanos),
        }
    }

    #[test]
    fn a_batch_has_the_maximum_and_the_means_of_its_kernels() {
        let gpu = Gpu::new("7.0".parse().unwrap(), 80).unwrap();
        // Two blocks fit a multiprocessor. 40 blocks: 20 of 80 multiprocessors, half a block of 32 warps on average of 64: 25 %.
        // 160 blocks: all of both.
        let kernels = [kernel("a", 40, 0, 30), kernel("b", 160, 30, 10)];
        let profile = KernelProfile::new(&gpu, &kernels).unwrap();
        let mut row = ProfileRow {
            batch_size: 1,
            compute_share: ComputeShare::WHOLE,
            latency: Duration::from_millis(1),
            latency_p99: None,
            memory: None,
            achieved_occupancy: None,
            mean_occupancy: None,
            sm_utilization: None,
        };
        profile.fill(&mut row);
        assert_eq!(row.achieved_occupancy.unwrap(), Percent::clamped(100.0));
        assert_eq!(
            row.mean_occupancy.unwrap(),
            Percent::clamped((30.0 * 25.0 + 10.0 * 100.0) / 40.0)
        );
        assert_eq!(
            row.sm_utilization.unwrap(),
            Percent::clamped((30.0 * 25.0 + 10.0 * 100.0) / 40.0)
        );
    }

    #[test]
    fn no_kernels_are_an_error_and_an_impossible_one_is_named() {
        let gpu = Gpu::new("7.0".parse().unwrap(), 80).unwrap();
        assert_eq!(
            KernelProfile::new(&gpu, &[]),
            Err(KernelProfileError::Empty)
        );
        let message = KernelProfile::new(&gpu, &[kernel("gemm", 0, 0, 1)]).unwrap_err();
        assert_eq!(
            message.to_string(),
            "kernel \"gemm\": grid dimension x must be 1 to 2147483647, not 0"
        );
    }
}

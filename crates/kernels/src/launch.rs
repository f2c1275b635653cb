//! The resources of a GPU that one kernel launch uses.

use packhorse_cluster::{ByteCount, Percent};

use crate::limits::{Gpu, PARTITIONS, REGISTER_UNIT, WARP};

// Source of the limits: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability".

/// The largest number of threads in a block.
const MAX_THREADS: u32 = 1024;
/// The largest number of threads in a block along x, y and z.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// The largest number of blocks in a grid along x, y and z.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// The largest number of registers of a thread.
const MAX_REGISTERS: u32 = 255;

/// The launch configuration of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The blocks of the grid along x, y and z.
    pub grid: [u32; 3],
    /// The threads of a block along x, y and z.
    pub block: [u32; 3],
    /// The registers of one thread.
    pub registers_per_thread: u32,
    /// The shared memory of one block, static and dynamic together.
    pub shared_memory: ByteCount,
}

/// The error for a launch that no GPU, or not this one, could have run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A dimension is zero or too large.
    #[error("{what} dimension {axis} must be 1 to {limit}, not {value}")]
    Dimension {
        /// `grid` or `block`.
        what: &'static str,
        /// `x`, `y` or `z`.
        axis: char,
        /// The largest allowed value.
        limit: u32,
        /// The given value.
        value: u32,
    },
    /// The block has too many threads.
    #[error("a block of {0} threads is over the limit of {MAX_THREADS}")]
    Threads(u32),
    /// A thread has too many registers.
    #[error("{0} registers per thread are over the limit of {MAX_REGISTERS}")]
    RegistersPerThread(u32),
    /// A multiprocessor does not have the registers of one block.
    #[error("a block's {needed} registers are over the limit of {limit}")]
    Registers {
        /// The registers of one block, in the units in which they are allocated.
        needed: u32,
        /// The registers of a multiprocessor.
        limit: u32,
    },
    /// The block has too much shared memory.
    #[error("a block's {needed} bytes of shared memory are over the limit of {limit}")]
    SharedMemory {
        /// The shared memory of one block, in bytes.
        needed: u64,
        /// The largest shared memory of a block, in bytes.
        limit: u32,
    },
}

/// The use of a GPU by a launch while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchMetrics {
    /// The number of blocks that one multiprocessor holds at a time.
    pub resident_blocks: u32,
    /// The warps that a multiprocessor full of this kernel holds, relative to those it can hold.
    pub theoretical_occupancy: Percent,
    /// The warps that a multiprocessor holds on average if the blocks are spread evenly, relative to those it can hold.
    pub achieved_occupancy: Percent,
    /// The number of multiprocessors that the launch could fill; more than there are if its blocks run in several waves.
    pub multiprocessors_needed: u64,
    /// The part of the GPU's multiprocessors that the launch could fill.
    pub sm_utilization: Percent,
}

impl Launch {
    fn threads(&self) -> Result<u32, LaunchError> {
        check("block", self.block, MAX_BLOCK)?;
        let threads = self.block.iter().product();
        if threads > MAX_THREADS {
            return Err(LaunchError::Threads(threads));
        }
        Ok(threads)
    }

    fn blocks(&self) -> Result<u64, LaunchError> {
        check("grid", self.grid, MAX_GRID)?;
        Ok(self.grid.iter().map(|&blocks| u64::from(blocks)).product())
    }
}

fn check(what: &'static str, values: [u32; 3], limits: [u32; 3]) -> Result<(), LaunchError> {
    for (axis, (value, limit)) in ['x', 'y', 'z']
        .into_iter()
        .zip(values.into_iter().zip(limits))
    {
        if !(1..=limit).contains(&value) {
            return Err(LaunchError::Dimension {
                what,
                axis,
                limit,
                value,
            });
        }
    }
    Ok(())
}

impl Gpu {
    /// Returns the use of this GPU by a launch while it runs.
    ///
    /// Occupancy counts resident blocks like the hardware, with registers and shared memory rounded up to their allocation units. The
    /// achieved occupancy is an estimate like Kineto's: blocks per multiprocessor, at most the resident ones, without the imbalance of
    /// the last wave. It counts whole warps, as the metric's definition requires (thesis, section 5.2.1), where Kineto counts threads.
    /// SM utilisation is the thesis' (section 5.3.2), whose bounds on a multiprocessor's blocks are not rounded.
    ///
    /// # Errors
    /// If the launch could not have run on this GPU.
    pub fn metrics(&self, launch: &Launch) -> Result<LaunchMetrics, LaunchError> {
        let (blocks, threads) = (launch.blocks()?, launch.threads()?);
        let resident_blocks = self.resident_blocks(launch, threads)?;
        let warps = threads.div_ceil(WARP);
        let occupancy = |blocks: f64| {
            Percent::clamped(
                100.0 * blocks * f64::from(warps) / f64::from(self.limits.threads / WARP),
            )
        };
        let blocks_per_multiprocessor = blocks as f64 / f64::from(self.multiprocessors());
        let concurrent = u64::from(self.concurrent_blocks(launch, threads));
        let multiprocessors_needed = blocks.div_ceil(concurrent);
        Ok(LaunchMetrics {
            resident_blocks,
            theoretical_occupancy: occupancy(f64::from(resident_blocks)),
            achieved_occupancy: occupancy(
                blocks_per_multiprocessor.min(f64::from(resident_blocks)),
            ),
            multiprocessors_needed,
            sm_utilization: Percent::clamped(
                100.0 * multiprocessors_needed as f64 / f64::from(self.multiprocessors()),
            ),
        })
    }

    /// Returns the number of blocks that one multiprocessor holds at a time, at least 1.
    ///
    /// Source: CUDA C++ Best Practices Guide, "Calculating Occupancy"; the order of rounding is that of `cuda_occupancy.h`.
    fn resident_blocks(&self, launch: &Launch, threads: u32) -> Result<u32, LaunchError> {
        let limits = self.limits;
        let warps = threads.div_ceil(WARP);
        let by_warps = limits.threads / WARP / warps;
        Ok(by_warps
            .min(limits.blocks)
            .min(self.blocks_by_registers(launch, warps)?)
            .min(self.blocks_by_shared_memory(launch)?))
    }

    fn blocks_by_registers(&self, launch: &Launch, warps: u32) -> Result<u32, LaunchError> {
        if launch.registers_per_thread > MAX_REGISTERS {
            return Err(LaunchError::RegistersPerThread(launch.registers_per_thread));
        }
        if launch.registers_per_thread == 0 {
            return Ok(u32::MAX);
        }
        let limit = self.limits.registers;
        let per_warp = (launch.registers_per_thread * WARP).next_multiple_of(REGISTER_UNIT);
        // CUDA checks a launch as if its warps filled all partitions of a multiprocessor evenly.
        let needed = per_warp * warps.next_multiple_of(PARTITIONS);
        if needed > limit {
            return Err(LaunchError::Registers { needed, limit });
        }
        Ok(limit / PARTITIONS / per_warp * PARTITIONS / warps)
    }

    fn blocks_by_shared_memory(&self, launch: &Launch) -> Result<u32, LaunchError> {
        let needed = launch.shared_memory.as_u64();
        let limit = self.limits.shared_memory_per_block;
        let bytes = u32::try_from(needed)
            .ok()
            .filter(|bytes| *bytes <= limit)
            .ok_or(LaunchError::SharedMemory { needed, limit })?;
        let allocated = (bytes + self.limits.reserved_shared_memory)
            .next_multiple_of(self.limits.shared_memory_unit);
        Ok(self
            .limits
            .shared_memory
            .checked_div(allocated)
            .unwrap_or(u32::MAX))
    }

    /// Returns the thesis' `num_blocks_per_sm` of a launch that can run. A resource that the kernel does not use is no bound.
    fn concurrent_blocks(&self, launch: &Launch, threads: u32) -> u32 {
        let limits = self.limits;
        let registers = threads * launch.registers_per_thread;
        let by_shared_memory =
            u64::from(limits.shared_memory).checked_div(launch.shared_memory.as_u64());
        (limits.threads / threads)
            .min(limits.blocks)
            .min(limits.registers.checked_div(registers).unwrap_or(u32::MAX))
            .min(by_shared_memory.map_or(u32::MAX, |blocks| blocks as u32))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gpu(capability: &str, multiprocessors: u32) -> Gpu {
        Gpu::new(capability.parse().unwrap(), multiprocessors).unwrap()
    }

    fn launch(blocks: u32, threads: u32, registers_per_thread: u32, shared: u64) -> Launch {
        Launch {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            registers_per_thread,
            shared_memory: ByteCount::new(shared),
        }
    }

    #[test]
    fn hand_computed_kernels_of_a_v100() {
        let v100 = gpu("7.0", 80);
        // 256 threads are 8 warps: 64 / 8 = 8 blocks. 32 registers: 32 * 32 = 1024 per warp, 16 warps per partition, 64 in all, 8 blocks.
        // 100 blocks / 8 = 12.5, so 13 of 80 multiprocessors; 1.25 blocks of 8 warps on each of 80 on average.
        let metrics = v100.metrics(&launch(100, 256, 32, 0)).unwrap();
        assert_eq!(metrics.resident_blocks, 8);
        assert_eq!(metrics.theoretical_occupancy, Percent::clamped(100.0));
        assert_eq!(metrics.achieved_occupancy, Percent::clamped(15.625));
        assert_eq!(metrics.multiprocessors_needed, 13);
        assert_eq!(metrics.sm_utilization, Percent::clamped(16.25));
        // Shared memory bounds: 98,304 / 40,960 = 2 blocks of 4 warps, 8 of 64 warps.
        let metrics = v100.metrics(&launch(1600, 128, 32, 40 << 10)).unwrap();
        assert_eq!(metrics.resident_blocks, 2);
        assert_eq!(metrics.theoretical_occupancy, Percent::clamped(12.5));
        assert_eq!(metrics.achieved_occupancy, Percent::clamped(12.5));
        assert_eq!(metrics.multiprocessors_needed, 800);
        assert_eq!(metrics.sm_utilization, Percent::clamped(100.0));
        // Blocks bound: 32 of one warp.
        assert_eq!(
            v100.metrics(&launch(1, 32, 16, 0)).unwrap().resident_blocks,
            32
        );
        // Half-filled warps: 48 threads take 2 warps.
        let metrics = v100.metrics(&launch(80, 48, 16, 0)).unwrap();
        assert_eq!(
            metrics.achieved_occupancy,
            Percent::clamped(100.0 * 2.0 / 64.0)
        );
    }

    #[test]
    fn registers_are_allocated_in_units_for_occupancy_but_not_for_sm_utilization() {
        // 33 registers: 1056 per warp, allocated as 1280; 12 warps per partition, 48 in all, 6 blocks of 8. The thesis' bound counts
        // 65,536 / (256 * 33) = 7.
        let metrics = gpu("7.0", 80).metrics(&launch(42, 256, 33, 0)).unwrap();
        assert_eq!(metrics.resident_blocks, 6);
        assert_eq!(metrics.theoretical_occupancy, Percent::clamped(75.0));
        assert_eq!(metrics.multiprocessors_needed, 6);
    }

    #[test]
    fn the_drivers_own_shared_memory_counts_from_ampere_on() {
        // 16 KiB and 1 KiB of the driver's: 164 / 17 = 9 blocks; without it there would be 10.
        let metrics = gpu("8.0", 108)
            .metrics(&launch(1, 64, 16, 16 << 10))
            .unwrap();
        assert_eq!(metrics.resident_blocks, 9);
    }

    #[test]
    fn a_grid_of_three_dimensions_counts_all_its_blocks() {
        let three = Launch {
            grid: [8, 12, 2],
            block: [4, 8, 4],
            ..launch(1, 1, 32, 0)
        };
        let v100 = gpu("7.0", 80);
        assert_eq!(v100.metrics(&three), v100.metrics(&launch(192, 128, 32, 0)));
        let largest = Launch {
            grid: MAX_GRID,
            ..launch(1, 1024, 64, 0)
        };
        let metrics = v100.metrics(&largest).unwrap();
        assert_eq!(metrics.sm_utilization, Percent::clamped(100.0));
        assert_eq!(metrics.achieved_occupancy, Percent::clamped(50.0));
    }

    #[test]
    fn impossible_launches_are_refused_with_the_limit() {
        let h100 = gpu("9.0", 132);
        for (launch, message) in [
            (
                launch(0, 32, 1, 0),
                "grid dimension x must be 1 to 2147483647, not 0",
            ),
            (
                Launch {
                    grid: [1, 65_536, 1],
                    ..launch(1, 32, 1, 0)
                },
                "grid dimension y must be 1 to 65535, not 65536",
            ),
            (
                Launch {
                    block: [1, 1, 65],
                    ..launch(1, 1, 1, 0)
                },
                "block dimension z must be 1 to 64, not 65",
            ),
            (
                Launch {
                    block: [1024, 2, 1],
                    ..launch(1, 1, 1, 0)
                },
                "a block of 2048 threads is over the limit of 1024",
            ),
            (
                launch(1, 32, 256, 0),
                "256 registers per thread are over the limit of 255",
            ),
            (
                launch(1, 1024, 65, 0),
                "a block's 73728 registers are over the limit of 65536",
            ),
            (
                launch(1, 32, 16, (227 << 10) + 1),
                "a block's 232449 bytes of shared memory are over the limit of 232448",
            ),
        ] {
            assert_eq!(h100.metrics(&launch).unwrap_err().to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn metrics_of_possible_launches_are_within_the_device(
            blocks in 1_u32..10_000, threads in 1_u32..=1024, registers in 0_u32..=255, shared in 0_u64..240_000,
        ) {
            let Ok(metrics) = gpu("9.0", 132).metrics(&launch(blocks, threads, registers, shared)) else {
                return Ok(());
            };
            prop_assert!(metrics.resident_blocks >= 1);
            prop_assert!(metrics.achieved_occupancy <= metrics.theoretical_occupancy);
            prop_assert!(metrics.multiprocessors_needed <= u64::from(blocks));
            prop_assert!(metrics.sm_utilization.get() > 0.0);
        }
    }
}

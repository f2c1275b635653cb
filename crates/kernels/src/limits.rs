//! The limits of a GPU's multiprocessors, by compute capability.

use std::{fmt, str::FromStr};

/// The version of an NVIDIA GPU's architecture, such as 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The architecture's number.
    pub major: u32,
    /// The number of the architecture's variant.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for ComputeCapability {
    type Err = GpuError;

    fn from_str(text: &str) -> Result<Self, GpuError> {
        let error = || GpuError::InvalidCapability(text.to_owned());
        let (major, minor) = text.split_once('.').ok_or_else(error)?;
        Ok(Self {
            major: major.parse().map_err(|_| error())?,
            minor: minor.parse().map_err(|_| error())?,
        })
    }
}

/// The error for a GPU without known limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The text is not a compute capability.
    #[error("{0:?} is not a compute capability: expected MAJOR.MINOR, such as 9.0")]
    InvalidCapability(String),
    /// The architecture is not in the table.
    #[error("unknown compute capability {0}: expected one of {known}", known = known_capabilities())]
    UnknownCapability(ComputeCapability),
    /// The number of multiprocessors is 0.
    #[error("the number of multiprocessors must be at least 1")]
    NoMultiprocessors,
}

/// The threads of a warp, on every architecture so far.
pub(crate) const WARP: u32 = 32;
/// The partitions of a multiprocessor, each with a quarter of its registers and its own scheduler.
pub(crate) const PARTITIONS: u32 = 4;
/// The unit in which registers are allocated to a warp, in registers.
pub(crate) const REGISTER_UNIT: u32 = 256;

/// The limits of one multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MultiprocessorLimits {
    /// The resident threads.
    pub(crate) threads: u32,
    /// The resident blocks.
    pub(crate) blocks: u32,
    /// The registers.
    pub(crate) registers: u32,
    /// The shared memory, in bytes.
    pub(crate) shared_memory: u32,
    /// The largest shared memory of a block with the opt-in that libraries use, in bytes.
    pub(crate) shared_memory_per_block: u32,
    /// The shared memory that the driver reserves for every resident block, in bytes.
    pub(crate) reserved_shared_memory: u32,
    /// The unit in which shared memory is allocated to a block, in bytes.
    pub(crate) shared_memory_unit: u32,
}

/// The known GPUs: compute capability; resident threads and blocks per multiprocessor; KiB of shared memory per multiprocessor and per
/// block; bytes reserved per block; the allocation unit in bytes. All have 65,536 registers.
///
/// Source: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability" (7.0 and 7.2: release 12.9, which has 11.0
/// as 10.1); reservation and units: `cuda_occupancy.h` of CUDA 13.0, whose blocks per multiprocessor are the same.
const KNOWN: [((u32, u32), [u32; 6]); 13] = [
    ((7, 0), [2048, 32, 96, 96, 0, 256]),
    ((7, 2), [2048, 32, 96, 96, 0, 256]),
    ((7, 5), [1024, 16, 64, 64, 0, 256]),
    ((8, 0), [2048, 32, 164, 163, 1024, 128]),
    ((8, 6), [1536, 16, 100, 99, 1024, 128]),
    ((8, 7), [1536, 16, 164, 163, 1024, 128]),
    ((8, 9), [1536, 24, 100, 99, 1024, 128]),
    ((9, 0), [2048, 32, 228, 227, 1024, 128]),
    ((10, 0), [2048, 32, 228, 227, 1024, 128]),
    ((10, 3), [2048, 32, 228, 227, 1024, 128]),
    ((11, 0), [1536, 24, 228, 227, 1024, 128]),
    ((12, 0), [1536, 24, 100, 99, 1024, 128]),
    ((12, 1), [1536, 24, 100, 99, 1024, 128]),
];

fn known_capabilities() -> String {
    let names = KNOWN.map(|((major, minor), _)| ComputeCapability { major, minor }.to_string());
    names.join(", ")
}

/// The properties of a GPU that limit launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    capability: ComputeCapability,
    multiprocessors: u32,
    pub(crate) limits: MultiprocessorLimits,
}

impl Gpu {
    /// Creates a GPU from its compute capability and its number of streaming multiprocessors.
    ///
    /// # Errors
    /// If the compute capability is not in the table, as limits are never guessed, or if there are no multiprocessors.
    pub fn new(capability: ComputeCapability, multiprocessors: u32) -> Result<Self, GpuError> {
        let key = (capability.major, capability.minor);
        let (_, row) = KNOWN
            .iter()
            .find(|(known, _)| *known == key)
            .ok_or(GpuError::UnknownCapability(capability))?;
        if multiprocessors == 0 {
            return Err(GpuError::NoMultiprocessors);
        }
        let [threads, blocks, shared, per_block, reserved, unit] = *row;
        Ok(Self {
            capability,
            multiprocessors,
            limits: MultiprocessorLimits {
                threads,
                blocks,
                registers: 65_536,
                shared_memory: shared << 10,
                shared_memory_per_block: per_block << 10,
                reserved_shared_memory: reserved,
                shared_memory_unit: unit,
            },
        })
    }

    /// Returns the compute capability.
    pub fn capability(&self) -> ComputeCapability {
        self.capability
    }

    /// Returns the number of streaming multiprocessors, at least 1.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_capability_is_an_error_that_lists_the_known_ones() {
        let unknown: ComputeCapability = "6.1".parse().unwrap();
        assert_eq!(
            Gpu::new(unknown, 28).unwrap_err().to_string(),
            "unknown compute capability 6.1: expected one of 7.0, 7.2, 7.5, 8.0, 8.6, 8.7, 8.9, \
             9.0, 10.0, 10.3, 11.0, 12.0, 12.1"
        );
        assert_eq!(
            Gpu::new("9.0".parse().unwrap(), 0),
            Err(GpuError::NoMultiprocessors)
        );
        for text in ["", "9", "9.", "a.b", "9.0.1", "-1.0"] {
            let error = GpuError::InvalidCapability(text.to_owned());
            assert_eq!(text.parse::<ComputeCapability>(), Err(error));
        }
    }

    #[test]
    fn a_block_of_the_largest_size_fits_with_the_drivers_reserved_memory() {
        for ((major, minor), _) in KNOWN {
            let gpu = Gpu::new(ComputeCapability { major, minor }, 1).unwrap();
            let limits = gpu.limits;
            assert!(
                limits.shared_memory_per_block + limits.reserved_shared_memory
                    <= limits.shared_memory
            );
            assert_eq!(limits.threads % (WARP * PARTITIONS), 0);
        }
    }
}

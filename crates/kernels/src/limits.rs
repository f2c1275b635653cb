//! What one multiprocessor of a GPU can hold, by compute capability.

use std::{fmt, str::FromStr};

/// The version of an NVIDIA GPU's architecture, such as 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The architecture.
    pub major: u32,
    /// Its variant.
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
        let error = || GpuError::NoCapability(text.to_owned());
        let (major, minor) = text.split_once('.').ok_or_else(error)?;
        Ok(Self {
            major: major.parse().map_err(|_| error())?,
            minor: minor.parse().map_err(|_| error())?,
        })
    }
}

/// Why a GPU's limits are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The text is no compute capability.
    #[error("{0:?} is no compute capability: expected MAJOR.MINOR, such as 9.0")]
    NoCapability(String),
    /// The architecture is not in the table.
    #[error("compute capability {0} is not known; known are {known}", known = known())]
    UnknownCapability(ComputeCapability),
    /// A GPU without multiprocessors.
    #[error("a GPU has at least one multiprocessor")]
    NoMultiprocessors,
}

/// Threads of a warp, on every architecture so far.
pub(crate) const WARP: u32 = 32;
/// Parts of a multiprocessor, each with a quarter of its registers and a scheduler of its own.
pub(crate) const PARTITIONS: u32 = 4;
/// Registers are given to warps in units of so many.
pub(crate) const REGISTER_UNIT: u32 = 256;

/// What one multiprocessor holds at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) threads: u32,
    pub(crate) blocks: u32,
    pub(crate) registers: u32,
    /// Bytes of shared memory.
    pub(crate) shared_memory: u32,
    /// Bytes of it that a block may have, with the opt-in that libraries use.
    pub(crate) shared_memory_per_block: u32,
    /// Bytes of it that the driver takes for every resident block.
    pub(crate) reserved_shared_memory: u32,
    /// Shared memory is given to blocks in units of so many bytes.
    pub(crate) shared_memory_unit: u32,
}

/// Compute capability; resident threads and blocks per multiprocessor; KiB of shared memory per multiprocessor and per block; bytes
/// reserved per block; the unit in which blocks get it. All have 65,536 registers.
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

fn known() -> String {
    let names = KNOWN.map(|((major, minor), _)| ComputeCapability { major, minor }.to_string());
    names.join(", ")
}

/// A GPU, as far as launch configurations are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    capability: ComputeCapability,
    multiprocessors: u32,
    pub(crate) limits: Limits,
}

impl Gpu {
    /// A GPU of this compute capability with so many streaming multiprocessors.
    ///
    /// # Errors
    /// If the compute capability is not in the table: limits are never guessed.
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
            limits: Limits {
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

    /// Its architecture.
    pub fn capability(&self) -> ComputeCapability {
        self.capability
    }

    /// Its streaming multiprocessors, at least 1.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_outside_the_table_is_an_error_that_names_those_inside() {
        let unknown: ComputeCapability = "6.1".parse().unwrap();
        assert_eq!(
            Gpu::new(unknown, 28).unwrap_err().to_string(),
            "compute capability 6.1 is not known; known are 7.0, 7.2, 7.5, 8.0, 8.6, 8.7, 8.9, \
             9.0, 10.0, 10.3, 11.0, 12.0, 12.1"
        );
        assert_eq!(
            Gpu::new("9.0".parse().unwrap(), 0),
            Err(GpuError::NoMultiprocessors)
        );
        for text in ["", "9", "9.", "a.b", "9.0.1", "-1.0"] {
            let error = GpuError::NoCapability(text.to_owned());
            assert_eq!(text.parse::<ComputeCapability>(), Err(error));
        }
    }

    #[test]
    fn a_block_of_the_largest_size_fits_with_what_the_driver_takes() {
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

//! What the kernels of a model take of a GPU: from launch configurations and times, as a profiler records them, to the occupancy and
//! SM-utilisation metrics of a profile.
//!
//! [`Gpu`] holds a device's limits and answers for one [`Launch`]; [`KernelProfile`] puts the kernels of a batch on a time line, whose
//! maximum and mean are what placement policies read; [`KinetoTrace`] reads recorded kernels, [`KernelTable`] keeps those of models and
//! batch sizes, and [`NcuReport`] has what Nsight Compute measured of them. Pure functions of their arguments.
//!
//! Source: Elvinger, "Towards resource and interference-aware scheduling of ML workloads", sections 5.2.1 (equation 5.3) and 5.3.

mod launch;
mod limits;
mod ncu;
mod profile;
mod table;
mod timeline;
mod trace;

pub use launch::{Launch, LaunchError, LaunchMetrics};
pub use limits::{ComputeCapability, Gpu, GpuError};
pub use ncu::{MeasuredKernel, NcuError, NcuReport};
pub use profile::{Kernel, KernelProfile, KernelProfileError};
pub use table::{KernelTable, KernelTableError, Recording};
pub use timeline::{Interval, Timeline};
pub use trace::{KinetoTrace, MAX_KERNELS, TraceError};

//! The use of a GPU by a model's kernels: computes the occupancy and SM-utilisation metrics of a profile from launch configurations and
//! times, as a profiler records them.
//!
//! [`Gpu`] contains a device's limits and computes the metrics of one [`Launch`]. [`KernelProfile`] is the timeline of the kernels of a
//! batch, whose maximum and mean placement policies read. [`KinetoTrace`] reads recorded kernels, [`KernelTable`] stores them by model
//! and batch size, and [`NcuReport`] contains measurements of Nsight Compute. All are pure functions of their arguments.
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

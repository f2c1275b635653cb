//! The options of a start.

use std::path::Path;

use packhorse_cluster::Program;
use packhorse_worker_agent::handoff::{Optimize, PipelineSettings};

use crate::executor::started::WarmUpSizes;

/// The options of a start.
pub(in crate::executor) struct StartOptions<'a> {
    /// The program as it is registered.
    pub(in crate::executor) program: &'a Program,
    /// The file with the program.
    pub(in crate::executor) artifact: &'a Path,
    /// The index of the CUDA device; `None` is the CPU.
    pub(in crate::executor) cuda_device: Option<u32>,
    /// The number of threads that a batch may use on the CPU.
    pub(in crate::executor) threads: u32,
    /// The largest batch to serve, in rows.
    pub(in crate::executor) batch_size: u32,
    /// The batch sizes that a GPU runs before the first batch that counts.
    pub(in crate::executor) sizes: WarmUpSizes,
    /// The optimization of the program.
    pub(in crate::executor) optimize: Optimize,
    /// True if the weights may leave memory while others need it.
    pub(in crate::executor) parks: bool,
    /// The overlap of batches.
    pub(in crate::executor) pipeline: PipelineSettings,
}

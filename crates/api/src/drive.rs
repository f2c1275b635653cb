//! What the CLI and a worker that it drives by itself, without an agent and a gateway, say to each other: the task as a file, then
//! commands on the worker's standard input and replies on its standard output, as JSON, one a line.

use std::path::PathBuf;

use packhorse_cluster::{ComputeShare, Program};
use serde::{Deserialize, Serialize};

/// What is driven: `packhorse-worker drive --task FILE`. The worker loads and warms up, and says [`DriveReply::Ready`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveTask {
    /// What runs.
    pub program: Program,
    /// Its file.
    pub artifact: PathBuf,
    /// The CUDA device, as NVML or CUDA number or name it; none is the CPU.
    pub cuda_device: Option<String>,
    /// The rows of a batch.
    pub batch_size: u32,
    /// The share of a GPU's multiprocessors, which takes MPS, or of the CPU's threads.
    pub compute_share_pct: ComputeShare,
}

/// What a driven worker is asked to do. It ends when its standard input does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum DriveCommand {
    /// Run batches one after the other, and measure those that begin in a window in the middle: [`DriveReply::Ran`].
    Run {
        /// How long before the window.
        before_ms: u64,
        /// How long the window is.
        window_ms: u64,
        /// How long after it, so that the load stays for others who measure at the same time.
        after_ms: u64,
    },
    /// Run one batch under the profiler: [`DriveReply::Done`].
    Record {
        /// Where to write what it ran, in Chrome's trace format.
        trace: PathBuf,
    },
    /// Run one batch as what a profiler around the worker is to look at: [`DriveReply::Done`].
    UnderProfiler,
}

/// What a driven worker answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub enum DriveReply {
    /// It is loaded and warm.
    Ready,
    /// It ran batches.
    Ran {
        /// How many began in the window.
        batches: u32,
        /// Their median latency, copying in and out included; 0 without batches.
        median_ms: f64,
        /// The standard deviation of their latencies; 0 without batches.
        std_ms: f64,
    },
    /// It has done what it was told.
    Done,
    /// It cannot, and ends.
    Failed {
        /// Why, for people.
        reason: String,
    },
}

//! The messages between the CLI and a worker that it starts on its own machine, without an agent and a gateway, to measure by
//! hand: the task as a file, then commands on the worker's standard input and replies on its standard output, one JSON value per
//! line. A trial, which finds what a program answers, is a task and one reply.

use std::path::PathBuf;

use packhorse_cluster::{ComputeShare, Datatype, Dim, Program, TensorSpec};
use serde::{Deserialize, Serialize};

/// The task of `packhorse-worker measure --task FILE`. The worker loads the program, warms up and replies [`MeasureReply::Ready`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasureTask {
    /// The program that the worker runs.
    pub program: Program,
    /// The program's file.
    pub artifact: PathBuf,
    /// The CUDA device, by its NVML or CUDA number or name; none selects the CPU.
    pub cuda_device: Option<String>,
    /// The number of rows in a batch.
    pub batch_size: u32,
    /// The share of the CPU's threads, or of the GPU's multiprocessors, which requires MPS; in percent.
    pub compute_share_pct: ComputeShare,
}

/// A command to a local worker. The worker ends when its standard input ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum MeasureCommand {
    /// Run batches one after the other and measure those that begin within a window: [`MeasureReply::Ran`].
    Run {
        /// The time before the window, in milliseconds.
        before_ms: u64,
        /// The length of the window, in milliseconds.
        window_ms: u64,
        /// The time after the window, in milliseconds, for which the load continues for other workers that still measure.
        after_ms: u64,
    },
    /// Run one batch under the profiler: [`MeasureReply::Done`].
    Record {
        /// The file to write the trace to, in Chrome's trace format.
        trace: PathBuf,
    },
    /// Run one batch for a profiler that was started around the worker: [`MeasureReply::Done`].
    UnderProfiler,
}

/// A reply of a local worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub enum MeasureReply {
    /// The worker has loaded the program and is warm.
    Ready,
    /// The worker has run batches.
    Ran {
        /// The number of batches that began within the window.
        batches: u32,
        /// The median latency of these batches in milliseconds, copies to and from the device included; 0 without batches.
        median_ms: f64,
        /// The standard deviation of these latencies in milliseconds; 0 without batches.
        std_ms: f64,
    },
    /// The worker has executed the command.
    Done,
    /// The worker cannot execute the task or the command, and ends.
    Failed {
        /// The reason as text for people.
        reason: String,
    },
}

/// The task of `packhorse-worker trial --task FILE`: the worker loads the program, runs it on random inputs and replies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialTask {
    /// The program's file.
    pub artifact: PathBuf,
    /// The largest number of rows in a batch; 0 tries the program without a batch dimension.
    pub max_batch_size: u32,
    /// The input tensors, in the order of the program's arguments.
    pub inputs: Vec<TensorSpec>,
}

/// The reply to a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub enum TrialReply {
    /// The program has answered.
    Ran {
        /// The output tensors, in the order of the program's results.
        outputs: Vec<TriedOutput>,
    },
    /// The program cannot be run with these inputs, or its rows are not those of a batch.
    Failed {
        /// The reason as text for people.
        reason: String,
    },
}

/// An output of a program that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedOutput {
    /// The keys on the way to it where the program answers a dict, with dots between them.
    #[serde(default)]
    pub name: Option<String>,
    /// The datatype.
    pub datatype: Datatype,
    /// The dimensions, -1 for the batch and for those that vary with the inputs.
    pub shape: Vec<Dim>,
}

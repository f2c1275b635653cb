//! The report of a measurement.

use std::time::Duration;

use packhorse_cluster::Verification;
use packhorse_wire::StageDurations;
use serde::Serialize;

/// The outcome, printed as one JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// `pipeline` or `tight`.
    pub(super) mode: &'static str,
    /// The index of the GPU; null is the CPU.
    pub(super) cuda_device: Option<u32>,
    pub(super) batch_size: u32,
    pub(super) in_flight: u32,
    pub(super) streams: bool,
    /// The batch sizes with a CUDA graph.
    pub(super) graphs: Vec<u32>,
    /// The reason why there are no graphs.
    pub(super) without_graphs: Option<String>,
    /// The time in which the program was loaded, optimised and warmed up, in seconds.
    pub(super) start_s: f64,
    pub(super) batches: u64,
    pub(super) seconds: f64,
    /// The turns of `--turns`; empty without it.
    pub(super) turns: Vec<Turn>,
    pub(super) batches_per_s: f64,
    /// The rate of requests with one row each.
    pub(super) requests_per_s: f64,
    /// The bytes of a batch's inputs.
    pub(super) input_bytes: u64,
    /// The durations of a batch's stages, in milliseconds; null with `--tight`, which has no stages.
    pub(super) stages_ms: Option<Stages>,
    /// The durations of batches with `--tight`, in milliseconds; null without it.
    pub(super) batch_ms: Option<Summary>,
    /// The CPU time of the process per batch, in milliseconds.
    pub(super) cpu_ms_per_batch: f64,
    /// The page faults of the process per batch that needed no disk.
    pub(super) minor_faults_per_batch: f64,
    /// The rate of copies to the device while it copies; with `--tight`, of the same copies one after the other.
    pub(super) h2d_bytes_per_s: Option<f64>,
    pub(super) memory_bytes: Option<u64>,
    /// The number of the GPU's multiprocessors that this process may use.
    pub(super) multiprocessors: Option<u32>,
    /// The comparison with the program as it is; null without one.
    pub(super) verification: Option<Verification>,
}

/// A measurement of the tight loop, and one of the pipeline after it.
#[derive(Debug, Serialize)]
pub(super) struct Turn {
    pub(super) tight_requests_per_s: f64,
    pub(super) requests_per_s: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Stages {
    pub(super) receive: Summary,
    pub(super) queue_wait: Summary,
    pub(super) copy_in: Summary,
    pub(super) compute: Summary,
    pub(super) copy_out: Summary,
}

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
}

impl Stages {
    pub(super) fn summarize(all: &[StageDurations]) -> Self {
        let summary = |stage: fn(&StageDurations) -> Duration| Summary::of(all.iter().map(stage));
        Self {
            receive: summary(|s| s.receive),
            queue_wait: summary(|s| s.queue_wait),
            copy_in: summary(|s| s.copy_in),
            compute: summary(|s| s.compute),
            copy_out: summary(|s| s.copy_out),
        }
    }
}

impl Summary {
    /// Summarizes some durations, in milliseconds; there is at least one.
    pub(super) fn of(durations: impl Iterator<Item = Duration>) -> Self {
        let mut ms: Vec<f64> = durations.map(|time| time.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        Self {
            mean: ms.iter().sum::<f64>() / ms.len() as f64,
            p50: ms[ms.len() / 2],
            p99: ms[99 * ms.len() / 100],
        }
    }
}

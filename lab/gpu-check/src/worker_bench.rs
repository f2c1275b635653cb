//! Runs of `packhorse-worker bench`, which measures a saturated worker.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use packhorse_cluster::Verification;
use serde::Deserialize;

use crate::{
    host::{Backend, Host},
    models::Model,
    process::RunningProgram,
};

/// The time limit for loading a model, which compiles or selects its kernels the first time.
const LOAD_LIMIT: Duration = Duration::from_mins(4);
/// The time limit for the end of a run: batches in flight are finished, which takes up to a minute each on a CPU.
const FINISH_LIMIT: Duration = Duration::from_mins(4);

/// The parameters of a run.
#[derive(Clone, Copy)]
pub(crate) struct Bench<'a> {
    pub(crate) model: &'a Model,
    pub(crate) batch_size: u32,
    pub(crate) mode: Mode,
    /// The environment in addition to that of a worker on the first device.
    pub(crate) environment: &'a [(String, String)],
}

/// The mode in which batches are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The worker's pipeline. With streams, one batch is copied while another is computed.
    Pipeline { streams: bool },
    /// The pipeline with its default settings, each time after a loop that computes only the model, on one batch that stays on the device.
    InTurn { turns: u32, graphs: bool },
    /// The pipeline with its default settings, except CUDA graphs.
    WithoutGraphs,
    /// The pipeline with its default settings, for one second, without a comparison at the start.
    Trusting,
    /// The same with a comparison, as an agent's workers make it.
    Verifying,
}

/// The part of the program's output that is read.
#[derive(Deserialize)]
pub(crate) struct Measurement {
    pub(crate) requests_per_s: f64,
    /// The turns of [`Mode::InTurn`].
    pub(crate) turns: Vec<Turn>,
    pub(crate) input_bytes: u64,
    /// The speed of copies to the device; null on a CPU, and in a tight loop.
    pub(crate) h2d_bytes_per_s: Option<f64>,
    /// The batch sizes with a recorded graph.
    pub(crate) graphs: Vec<u32>,
    /// The reason why there are no graphs.
    pub(crate) without_graphs: Option<String>,
    /// The time of the start, in seconds, with the comparison if there is one.
    pub(crate) start_s: f64,
    /// The comparison of what the worker made of the program with the program as it is; null if it makes none.
    pub(crate) verification: Option<Verification>,
}

/// A measurement of the loop, and one of the pipeline after it.
#[derive(Deserialize)]
pub(crate) struct Turn {
    pub(crate) tight_requests_per_s: f64,
    pub(crate) requests_per_s: f64,
}

impl Bench<'_> {
    /// Starts the program with its files in a folder. It waits after warming up.
    fn start(&self, host: &Host, name: &str, folder: &Path) -> anyhow::Result<RunningProgram> {
        let mut worker = host.program("packhorse-worker");
        worker
            .arg("bench")
            .arg("--model")
            .arg(self.model.artifact());
        worker
            .arg("--signature")
            .arg(self.model.registration_file());
        worker.args(["--batch-size", &self.batch_size.to_string()]);
        let seconds = match self.mode {
            Mode::InTurn { .. } | Mode::Trusting | Mode::Verifying => 1,
            _ => seconds(host),
        };
        worker.args(["--seconds", &seconds.to_string(), "--wait"]);
        match host.backend {
            Backend::Nvidia => worker.args(["--cuda-device", "0"]),
            Backend::Cpu => worker.args(["--threads", &host.threads().to_string()]),
        };
        match self.mode {
            Mode::Pipeline { streams } => worker.args(["--streams", switch(streams)]),
            Mode::InTurn { turns, graphs } => {
                worker.args(["--turns", &turns.to_string(), "--graphs", switch(graphs)])
            }
            Mode::WithoutGraphs => worker.args(["--graphs", "off"]),
            Mode::Trusting => worker.args(["--optimize", "trust"]),
            Mode::Verifying => worker.args(["--optimize", "verify"]),
        };
        worker.envs(host.worker_environment());
        worker.envs(self.environment.iter().cloned());
        RunningProgram::start_with_input(name, &mut worker, folder)
    }

    /// Runs the program, and returns its measurement.
    pub(crate) fn run(&self, host: &Host) -> anyhow::Result<Measurement> {
        let mut measured = run_together(host, std::slice::from_ref(self))?;
        Ok(measured.remove(0))
    }
}

/// Runs several programs at the same time. None begins to measure before all are warm.
pub(crate) fn run_together(host: &Host, benches: &[Bench<'_>]) -> anyhow::Result<Vec<Measurement>> {
    let folder = host.create_folder("bench")?;
    let start = |(i, bench): (usize, &Bench<'_>)| bench.start(host, &format!("bench{i}"), &folder);
    let running = benches.iter().enumerate().map(start);
    let mut running = running.collect::<anyhow::Result<Vec<_>>>()?;
    for worker in &mut running {
        worker.wait_for_line("warm", LOAD_LIMIT)?;
    }
    running.iter_mut().for_each(RunningProgram::end_input);
    running.into_iter().map(finish).collect()
}

/// Waits for the end of a program, and returns its measurement.
fn finish(bench: RunningProgram) -> anyhow::Result<Measurement> {
    let printed = bench.finish(FINISH_LIMIT)?;
    serde_json::from_str(&printed).context("read what packhorse-worker bench printed")
}

fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Returns the measured time in seconds.
fn seconds(host: &Host) -> u64 {
    if host.quick { 1 } else { 3 }
}

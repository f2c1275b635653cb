//! `packhorse-worker bench`: how much a worker computes when there is always another batch.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use serde::Deserialize;

use crate::{
    host::{Backend, Host},
    models::Model,
    process::Running,
};

/// Loading a model for the first time compiles or finds its kernels.
const LOAD_LIMIT: Duration = Duration::from_mins(4);
/// The batches in flight at the end take what they take; on a CPU, a minute each.
const BEYOND: Duration = Duration::from_mins(4);

/// What is measured, and how.
#[derive(Clone, Copy)]
pub(crate) struct Bench<'a> {
    pub(crate) model: &'a Model,
    pub(crate) batch_size: u32,
    pub(crate) mode: Mode,
    /// Beside what shows the process the first device.
    pub(crate) environment: &'a [(String, String)],
}

/// How batches follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing but the program, on one batch that stays on the device.
    Tight,
    /// One batch copied while another is computed, or one thing after the other.
    Pipeline { streams: bool },
    /// The pipeline with streams, playing recorded work.
    Graphs,
}

/// What we read of what it prints.
#[derive(Deserialize)]
pub(crate) struct Measured {
    pub(crate) requests_per_s: f64,
    pub(crate) input_bytes: u64,
    /// Null on a CPU, and in a tight loop.
    pub(crate) h2d_bytes_per_s: Option<f64>,
    /// The batch sizes of recorded work.
    pub(crate) graphs: Vec<u32>,
    /// Why there are none.
    pub(crate) without_graphs: Option<String>,
}

impl Bench<'_> {
    /// Starts it, with its files in a folder; it waits once it is warm.
    fn start(&self, host: &Host, name: &str, folder: &Path) -> anyhow::Result<Running> {
        let mut worker = host.program("packhorse-worker");
        worker
            .arg("bench")
            .arg("--model")
            .arg(self.model.artifact());
        worker
            .arg("--signature")
            .arg(self.model.registration_file());
        worker.args(["--batch-size", &self.batch_size.to_string()]);
        worker.args(["--seconds", &seconds(host).to_string(), "--wait"]);
        match host.backend {
            Backend::Nvidia => worker.args(["--cuda-device", "0"]),
            Backend::Cpu => worker.args(["--threads", &host.threads().to_string()]),
        };
        match self.mode {
            Mode::Tight => worker.arg("--tight"),
            Mode::Pipeline { streams } => {
                worker.args(["--streams", if streams { "on" } else { "off" }])
            }
            Mode::Graphs => worker.args(["--streams", "on", "--graphs"]),
        };
        worker.envs(host.worker_environment());
        worker.envs(self.environment.iter().cloned());
        Running::start_with_input(name, &mut worker, folder)
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, host: &Host) -> anyhow::Result<Measured> {
        let mut measured = run_together(host, std::slice::from_ref(self))?;
        Ok(measured.remove(0))
    }
}

/// Runs several at the same time: none begins before all are warm.
pub(crate) fn run_together(host: &Host, benches: &[Bench<'_>]) -> anyhow::Result<Vec<Measured>> {
    let folder = host.folder("bench")?;
    let start = |(i, bench): (usize, &Bench<'_>)| bench.start(host, &format!("bench{i}"), &folder);
    let running = benches.iter().enumerate().map(start);
    let mut running = running.collect::<anyhow::Result<Vec<_>>>()?;
    for worker in &mut running {
        worker.wait_for_line("warm", LOAD_LIMIT)?;
    }
    running.iter_mut().for_each(Running::end_input);
    running.into_iter().map(finish).collect()
}

/// Waits for its end: what it measured.
fn finish(bench: Running) -> anyhow::Result<Measured> {
    let printed = bench.finish(BEYOND)?;
    serde_json::from_str(&printed).context("read what packhorse-worker bench printed")
}

/// How long is measured.
fn seconds(host: &Host) -> u64 {
    if host.quick { 1 } else { 5 }
}

//! `packhorse-lab profile record`: runs one batch on this machine and records its kernels.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use packhorse_api::local_worker::MeasureCommand;
use packhorse_cluster::ComputeShare;
use packhorse_kernels::{KinetoTrace, NcuReport};
use packhorse_terminal::{context::Context, files::read_text, output};

use super::{
    kernels::print_summary,
    local_worker::{LocalDevice, LocalModel, LocalWorker, LocalWorkerOptions, WorkerArgs},
    plot::PlotFile,
};

#[derive(clap::Args)]
#[command(after_help = "\
The command starts a worker for the model, warms it up, and records the kernels of one batch of synthetic inputs. SPEC.json is \
that of `packhorse model register`. With --ncu the batch runs a second time under NVIDIA Nsight Compute, which measures the \
occupancy that is estimated otherwise; this requires permission to read the GPU's performance counters.

Examples:
  packhorse-lab profile record minilm.json --artifact minilm.pt --batch-size 4 --device cuda:0 --plot kernels.svg
  packhorse-lab profile record minilm.json --artifact minilm.pt --batch-size 4 --device cuda:0 --ncu --json
  packhorse-lab profile record minilm.json --artifact minilm.pt --trace operators.json")]
pub(crate) struct RecordArgs {
    /// JSON file with the model's signature
    #[arg(value_name = "SPEC.json")]
    spec: PathBuf,
    /// TorchScript or `.pt2` file of the model
    #[arg(long, value_name = "FILE")]
    artifact: PathBuf,
    /// Number of rows of the batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch_size: u32,
    #[command(flatten)]
    worker: WorkerArgs,
    /// Write the recording to this file, in Chrome's trace format
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Draw occupancy and SM utilisation over time into this file
    #[arg(long, value_name = "F.svg")]
    plot: Option<PlotFile>,
    /// Measure the occupancy with ncu as well, and compare
    #[arg(long)]
    ncu: bool,
}

impl RecordArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let ncu = if self.ncu { Some(find_ncu()?) } else { None };
        let worker = self.worker.program.path()?;
        let model = LocalModel::read(&self.spec, &self.artifact).await?;
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        let spinner = output::spinner();
        spinner.set_message("recording one batch");
        let trace_file = match &self.trace {
            Some(path) => std::path::absolute(path)?,
            None => folder.path().join("trace.json"),
        };
        let options = LocalWorkerOptions {
            worker: &worker,
            profiler: Vec::new(),
            model: &model,
            device: &self.worker.device,
            batch_size: self.batch_size,
            share: ComputeShare::WHOLE,
        };
        run_command(
            &options,
            &MeasureCommand::Record {
                trace: trace_file.clone(),
            },
        )?;
        let trace = KinetoTrace::from_json(&read_text(&trace_file)?)
            .with_context(|| trace_file.display().to_string())?;
        if self.worker.device == LocalDevice::Cpu {
            spinner.finish_and_clear();
            return print_without_kernels(context, self.trace.as_deref());
        }
        // The worker sees one GPU, which has number 0 there.
        let kernels = trace.kernels.get(&0);
        let kernels = kernels.context("no kernels were recorded: the profiler cannot access the GPU, or the model does not use it")?;
        let gpu = trace.gpus.get(&0);
        let gpu = gpu.context(
            "the recording does not describe the GPU, or its compute capability is unknown",
        )?;
        let measured = match &ncu {
            None => None,
            Some(ncu) => {
                spinner.set_message("measuring one batch with ncu");
                Some(measure_with_ncu(ncu, folder.path(), &options)?)
            }
        };
        spinner.finish_and_clear();
        print_summary(context, gpu, kernels, self.plot.as_ref(), measured.as_ref())
    }
}

/// Starts a worker, runs one command, and ends the worker.
fn run_command(options: &LocalWorkerOptions<'_>, command: &MeasureCommand) -> anyhow::Result<()> {
    let mut worker = LocalWorker::start(options)?;
    worker.wait_until_ready()?;
    worker.send(command)?;
    worker.receive()?;
    worker.finish()
}

fn print_without_kernels(context: &Context, trace: Option<&Path>) -> anyhow::Result<()> {
    if context.json() {
        return output::print_json(&serde_json::json!({ "kernels": 0, "trace": trace }));
    }
    output::print_line("no kernels: a CPU has none")?;
    if let Some(trace) = trace {
        output::print_line(format!(
            "the recording of its operators is in {}",
            trace.display()
        ))?;
    }
    Ok(())
}

/// Returns the path of Nsight Compute's program `ncu`, from the search path.
fn find_ncu() -> anyhow::Result<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&paths).map(|folder| folder.join("ncu"));
    let Some(ncu) = found.into_iter().find(|path| path.is_file()) else {
        bail!(
            "--ncu: there is no program ncu in PATH: install NVIDIA Nsight Compute, or leave out --ncu to estimate the occupancy"
        )
    };
    Ok(ncu)
}

/// Runs the batch under ncu. The worker lets ncu profile that batch only.
fn measure_with_ncu(
    ncu: &Path,
    folder: &Path,
    options: &LocalWorkerOptions<'_>,
) -> anyhow::Result<NcuReport> {
    let log = folder.join("ncu.csv");
    let metrics = format!("{},{}", NcuReport::OCCUPANCY, NcuReport::DURATION);
    let mut profiler: Vec<OsString> = vec![ncu.into()];
    profiler.extend(
        [
            "--csv",
            "--page",
            "raw",
            "--profile-from-start",
            "off",
            "--target-processes",
            "all",
            // The default locks the GPU's clocks to their base, which changes the machine's settings.
            "--clock-control",
            "none",
        ]
        .map(OsString::from),
    );
    profiler.extend([
        "--metrics".into(),
        metrics.into(),
        "--log-file".into(),
        log.clone().into(),
    ]);
    let outcome = run_command(
        &LocalWorkerOptions {
            profiler,
            ..options.clone()
        },
        &MeasureCommand::UnderProfiler,
    );
    let text = fs::read_to_string(&log).unwrap_or_default();
    match NcuReport::from_csv(&text) {
        Ok(report) => Ok(report),
        Err(error) => {
            outcome.context("under ncu")?;
            ensure!(!text.is_empty(), "ncu has written no measurements");
            Err(error).context("the output of ncu")
        }
    }
}

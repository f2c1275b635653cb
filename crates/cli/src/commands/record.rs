//! `packhorse profile record`: runs one batch on this machine and looks at its kernels. Asks no gateway.

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

use super::{
    driven::{DriveDevice, Driven, DrivenModel, Start, WorkerArgs},
    occupancy,
};
use crate::{
    context::{Context, read_text},
    output,
    plot::PlotFile,
};

#[derive(clap::Args)]
#[command(after_help = "\
Loads the model in a worker of its own, warms it up, and records the kernels of one made-up batch. SPEC.json is that of
`packhorse model register`. With --ncu the batch is run once more under NVIDIA Nsight Compute, which measures the
occupancy that is estimated otherwise; that takes the permission to read performance counters.

Examples:
  packhorse profile record minilm.json --artifact minilm.pt --batch-size 4 --device cuda:0 --plot kernels.svg
  packhorse profile record minilm.json --artifact minilm.pt --batch-size 4 --device cuda:0 --ncu --json
  packhorse profile record minilm.json --artifact minilm.pt --trace operators.json")]
pub(crate) struct RecordArgs {
    /// File with the model's signature, as JSON
    #[arg(value_name = "SPEC.json")]
    spec: PathBuf,
    /// The model's TorchScript or `.pt2` file
    #[arg(long, value_name = "FILE")]
    artifact: PathBuf,
    /// Rows of the batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch_size: u32,
    #[command(flatten)]
    worker: WorkerArgs,
    /// Keep what was recorded, in Chrome's trace format
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Also draw occupancy and SM utilisation over time
    #[arg(long, value_name = "F.svg|F.png")]
    plot: Option<PlotFile>,
    /// Also measure the occupancy by ncu, and compare
    #[arg(long)]
    ncu: bool,
}

impl RecordArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let ncu = if self.ncu { Some(find_ncu()?) } else { None };
        let worker = self.worker.program()?;
        let model = DrivenModel::read(&self.spec, &self.artifact).await?;
        let folder = tempfile::tempdir().context("a temporary folder")?;
        let spinner = output::spinner();
        spinner.set_message("recording one batch");
        let trace_file = match &self.trace {
            Some(path) => std::path::absolute(path)?,
            None => folder.path().join("trace.json"),
        };
        let start = Start {
            worker: &worker,
            under: Vec::new(),
            model: &model,
            device: &self.worker.device,
            batch_size: self.batch_size,
            share: ComputeShare::WHOLE,
        };
        obey(
            &start,
            &MeasureCommand::Record {
                trace: trace_file.clone(),
            },
        )?;
        let trace = KinetoTrace::from_json(&read_text(&trace_file)?)
            .with_context(|| trace_file.display().to_string())?;
        if self.worker.device == DriveDevice::Cpu {
            spinner.finish_and_clear();
            return without_kernels(context, self.trace.as_deref());
        }
        // The worker's environment shows it one GPU, which is number 0 there.
        let kernels = trace.kernels.get(&0);
        let kernels = kernels.context("no kernels were recorded: the profiler has no access to the GPU, or the model left it idle")?;
        let gpu = trace.gpus.get(&0);
        let gpu = gpu.context(
            "the recording does not say what the GPU is, or it is of an unknown compute capability",
        )?;
        let measured = match &ncu {
            None => None,
            Some(ncu) => {
                spinner.set_message("measuring one batch by ncu");
                Some(measure(ncu, folder.path(), &start)?)
            }
        };
        spinner.finish_and_clear();
        occupancy::show(context, gpu, kernels, self.plot.as_ref(), measured.as_ref())
    }
}

/// Has a worker do one thing, and end.
fn obey(start: &Start<'_>, command: &MeasureCommand) -> anyhow::Result<()> {
    let mut driven = Driven::start(start)?;
    driven.wait_until_ready()?;
    driven.tell(command)?;
    driven.reply()?;
    driven.finish()
}

fn without_kernels(context: &Context, trace: Option<&Path>) -> anyhow::Result<()> {
    if context.json() {
        return output::json(&serde_json::json!({ "kernels": 0, "trace": trace }));
    }
    output::line("no kernels: a CPU runs none")?;
    if let Some(trace) = trace {
        output::line(format!("its operators are in {}", trace.display()))?;
    }
    Ok(())
}

/// Nsight Compute's command, from the search path.
fn find_ncu() -> anyhow::Result<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&paths).map(|folder| folder.join("ncu"));
    let Some(ncu) = found.into_iter().find(|path| path.is_file()) else {
        bail!(
            "--ncu: there is no ncu in PATH: it comes with NVIDIA Nsight Compute; without --ncu the occupancy is estimated"
        )
    };
    Ok(ncu)
}

/// Runs the batch under ncu, which sees no other.
fn measure(ncu: &Path, folder: &Path, start: &Start<'_>) -> anyhow::Result<NcuReport> {
    let log = folder.join("ncu.csv");
    let metrics = format!("{},{}", NcuReport::OCCUPANCY, NcuReport::DURATION);
    let mut under: Vec<OsString> = vec![ncu.into()];
    under.extend(
        [
            "--csv",
            "--page",
            "raw",
            "--profile-from-start",
            "off",
            "--target-processes",
            "all",
            // It would hold them at their base; they are not ours to set.
            "--clock-control",
            "none",
        ]
        .map(OsString::from),
    );
    under.extend([
        "--metrics".into(),
        metrics.into(),
        "--log-file".into(),
        log.clone().into(),
    ]);
    let outcome = obey(
        &Start {
            under,
            ..start.clone()
        },
        &MeasureCommand::UnderProfiler,
    );
    let text = fs::read_to_string(&log).unwrap_or_default();
    match NcuReport::from_csv(&text) {
        Ok(report) => Ok(report),
        Err(error) => {
            outcome.context("under ncu")?;
            ensure!(!text.is_empty(), "ncu has written nothing");
            Err(error).context("ncu")
        }
    }
}

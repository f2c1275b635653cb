//! `packhorse profile kernels`: what the kernels of a recorded batch took of their GPU. Asks no gateway.

use std::{path::PathBuf, str::FromStr};

use anyhow::{Context as _, ensure};
use packhorse_kernels::{Gpu, GpuError, KinetoTrace};

use super::occupancy;
use crate::{
    context::{Context, read_text},
    plot::PlotFile,
};

#[derive(clap::Args)]
#[command(after_help = "\
Record one batch with `packhorse profile record`, or in Python:
  with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recording:
      model(batch); torch.cuda.synchronize()
  recording.export_chrome_trace(\"batch.json\")

--ncu-csv takes what ncu --csv prints with --metrics sm__warps_active.avg.pct_of_peak_sustained_active,gpu__time_duration.sum.

Examples:
  packhorse profile kernels batch.json
  packhorse profile kernels batch.json --gpu 7.0:80 --plot kernels.svg
  packhorse profile kernels batch.json --ncu-csv ncu.csv")]
pub(crate) struct KernelsArgs {
    /// What torch.profiler exported of one batch
    trace: PathBuf,
    /// Which of the trace's GPUs
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Compute capability and multiprocessors of the GPU [default: as the trace says]
    #[arg(long, value_name = "C.C:SMS")]
    gpu: Option<GivenGpu>,
    /// Also draw occupancy and SM utilisation over time
    #[arg(long, value_name = "F.svg|F.png")]
    plot: Option<PlotFile>,
    /// Compare with what `ncu --csv` printed of the same batch, see below
    #[arg(long, value_name = "FILE")]
    ncu_csv: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
struct GivenGpu(Gpu);

#[derive(Debug, thiserror::Error)]
enum GivenGpuError {
    #[error("expected COMPUTE_CAPABILITY:MULTIPROCESSORS, such as 9.0:132")]
    Form,
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl FromStr for GivenGpu {
    type Err = GivenGpuError;

    fn from_str(text: &str) -> Result<Self, GivenGpuError> {
        let (capability, count) = text.split_once(':').ok_or(GivenGpuError::Form)?;
        let count = count.parse().map_err(|_| GivenGpuError::Form)?;
        Ok(Self(Gpu::new(capability.parse()?, count)?))
    }
}

impl KernelsArgs {
    pub(super) fn run(self, context: &Context) -> anyhow::Result<()> {
        let trace = KinetoTrace::from_json(&read_text(&self.trace)?)
            .with_context(|| format!("{}", self.trace.display()))?;
        ensure!(
            !trace.kernels.is_empty(),
            "{}: no kernels: it was recorded of a CPU, which runs none, or without CUDA activities",
            self.trace.display()
        );
        let kernels = trace.kernels.get(&self.device);
        let kernels = kernels.map(Vec::as_slice).unwrap_or_default();
        ensure!(
            !kernels.is_empty(),
            "{}: no kernels of device {}; it has those of {:?}",
            self.trace.display(),
            self.device,
            trace.kernels.keys().collect::<Vec<_>>()
        );
        let gpu = match self.gpu {
            Some(GivenGpu(gpu)) => gpu,
            None => *trace.gpus.get(&self.device).with_context(|| {
                format!(
                    "the trace does not say what device {} is; say it with --gpu",
                    self.device
                )
            })?,
        };
        let ncu = self.ncu_csv.as_deref().map(occupancy::read_ncu);
        let ncu = ncu.transpose()?;
        occupancy::show(context, &gpu, kernels, self.plot.as_ref(), ncu.as_ref())
    }
}

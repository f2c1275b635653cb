//! `packhorse-lab profile kernels`: occupancy and SM utilisation of the kernels of a recorded batch.

mod figure;
mod profile_plot;
mod summary;

pub(crate) use self::profile_plot::PlotArgs;
pub(super) use self::summary::print_summary;

use std::{path::PathBuf, str::FromStr};

use anyhow::{Context as _, ensure};
use packhorse_kernels::{Gpu, GpuError, KinetoTrace};
use packhorse_terminal::{context::Context, files::read_text};

use super::plot::PlotFile;

#[derive(clap::Args)]
#[command(after_help = "\
Record one batch with `packhorse-lab profile record`, or in Python:
  with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recording:
      model(batch); torch.cuda.synchronize()
  recording.export_chrome_trace(\"batch.json\")

--ncu-csv reads the output of ncu --csv --page raw --metrics sm__warps_active.avg.pct_of_peak_sustained_active,gpu__time_duration.sum.

Examples:
  packhorse-lab profile kernels batch.json
  packhorse-lab profile kernels batch.json --gpu 7.0:80 --plot kernels.svg
  packhorse-lab profile kernels batch.json --ncu-csv ncu.csv")]
pub(crate) struct KernelsArgs {
    /// Trace of one batch that torch.profiler exported
    trace: PathBuf,
    /// Number of the GPU in the trace
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Compute capability and number of multiprocessors of the GPU [default: those in the trace]
    #[arg(long, value_name = "C.C:SMS")]
    gpu: Option<GpuArgument>,
    /// Draw occupancy and SM utilisation over time into this file
    #[arg(long, value_name = "F.svg")]
    plot: Option<PlotFile>,
    /// Compare with the output of `ncu --csv` for the same batch
    #[arg(long, value_name = "FILE")]
    ncu_csv: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
struct GpuArgument(Gpu);

#[derive(Debug, thiserror::Error)]
enum GpuArgumentError {
    #[error("expected COMPUTE_CAPABILITY:MULTIPROCESSORS, such as 9.0:132")]
    Form,
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl FromStr for GpuArgument {
    type Err = GpuArgumentError;

    fn from_str(text: &str) -> Result<Self, GpuArgumentError> {
        let (capability, count) = text.split_once(':').ok_or(GpuArgumentError::Form)?;
        let count = count.parse().map_err(|_| GpuArgumentError::Form)?;
        Ok(Self(Gpu::new(capability.parse()?, count)?))
    }
}

impl KernelsArgs {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<()> {
        let trace = KinetoTrace::from_json(&read_text(&self.trace)?)
            .with_context(|| format!("{}", self.trace.display()))?;
        ensure!(
            !trace.kernels.is_empty(),
            "{}: the trace has no kernels: it was recorded on a CPU, or without CUDA activities",
            self.trace.display()
        );
        let kernels = trace.kernels.get(&self.device);
        let kernels = kernels.map(Vec::as_slice).unwrap_or_default();
        ensure!(
            !kernels.is_empty(),
            "{}: the trace has no kernels of device {}, only of {:?}",
            self.trace.display(),
            self.device,
            trace.kernels.keys().collect::<Vec<_>>()
        );
        let gpu = match self.gpu {
            Some(GpuArgument(gpu)) => gpu,
            None => *trace.gpus.get(&self.device).with_context(|| {
                format!(
                    "the trace does not describe device {}: describe it with --gpu",
                    self.device
                )
            })?,
        };
        let ncu = self.ncu_csv.as_deref().map(summary::read_ncu);
        let ncu = ncu.transpose()?;
        print_summary(context, &gpu, kernels, self.plot.as_ref(), ncu.as_ref())
    }
}

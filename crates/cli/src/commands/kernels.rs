//! `packhorse profile kernels`: what the kernels of a recorded batch took of their GPU. Asks no gateway.

use std::{path::PathBuf, str::FromStr};

use anyhow::{Context as _, ensure};
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_kernels::{Gpu, GpuError, KernelProfile, KinetoTrace, Timeline};
use serde::Serialize;

use crate::{
    context::{Context, read_text},
    output::{self, number},
    plot::PlotFile,
};

#[derive(clap::Args)]
#[command(after_help = "\
Record one batch, and export it:
  with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recording:
      model(batch); torch.cuda.synchronize()
  recording.export_chrome_trace(\"batch.json\")

Examples:
  packhorse profile kernels batch.json
  packhorse profile kernels batch.json --gpu 7.0:80 --plot kernels.svg")]
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

/// The metrics, by the names that profiles have for them.
#[derive(Serialize)]
struct Summary {
    compute_capability: String,
    multiprocessors: u32,
    kernels: usize,
    duration_ms: f64,
    achieved_occupancy_pct: f64,
    mean_occupancy_pct: f64,
    sm_utilization_pct: f64,
}

impl KernelsArgs {
    pub(super) fn run(self, context: &Context) -> anyhow::Result<()> {
        let trace = KinetoTrace::from_json(&read_text(&self.trace)?)
            .with_context(|| format!("{}", self.trace.display()))?;
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
        let profile = KernelProfile::new(&gpu, kernels)?;
        if let Some(plot) = &self.plot {
            plot.write(&figure(&profile))?;
        }
        let summary = Summary {
            compute_capability: gpu.capability().to_string(),
            multiprocessors: gpu.multiprocessors(),
            kernels: kernels.len(),
            duration_ms: profile.sm_utilization.duration().as_secs_f64() * 1e3,
            achieved_occupancy_pct: profile.achieved_occupancy.max().get(),
            mean_occupancy_pct: profile.achieved_occupancy.mean().get(),
            sm_utilization_pct: profile.sm_utilization.mean().get(),
        };
        if context.json() {
            return output::json(&summary);
        }
        let mut table = output::table(&[]);
        for (name, value) in [
            ("compute capability", summary.compute_capability),
            ("multiprocessors", summary.multiprocessors.to_string()),
            ("kernels", summary.kernels.to_string()),
            ("duration ms", format!("{:.3}", summary.duration_ms)),
            (
                "achieved occupancy % (estimate, highest)",
                number(summary.achieved_occupancy_pct),
            ),
            (
                "achieved occupancy % (estimate, mean)",
                number(summary.mean_occupancy_pct),
            ),
            (
                "SM utilisation % (mean)",
                number(summary.sm_utilization_pct),
            ),
        ] {
            table.add_row([name, &value]);
        }
        Ok(output::table_or(&table, "")?)
    }
}

/// Both metrics over time with their means, as in the thesis' Figures 5.3 and 5.4.
fn figure(profile: &KernelProfile) -> Figure {
    Figure {
        title: "Kernels of one batch".to_owned(),
        columns: 2,
        panels: vec![
            Panel::Lines(chart(
                "Achieved occupancy (estimate)",
                &profile.achieved_occupancy,
            )),
            Panel::Lines(chart("SM utilisation", &profile.sm_utilization)),
        ],
        ..Figure::default()
    }
}

fn chart(title: &str, timeline: &Timeline) -> LineChart {
    let begin = timeline.intervals()[0].start;
    let end = timeline.duration().as_secs_f64() * 1e3;
    let steps = timeline.intervals().iter().flat_map(|interval| {
        let start = interval.start.saturating_since(begin);
        let value = interval.value.get();
        [start, start + interval.duration].map(|time| (time.as_secs_f64() * 1e3, value))
    });
    let mean = timeline.mean().get();
    let line = |series, points| Curve {
        series,
        stroke: Stroke::Line,
        points,
    };
    LineChart {
        title: title.to_owned(),
        x_axis: "time (ms)".to_owned(),
        y_axis: "% of the GPU".to_owned(),
        x_end: Some(end),
        y_end: Some(100.0),
        series: Series::of(["kernels", "weighted mean"]),
        curves: vec![
            line(0, steps.collect()),
            line(1, vec![(0.0, mean), (end, mean)]),
        ],
        ..LineChart::default()
    }
}

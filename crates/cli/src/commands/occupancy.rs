//! What the kernels of a batch took of their GPU, in a few numbers; and beside what Nsight Compute measured of them.

use std::path::Path;

use anyhow::{Context as _, ensure};
use packhorse_kernels::{Gpu, Kernel, KernelProfile, NcuReport};
use serde::Serialize;

use crate::{
    context::Context,
    output::{self, number},
    plot::PlotFile,
};

use super::kernel_figure;

/// How many kernels are compared one by one for people: the longest.
const SHOWN: usize = 10;

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
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
}

/// What ncu measured. It runs the kernels one after the other, at a clock of its own, so that pauses do not count and overlaps are none.
#[derive(Serialize)]
struct Measured {
    kernels: usize,
    max_occupancy_pct: f64,
    mean_occupancy_pct: f64,
    /// The estimate's, weighted in the same way.
    estimated_mean_occupancy_pct: f64,
    /// By how much the estimates are off, in points: the mean weighted by duration. None where ncu ran other kernels.
    mean_error_points: Option<f64>,
    by_kernel: Vec<Compared>,
}

#[derive(Serialize)]
struct Compared {
    kernel: String,
    duration_ms: f64,
    estimated_occupancy_pct: f64,
    measured_occupancy_pct: f64,
}

/// Reads what ncu has written.
pub(super) fn read_ncu(path: &Path) -> anyhow::Result<NcuReport> {
    let text = crate::context::read_text(path)?;
    NcuReport::from_csv(&text).with_context(|| path.display().to_string())
}

/// Shows the metrics of the kernels of a batch, draws them, and compares them.
pub(super) fn show(
    context: &Context,
    gpu: &Gpu,
    kernels: &[Kernel],
    plot: Option<&PlotFile>,
    ncu: Option<&NcuReport>,
) -> anyhow::Result<()> {
    let profile = KernelProfile::new(gpu, kernels)?;
    if let Some(plot) = plot {
        let title = "Kernels of one batch".to_owned();
        plot.write(&kernel_figure::figure(
            title,
            &[(String::new(), profile.clone())],
        ))?;
    }
    let summary = Summary {
        compute_capability: gpu.capability().to_string(),
        multiprocessors: gpu.multiprocessors(),
        kernels: kernels.len(),
        duration_ms: profile.sm_utilization.duration().as_secs_f64() * 1e3,
        achieved_occupancy_pct: profile.achieved_occupancy.max().get(),
        mean_occupancy_pct: profile.achieved_occupancy.mean().get(),
        sm_utilization_pct: profile.sm_utilization.mean().get(),
        measured: ncu.map(|ncu| compare(gpu, kernels, ncu)).transpose()?,
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
    output::table_or(&table, "")?;
    summary.measured.as_ref().map_or(Ok(()), print)
}

fn compare(gpu: &Gpu, kernels: &[Kernel], ncu: &NcuReport) -> anyhow::Result<Measured> {
    let estimate = |kernel: &Kernel| {
        let metrics = gpu.metrics(&kernel.launch);
        metrics.map(|of| of.achieved_occupancy.get())
    };
    let mut total = 0.0;
    let mut weighted = 0.0;
    for kernel in kernels {
        let seconds = kernel.duration.as_secs_f64();
        weighted += seconds * estimate(kernel)?;
        total += seconds;
    }
    ensure!(total > 0.0, "there are no kernels that took time");
    let measured = ncu.kernels();
    // Both saw the same batch in the order of its launches, or something else is wrong.
    let mut order: Vec<&Kernel> = kernels.iter().collect();
    order.sort_by_key(|kernel| kernel.start);
    let same = measured.len() == order.len();
    let mut by_kernel = Vec::new();
    let mut off = 0.0;
    for (kernel, measured) in order.iter().zip(measured).filter(|_| same) {
        let compared = Compared {
            kernel: kernel.name.clone(),
            duration_ms: kernel.duration.as_secs_f64() * 1e3,
            estimated_occupancy_pct: estimate(kernel)?,
            measured_occupancy_pct: measured.achieved_occupancy.get(),
        };
        let error = compared.estimated_occupancy_pct - compared.measured_occupancy_pct;
        off += kernel.duration.as_secs_f64() * error.abs();
        by_kernel.push(compared);
    }
    Ok(Measured {
        kernels: measured.len(),
        max_occupancy_pct: ncu.max().get(),
        mean_occupancy_pct: ncu.mean().get(),
        estimated_mean_occupancy_pct: weighted / total,
        mean_error_points: same.then_some(off / total),
        by_kernel,
    })
}

fn print(measured: &Measured) -> anyhow::Result<()> {
    let error = measured.mean_error_points.map_or_else(
        || "ncu ran other kernels than were recorded: only the means are compared".to_owned(),
        |points| format!("the estimates are {points:.1} points off in the mean"),
    );
    output::line(format!(
        "\nmeasured by ncu: {} kernels, achieved occupancy {:.1} % in the mean without pauses (estimate {:.1} %), {:.1} % at most; {error}\n",
        measured.kernels,
        measured.mean_occupancy_pct,
        measured.estimated_mean_occupancy_pct,
        measured.max_occupancy_pct
    ))?;
    let mut longest: Vec<&Compared> = measured.by_kernel.iter().collect();
    longest.sort_by(|a, b| b.duration_ms.total_cmp(&a.duration_ms));
    let mut table = output::table(&["KERNEL", "MS", "ESTIMATE %", "MEASURED %"]);
    for of in longest.into_iter().take(SHOWN) {
        table.add_row([
            of.kernel.chars().take(60).collect(),
            format!("{:.3}", of.duration_ms),
            number(of.estimated_occupancy_pct),
            number(of.measured_occupancy_pct),
        ]);
    }
    Ok(output::table_or(&table, "")?)
}

//! The metrics of the kernels of a batch, and a comparison with the measurements of Nsight Compute.

use std::path::Path;

use anyhow::{Context as _, ensure};
use packhorse_kernels::{Gpu, Kernel, KernelProfile, NcuReport};
use packhorse_terminal::{
    context::Context,
    files::read_text,
    output::{self, format_number},
};
use serde::Serialize;

use super::figure;
use crate::plot::PlotFile;

/// The number of kernels, the longest, that the text compares one by one.
const SHOWN_KERNELS: usize = 10;

/// The metrics of a batch, named like the columns of profiles.
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

/// The measurements of ncu. It runs the kernels one after the other and at its own clock, so that pauses do not count and kernels do
/// not overlap.
#[derive(Serialize)]
struct Measured {
    kernels: usize,
    max_occupancy_pct: f64,
    mean_occupancy_pct: f64,
    /// The mean of the estimates, weighted in the same way.
    estimated_mean_occupancy_pct: f64,
    /// The mean error of the estimates in percentage points, weighted by duration. `None` if ncu ran other kernels.
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

/// Reads the output of `ncu --csv`.
pub(super) fn read_ncu(path: &Path) -> anyhow::Result<NcuReport> {
    let text = read_text(path)?;
    NcuReport::from_csv(&text).with_context(|| path.display().to_string())
}

/// Prints the metrics of the kernels of a batch, draws them into `plot`, and compares them with `ncu`.
pub(crate) fn print_summary(
    context: &Context,
    gpu: &Gpu,
    kernels: &[Kernel],
    plot: Option<&PlotFile>,
    ncu: Option<&NcuReport>,
) -> anyhow::Result<()> {
    let profile = KernelProfile::new(gpu, kernels)?;
    if let Some(plot) = plot {
        let title = "Kernels of one batch".to_owned();
        plot.write(&figure::kernel_figure(
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
        return output::print_json(&summary);
    }
    let mut table = output::new_table(&[]);
    for (name, value) in [
        ("compute capability", summary.compute_capability),
        ("multiprocessors", summary.multiprocessors.to_string()),
        ("kernels", summary.kernels.to_string()),
        ("duration ms", format!("{:.3}", summary.duration_ms)),
        (
            "achieved occupancy % (highest estimate)",
            format_number(summary.achieved_occupancy_pct),
        ),
        (
            "achieved occupancy % (mean estimate)",
            format_number(summary.mean_occupancy_pct),
        ),
        (
            "SM utilisation % (mean)",
            format_number(summary.sm_utilization_pct),
        ),
    ] {
        table.add_row([name, &value]);
    }
    output::print_table(&table, "")?;
    summary.measured.as_ref().map_or(Ok(()), print_comparison)
}

fn compare(gpu: &Gpu, kernels: &[Kernel], ncu: &NcuReport) -> anyhow::Result<Measured> {
    let estimate = |kernel: &Kernel| {
        let metrics = gpu.metrics(&kernel.launch);
        metrics.map(|metrics| metrics.achieved_occupancy.get())
    };
    let mut total = 0.0;
    let mut weighted = 0.0;
    for kernel in kernels {
        let seconds = kernel.duration.as_secs_f64();
        weighted += seconds * estimate(kernel)?;
        total += seconds;
    }
    ensure!(total > 0.0, "the kernels have no duration");
    let measured = ncu.kernels();
    // Both recorded the same batch in the order of its launches; another number of kernels means other kernels.
    let mut order: Vec<&Kernel> = kernels.iter().collect();
    order.sort_by_key(|kernel| kernel.start);
    let same = measured.len() == order.len();
    let mut by_kernel = Vec::new();
    let mut weighted_error = 0.0;
    for (kernel, measured) in order.iter().zip(measured).filter(|_| same) {
        let compared = Compared {
            kernel: kernel.name.clone(),
            duration_ms: kernel.duration.as_secs_f64() * 1e3,
            estimated_occupancy_pct: estimate(kernel)?,
            measured_occupancy_pct: measured.achieved_occupancy.get(),
        };
        let error = compared.estimated_occupancy_pct - compared.measured_occupancy_pct;
        weighted_error += kernel.duration.as_secs_f64() * error.abs();
        by_kernel.push(compared);
    }
    Ok(Measured {
        kernels: measured.len(),
        max_occupancy_pct: ncu.max().get(),
        mean_occupancy_pct: ncu.mean().get(),
        estimated_mean_occupancy_pct: weighted / total,
        mean_error_points: same.then_some(weighted_error / total),
        by_kernel,
    })
}

fn print_comparison(measured: &Measured) -> anyhow::Result<()> {
    let error = measured.mean_error_points.map_or_else(
        || "ncu ran other kernels than those recorded, so only the means are compared".to_owned(),
        |points| format!("the mean error of the estimates is {points:.1} percentage points"),
    );
    output::print_line(format!(
        "\nmeasured by ncu: {} kernels, mean achieved occupancy without pauses {:.1} % (estimate {:.1} %), highest {:.1} %; {error}\n",
        measured.kernels,
        measured.mean_occupancy_pct,
        measured.estimated_mean_occupancy_pct,
        measured.max_occupancy_pct
    ))?;
    let mut longest: Vec<&Compared> = measured.by_kernel.iter().collect();
    longest.sort_by(|a, b| b.duration_ms.total_cmp(&a.duration_ms));
    let mut table = output::new_table(&["KERNEL", "MS", "ESTIMATE %", "MEASURED %"]);
    for compared in longest.into_iter().take(SHOWN_KERNELS) {
        table.add_row([
            compared.kernel.chars().take(60).collect(),
            format!("{:.3}", compared.duration_ms),
            format_number(compared.estimated_occupancy_pct),
            format_number(compared.measured_occupancy_pct),
        ]);
    }
    Ok(output::print_table(&table, "")?)
}

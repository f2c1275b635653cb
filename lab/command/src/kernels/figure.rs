//! The figure of a batch's occupancy and SM utilisation over time: the thesis' Figures 5.3 and 5.4, side by side.

use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_kernels::{KernelProfile, Timeline};

/// Returns a figure with a row of two charts for each named batch.
pub(super) fn kernel_figure(title: String, batches: &[(String, KernelProfile)]) -> Figure {
    let charts = batches.iter().flat_map(|(name, profile)| {
        let title = |metric: &str| {
            let comma = if name.is_empty() { "" } else { ", " };
            format!("{metric}{comma}{name}")
        };
        [
            chart(
                title("Achieved occupancy (estimate)"),
                &profile.achieved_occupancy,
            ),
            chart(title("SM utilisation"), &profile.sm_utilization),
        ]
    });
    Figure {
        title,
        columns: 2,
        panels: charts.map(Panel::Lines).collect(),
        ..Figure::default()
    }
}

fn chart(title: String, timeline: &Timeline) -> LineChart {
    let begin = timeline.intervals()[0].start;
    let end = timeline.duration().as_secs_f64() * 1e3;
    let bars = timeline.intervals().iter().map(|interval| {
        let start = interval.start.saturating_since(begin);
        (start.as_secs_f64() * 1e3, interval.value.get())
    });
    let horizontal_line = |series, value: f64| Curve {
        series,
        stroke: Stroke::Line,
        points: vec![(0.0, value), (end, value)],
    };
    let bars = Curve {
        series: 0,
        stroke: Stroke::Bars,
        points: bars.chain([(end, 0.0)]).collect(),
    };
    LineChart {
        title,
        x_axis: "time (ms)".to_owned(),
        y_axis: "% of the GPU".to_owned(),
        x_end: Some(end),
        y_end: Some(100.0),
        series: Series::from_labels(["kernels", "weighted mean", "maximum"]),
        curves: vec![
            bars,
            horizontal_line(1, timeline.mean().get()),
            horizontal_line(2, timeline.max().get()),
        ],
        ..LineChart::default()
    }
}

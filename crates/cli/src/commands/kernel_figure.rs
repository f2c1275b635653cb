//! Occupancy and SM utilisation of a batch over time: the thesis' Figures 5.3 and 5.4, beside each other.

use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_kernels::{KernelProfile, Timeline};

/// A row of two charts per batch, each with its name.
pub(super) fn figure(title: String, batches: &[(String, KernelProfile)]) -> Figure {
    let charts = batches.iter().flat_map(|(name, profile)| {
        let named = |what: &str| {
            let comma = if name.is_empty() { "" } else { ", " };
            format!("{what}{comma}{name}")
        };
        [
            chart(
                named("Achieved occupancy (estimate)"),
                &profile.achieved_occupancy,
            ),
            chart(named("SM utilisation"), &profile.sm_utilization),
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
    let across = |series, value: f64| Curve {
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
        series: Series::of(["kernels", "weighted mean", "maximum"]),
        curves: vec![
            bars,
            across(1, timeline.mean().get()),
            across(2, timeline.max().get()),
        ],
        ..LineChart::default()
    }
}

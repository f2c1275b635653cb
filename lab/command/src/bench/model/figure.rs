//! The figure of a load: latency by percentile, requests over time, and the stages of the latency.
//!
//! The stages are drawn like figure 6.6a of the thesis, but for the slowest requests instead of the 95th percentile of each stage:
//! means add up, percentiles do not.

use packhorse_figures::{
    Bar, BarChart, BarGroup, Colour, Curve, Figure, LineChart, Panel, ReferenceLine, Series, Stroke,
};

use super::{
    capacity::CapacityStep,
    recorder::{Ends, Recorder},
    report::{Report, SLOWEST},
};

/// The largest percentile that is drawn, as its number of nines.
const MAX_NINES: f64 = 4.0;

/// Returns the figure of a load.
pub(super) fn of_load(report: &Report, recorder: &Recorder) -> Figure {
    let mut panels = vec![
        Panel::Lines(percentiles(report, recorder)),
        Panel::Lines(timeline(recorder)),
    ];
    if !report.stages.is_empty() {
        panels.push(Panel::Bars(stages(report)));
    }
    Figure {
        title: format!("{} at {}", report.load.model, report.load.url),
        notes: Vec::new(),
        columns: 2,
        panels,
    }
}

/// Returns the figure of a search for the capacity.
pub(super) fn of_search(
    model: &str,
    slo_ms: f64,
    capacity: Option<f64>,
    steps: &[CapacityStep],
) -> Figure {
    let mut steps: Vec<&CapacityStep> = steps.iter().collect();
    steps.sort_by(|a, b| a.rate_rps.total_cmp(&b.rate_rps));
    let line = |value: fn(&CapacityStep) -> Option<f64>| Curve {
        series: 0,
        stroke: Stroke::LineAndDots,
        points: steps
            .iter()
            .filter_map(|step| Some((step.rate_rps, value(step)?)))
            .collect(),
    };
    let reference_lines: Vec<ReferenceLine> = capacity
        .map(|x| ReferenceLine {
            x,
            label: "capacity".to_owned(),
        })
        .into_iter()
        .collect();
    let chart = |title: &str, y_axis: String, y_end: f64, curve: Curve| {
        Panel::Lines(LineChart {
            title: title.to_owned(),
            x_axis: "offered, requests/s".to_owned(),
            y_axis,
            y_end: Some(y_end),
            series: Series::from_labels([title]),
            curves: vec![curve],
            reference_lines: reference_lines.clone(),
            ..LineChart::default()
        })
    };
    let within = chart(
        "within the SLO",
        "requests, %".to_owned(),
        100.0,
        line(|step| Some(step.within_slo? * 100.0)),
    );
    let p99 = chart(
        "99th percentile",
        format!("latency, ms (SLO {slo_ms} ms)"),
        2.0 * slo_ms,
        line(|step| step.p99_ms),
    );
    Figure {
        title: format!("Capacity of {model}"),
        notes: Vec::new(),
        columns: 2,
        panels: vec![within, p99],
    }
}

/// Returns the latency over the nines of its percentile, so that the tail has as much room as the rest.
fn percentiles(report: &Report, recorder: &Recorder) -> LineChart {
    let points = (0..=80).filter_map(|step| {
        let nines = MAX_NINES * f64::from(step) / 80.0;
        let latency = recorder.latency.quantile_ms(1.0 - 10_f64.powf(-nines))?;
        Some((nines, latency))
    });
    let mut chart = LineChart {
        title: "Latency".to_owned(),
        x_axis: "percentile, in nines (1 is p90, 2 is p99, 3 is p99.9)".to_owned(),
        y_axis: "latency, ms".to_owned(),
        x_end: Some(MAX_NINES),
        series: Series::from_labels(["latency"]),
        curves: vec![Curve {
            series: 0,
            stroke: Stroke::Line,
            points: points.collect(),
        }],
        ..LineChart::default()
    };
    if let Some(slo) = report.load.slo_ms {
        chart.series.push(Series {
            label: "SLO".to_owned(),
            colour: Colour(5),
        });
        chart.curves.push(Curve {
            series: 1,
            stroke: Stroke::Line,
            points: vec![(0.0, slo), (MAX_NINES, slo)],
        });
    }
    chart
}

fn timeline(recorder: &Recorder) -> LineChart {
    let names = [
        "answered",
        "within the SLO",
        "refused or expired",
        "failed or lost",
    ];
    let counts: [fn(&Ends) -> u64; 4] = [
        |ends| ends.answered,
        |ends| ends.within_slo,
        |ends| ends.refused + ends.expired,
        |ends| ends.failed + ends.lost,
    ];
    let curve = |(series, count): (usize, &fn(&Ends) -> u64)| Curve {
        series,
        stroke: Stroke::Line,
        points: recorder
            .seconds
            .iter()
            .enumerate()
            .map(|(second, ends)| (second as f64, count(ends) as f64))
            .collect(),
    };
    LineChart {
        title: "Requests over time".to_owned(),
        x_axis: "time, s".to_owned(),
        y_axis: "requests/s".to_owned(),
        series: Series::from_labels(names),
        curves: counts.iter().enumerate().map(curve).collect(),
        ..LineChart::default()
    }
}

fn stages(report: &Report) -> BarChart {
    let bar = |label: &str, values: Vec<f64>| Bar {
        label: label.to_owned(),
        values,
    };
    let means = |value: fn(&super::report::StageReport) -> f64| {
        report.stages.iter().map(value).collect::<Vec<f64>>()
    };
    let [all, five, one] = SLOWEST.map(|(name, _)| name);
    BarChart {
        title: "Mean duration of the stages".to_owned(),
        value_axis: "ms".to_owned(),
        series: Series::from_labels(report.stages.iter().map(|stage| stage.stage)),
        groups: vec![BarGroup {
            label: String::new(),
            bars: vec![
                bar(all, means(|stage| stage.mean_ms)),
                bar(five, means(|stage| stage.slowest_5pct_mean_ms)),
                bar(one, means(|stage| stage.slowest_1pct_mean_ms)),
            ],
        }],
        top: None,
    }
}

//! The learning curve, as a table and as a figure.

use std::fmt::Write as _;

use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};

use crate::{evaluation::Score, training::Training};

/// Returns the points as CSV, and a row for each of the other policies.
pub(crate) fn csv(training: &Training, others: &[(&str, Score)]) -> String {
    let mut text =
        "policy,update,mean_reward,temperature,in_time_pct,late_models_pct,simulated_in_time_pct\n"
            .to_owned();
    let percents = |score: &Score| {
        format!(
            "{:.2},{:.2},{:.2}",
            100.0 * score.in_time,
            100.0 * score.late,
            100.0 * score.simulated
        )
    };
    for point in training.points() {
        writeln!(
            text,
            "inss,{},{:.4},{:.5},{}",
            point.update,
            point.reward,
            point.temperature,
            percents(&point.score)
        )
        .expect("writing to a string cannot fail");
    }
    for (name, score) in others {
        writeln!(text, "{name},,,,{}", percents(score)).expect("writing to a string cannot fail");
    }
    text
}

/// Returns the figure: what is in time on held-out problems, with the other policies as lines, and the reward and its two parts.
pub(crate) fn figure(training: &Training, others: &[(&str, Score)]) -> Figure {
    let points = training.points();
    let last = points.last().map_or(1.0, |point| f64::from(point.update));
    let labels = ["inss, by the estimate", "inss, simulated"].into_iter();
    let mut curves = vec![
        line(
            0,
            points
                .iter()
                .map(|point| (f64::from(point.update), 100.0 * point.score.in_time)),
        ),
        line(
            1,
            points
                .iter()
                .map(|point| (f64::from(point.update), 100.0 * point.score.simulated)),
        ),
    ];
    for (index, (_, score)) in others.iter().enumerate() {
        let level = 100.0 * score.in_time;
        curves.push(line(2 + index, [(0.0, level), (last, level)].into_iter()));
    }
    let in_time = LineChart {
        title: "Requests in time on 48 problems that are not in the training".to_owned(),
        x_axis: "updates".to_owned(),
        y_axis: "% in time".to_owned(),
        y_end: Some(100.0),
        series: Series::from_labels(labels.chain(others.iter().map(|(name, _)| *name))),
        curves,
        ..LineChart::default()
    };
    let cost = |point: &crate::training::Point| (f64::from(point.update), -point.reward);
    let reward = LineChart {
        title: "Mean reward of a step in training".to_owned(),
        x_axis: "updates".to_owned(),
        y_axis: "negative reward".to_owned(),
        series: Series::from_labels(["inss"]),
        curves: vec![line(0, points.iter().skip(1).map(cost))],
        ..LineChart::default()
    };
    Figure {
        title: "Training of inss by SAC-D".to_owned(),
        notes: vec!["cargo xtask train inss".to_owned()],
        columns: 1,
        panels: vec![Panel::Lines(in_time), Panel::Lines(reward)],
    }
}

fn line(series: usize, points: impl Iterator<Item = (f64, f64)>) -> Curve {
    Curve {
        series,
        stroke: Stroke::Line,
        points: points.collect(),
    }
}

//! Charts and figures of simulation reports.

use packhorse_simulator::{ModelReport, PlanReport, Report, Scenario, StagesReport};

use crate::{
    Bar, BarChart, BarGroup, Colour, Curve, Figure, LineChart, Panel, ReferenceLine, Series, Stroke,
};

/// The largest number of models that a comparison shows separately.
const MAX_MODELS: usize = 12;

/// The runs of one plan with one discipline, which differ only in the seed.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    /// The name of the runs in a figure.
    pub label: String,
    /// The reports of the runs, at least one, of the same scenario.
    pub reports: Vec<&'a Report>,
}

impl Runs<'_> {
    /// Returns the mean over the seeds of a value of each model, in the scenario's order.
    fn mean(&self, value: impl Fn(&ModelReport) -> f64) -> Vec<f64> {
        let models = self.reports.first().map_or(0, |report| report.models.len());
        let mean = |i: usize| {
            let values = self.reports.iter().map(|report| value(&report.models[i]));
            values.sum::<f64>() / self.reports.len() as f64
        };
        (0..models).map(mean).collect()
    }

    /// Returns a bar of the goodput of each model.
    pub fn goodput(&self) -> Bar {
        Bar {
            label: self.label.clone(),
            values: self.mean(|model| model.goodput_rps),
        }
    }

    /// Returns a bar of the offered rate of each model, which is the largest possible goodput.
    pub fn ideal(&self) -> Bar {
        Bar {
            label: "ideal".to_owned(),
            values: self.mean(|model| model.offered_rps),
        }
    }

    /// Returns a bar of the stages of one model.
    pub fn stages(&self, model: usize) -> Bar {
        let mean = |stage: fn(&StagesReport) -> Option<f64>| {
            let values = self.mean(|model| stage(&model.stages_ms_p95).unwrap_or_default());
            values.get(model).copied().unwrap_or_default()
        };
        Bar {
            label: self.label.clone(),
            values: vec![
                mean(|stages| stages.queue),
                mean(|stages| stages.batch),
                mean(|stages| stages.network),
                mean(|stages| stages.worker_queue),
                mean(|stages| stages.compute),
            ],
        }
    }
}

/// Returns a series for each model of a plan.
pub fn model_series(plan: &PlanReport) -> Vec<Series> {
    Series::from_labels(plan.models.iter().map(|model| model.name.as_str()))
}

/// Returns an empty chart for groups of [`Runs::stages`]. Its axis ends at twice the SLO, because queues that grow without bound would
/// hide all other bars.
pub fn stages_chart(title: impl Into<String>, slo_ms: f64) -> BarChart {
    BarChart {
        title: title.into(),
        value_axis: "95th percentile of each stage in ms".to_owned(),
        series: Series::from_labels([
            "waiting for a replica",
            "filling the batch",
            "network",
            "waiting at the worker",
            "computing",
        ]),
        top: Some(2.0 * slo_ms),
        ..BarChart::default()
    }
}

/// Returns the curve of the share of a model's offered requests that was answered within each latency. Dropped requests are never answered.
pub fn latency_curve(series: usize, model: &ModelReport) -> Curve {
    let curves = &model.curves;
    let last = curves.latency_ms.len().saturating_sub(1).max(1) as f64;
    let point =
        |(i, latency): (usize, &f64)| (*latency, 100.0 * curves.answered_share * i as f64 / last);
    Curve {
        series,
        stroke: Stroke::Line,
        points: curves.latency_ms.iter().enumerate().map(point).collect(),
    }
}

/// Returns an empty chart for [`latency_curve`]s, up to twice the SLO.
pub fn latency_chart(title: impl Into<String>, slo_ms: f64, series: Vec<Series>) -> LineChart {
    LineChart {
        title: title.into(),
        x_axis: "latency in ms".to_owned(),
        y_axis: "% of requests answered".to_owned(),
        x_end: Some(2.0 * slo_ms),
        y_end: Some(100.0),
        series,
        reference_lines: vec![slo_line(slo_ms)],
        ..LineChart::default()
    }
}

fn slo_line(slo_ms: f64) -> ReferenceLine {
    ReferenceLine {
        x: slo_ms,
        label: format!("SLO {slo_ms} ms"),
    }
}

/// Returns the sizes of a model's batches over time.
pub fn batch_sizes(series: usize, model: &ModelReport) -> Curve {
    let sizes = model.curves.batch_sizes.iter();
    Curve {
        series,
        stroke: Stroke::Dots,
        points: sizes
            .map(|&(at, requests)| (at, f64::from(requests)))
            .collect(),
    }
}

/// Returns an empty chart for [`batch_sizes`].
pub fn batch_sizes_chart(title: impl Into<String>, series: Vec<Series>) -> LineChart {
    LineChart {
        title: title.into(),
        x_axis: "time in s".to_owned(),
        y_axis: "requests in a batch".to_owned(),
        series,
        ..LineChart::default()
    }
}

fn slo_ms(scenario: &Scenario, model: usize) -> f64 {
    scenario.problem.models[model].slo.as_secs_f64() * 1e3
}

/// Returns a figure of runs of a scenario: goodput with the ideal, the time of the stages, and the latencies of each model; for a single
/// run the latencies in one chart, and batch sizes over time. Policies are bars, disciplines are groups, and seeds are averaged.
pub fn figure(scenario: &Scenario, reports: &[Report]) -> Figure {
    match reports {
        [report] => single_run(scenario, report),
        reports => comparison(scenario, reports),
    }
}

fn single_run(scenario: &Scenario, report: &Report) -> Figure {
    let mut figure = comparison(scenario, std::slice::from_ref(report));
    figure.title = format!(
        "{}, planned by {}, dispatched by {}",
        report.scenario, report.plan.policy, report.discipline
    );
    let shown = report.models.len().min(MAX_MODELS);
    let all: Vec<Series> = model_series(&report.plan).into_iter().take(shown).collect();
    let longest = (0..shown)
        .map(|model| slo_ms(scenario, model))
        .fold(0.0, f64::max);
    let mut latencies = latency_chart("Latency", longest, all.clone());
    let mut batches = batch_sizes_chart("Batch sizes over time", all);
    latencies.reference_lines = (0..shown)
        .map(|model| slo_line(slo_ms(scenario, model)))
        .collect();
    latencies
        .reference_lines
        .sort_by(|a, b| a.x.total_cmp(&b.x));
    latencies.reference_lines.dedup();
    for (i, model) in report.models.iter().take(shown).enumerate() {
        latencies.curves.push(latency_curve(i, model));
        batches.curves.push(batch_sizes(i, model));
    }
    // These two charts replace those of each model's latencies.
    figure
        .panels
        .retain(|panel| matches!(panel, Panel::Bars(_)));
    figure
        .panels
        .extend([Panel::Lines(latencies), Panel::Lines(batches)]);
    figure
}

/// The runs of one discipline.
struct Group<'a> {
    label: String,
    runs: Vec<Runs<'a>>,
}

/// Groups the reports by discipline, then by policy, both in the order of the reports.
fn group_reports(reports: &[Report]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for report in reports {
        let (label, policy) = (report.discipline.to_string(), &report.plan.policy);
        let i = groups
            .iter()
            .position(|group| group.label == label)
            .unwrap_or_else(|| {
                groups.push(Group {
                    label,
                    runs: Vec::new(),
                });
                groups.len() - 1
            });
        let runs = &mut groups[i].runs;
        match runs.iter_mut().find(|runs| runs.label == *policy) {
            Some(runs) => runs.reports.push(report),
            None => runs.push(Runs {
                label: policy.clone(),
                reports: vec![report],
            }),
        }
    }
    groups
}

fn comparison(scenario: &Scenario, reports: &[Report]) -> Figure {
    let groups = group_reports(reports);
    let all: Vec<&Runs<'_>> = groups.iter().flat_map(|group| &group.runs).collect();
    let seeds: Vec<String> = all.first().map_or_else(Vec::new, |runs| {
        runs.reports
            .iter()
            .map(|report| report.seed.to_string())
            .collect()
    });
    let series = reports
        .first()
        .map_or_else(Vec::new, |report| model_series(&report.plan));
    let shown = series.len().min(MAX_MODELS);
    let mut notes = vec![match seeds.as_slice() {
        [seed] => format!("seed {seed}"),
        [first, ..] => format!(
            "means over the seeds {}; latencies of seed {first}",
            seeds.join(", ")
        ),
        [] => String::new(),
    }];
    if shown < series.len() {
        notes.push(format!("stages and latencies of the first {shown} models"));
    }
    let mut panels = vec![
        Panel::Bars(goodput_chart(series.clone(), &groups)),
        Panel::Bars(stages_by_model(scenario, &series[..shown], &groups)),
    ];
    let names: Vec<String> = groups
        .iter()
        .flat_map(|group| {
            group
                .runs
                .iter()
                .map(move |runs| format!("{}, {}", runs.label, group.label))
        })
        .collect();
    let curves = Series::from_labels(names.iter().map(String::as_str));
    for (model, Series { label, .. }) in series.iter().take(shown).enumerate() {
        let mut chart = latency_chart(
            format!("Latency of {label}"),
            slo_ms(scenario, model),
            curves.clone(),
        );
        for (i, runs) in all.iter().enumerate() {
            chart
                .curves
                .push(latency_curve(i, &runs.reports[0].models[model]));
        }
        panels.push(Panel::Lines(chart));
    }
    Figure {
        title: scenario.name.clone(),
        notes,
        columns: 2,
        panels,
    }
}

fn goodput_chart(series: Vec<Series>, groups: &[Group<'_>]) -> BarChart {
    let mut chart = BarChart {
        title: "Goodput".to_owned(),
        value_axis: "requests/s within the SLO".to_owned(),
        series,
        ..BarChart::default()
    };
    for group in groups {
        let mut bars: Vec<Bar> = group.runs.iter().map(Runs::goodput).collect();
        bars.extend(group.runs.first().map(Runs::ideal));
        chart.groups.push(BarGroup {
            label: group.label.clone(),
            bars,
        });
    }
    if chart.series.len() > MAX_MODELS {
        sum_last_models(&mut chart);
    }
    chart
}

/// Replaces the last models of a chart by their sum.
fn sum_last_models(chart: &mut BarChart) {
    let kept = MAX_MODELS - 1;
    chart.series.truncate(kept);
    chart.series.push(Series {
        label: "all others".to_owned(),
        colour: Colour(kept),
    });
    for bar in chart.groups.iter_mut().flat_map(|group| &mut group.bars) {
        let rest = bar.values.drain(kept..).sum();
        bar.values.push(rest);
    }
}

/// Returns a chart of the stages, a group per model.
fn stages_by_model(scenario: &Scenario, models: &[Series], groups: &[Group<'_>]) -> BarChart {
    let longest = (0..models.len())
        .map(|model| slo_ms(scenario, model))
        .fold(0.0, f64::max);
    let mut chart = stages_chart("Where the time goes", longest);
    let with_group = groups.len() > 1;
    for (model, Series { label, .. }) in models.iter().enumerate() {
        let bars = groups.iter().flat_map(|group| {
            group.runs.iter().map(move |runs| {
                let mut bar = runs.stages(model);
                if with_group {
                    bar.label = format!("{}, {}", bar.label, group.label);
                }
                bar
            })
        });
        chart.groups.push(BarGroup {
            label: label.clone(),
            bars: bars.collect(),
        });
    }
    chart
}

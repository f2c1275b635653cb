//! Reports as CSV, for spreadsheets and plotting scripts.

use crate::{ModelReport, Report};

/// The columns, in their order: what a row is about, then what was counted. New ones will only ever be added behind the last.
const HEADER: [&str; 19] = [
    "scenario",
    "policy",
    "discipline",
    "seed",
    "model",
    "offered_rps",
    "throughput_rps",
    "goodput_rps",
    "dropped",
    "lost",
    "latency_p50_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "queue_p95_ms",
    "batch_p95_ms",
    "network_p95_ms",
    "worker_queue_p95_ms",
    "compute_p95_ms",
    "mean_batch",
];

/// Where the sums over the models stand; no model can have this name.
const TOTAL: &str = "(total)";

/// One row per report and model in the reports' order, each report's rows followed by one of its totals, whose model is
/// `(total)`. The columns are those of the JSON, under one header: `scenario`, `policy`, `discipline`, `seed`, `model`,
/// `offered_rps`, `throughput_rps`, `goodput_rps`, `dropped`, `lost`, `latency_p50_ms`, `latency_p95_ms`, `latency_p99_ms`,
/// `queue_p95_ms`, `batch_p95_ms`, `network_p95_ms`, `worker_queue_p95_ms`, `compute_p95_ms`, `mean_batch`. What has no value is
/// empty; numbers have all their digits.
pub fn csv<'a>(reports: impl IntoIterator<Item = &'a Report>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |row: &[String]| writer.write_record(row).expect("memory takes every row");
    write(&HEADER.map(str::to_owned));
    for report in reports {
        let run = [
            report.scenario.clone(),
            report.plan.policy.clone(),
            report.discipline.to_string(),
            report.seed.to_string(),
        ];
        let row = |cells: Vec<String>| {
            let mut row = [run.as_slice(), &cells].concat();
            row.resize(HEADER.len(), String::new());
            row
        };
        for model in &report.models {
            write(&row(cells(model)));
        }
        let totals = report.totals;
        write(&row(vec![
            TOTAL.to_owned(),
            totals.offered_rps.to_string(),
            totals.throughput_rps.to_string(),
            totals.goodput_rps.to_string(),
            totals.dropped.to_string(),
            totals.lost.to_string(),
        ]));
    }
    let bytes = writer.into_inner().expect("memory takes every row");
    String::from_utf8(bytes).expect("made of strings")
}

fn cells(model: &ModelReport) -> Vec<String> {
    let (latency, stages) = (model.latency_ms, model.stages_ms_p95);
    let mut cells = vec![
        model.name.clone(),
        model.offered_rps.to_string(),
        model.throughput_rps.to_string(),
        model.goodput_rps.to_string(),
        model.dropped.to_string(),
        model.lost.to_string(),
    ];
    let maybe = [
        latency.p50,
        latency.p95,
        latency.p99,
        stages.queue,
        stages.batch,
        stages.network,
        stages.worker_queue,
        stages.compute,
        model.mean_batch,
    ];
    cells.extend(maybe.map(|value| value.map_or(String::new(), |value| value.to_string())));
    cells
}

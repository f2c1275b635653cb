//! Reports as CSV, for spreadsheets and plotting scripts.

use crate::{ModelReport, Report};

/// The columns in their order: the keys of a row, then its values. New columns are only ever appended.
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

/// The model of the row with the totals; no model can have this name.
const TOTAL: &str = "(total)";

/// Returns one row per report and model in the reports' order. After the rows of each report comes one of its totals, whose model is
/// `(total)`. The columns are those of the JSON, under one header: `scenario`, `policy`, `discipline`, `seed`, `model`,
/// `offered_rps`, `throughput_rps`, `goodput_rps`, `dropped`, `lost`, `latency_p50_ms`, `latency_p95_ms`, `latency_p99_ms`,
/// `queue_p95_ms`, `batch_p95_ms`, `network_p95_ms`, `worker_queue_p95_ms`, `compute_p95_ms`, `mean_batch`. A cell without a value
/// is empty; numbers have all their digits.
pub fn reports_to_csv<'a>(reports: impl IntoIterator<Item = &'a Report>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |row: &[String]| {
        writer
            .write_record(row)
            .expect("writing to memory cannot fail");
    };
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
    let bytes = writer.into_inner().expect("writing to memory cannot fail");
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
    let optional = [
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
    cells.extend(optional.map(|value| value.map_or(String::new(), |value| value.to_string())));
    cells
}

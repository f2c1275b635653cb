//! The table of models in the text reports of `packhorse-lab simulate` and `packhorse-lab bench`.

use packhorse_simulator::{ModelReport, Totals};
use packhorse_terminal::output::{self, format_number, format_number_or_dash};

/// The headers of rates, each with the time that the rate refers to. Offered load and goodput count the requests that arrive in the
/// scenario's window, per second of the window. Throughput counts the answers to these requests, per second until the last answer,
/// so that it can be below the goodput.
pub(super) const RATE_HEADERS: [&str; 3] = [
    "OFFERED/S\nIN WINDOW",
    "THROUGHPUT/S\nTO LAST ANSWER",
    "GOODPUT/S\nIN WINDOW",
];

const HEADER: [&str; 14] = [
    "MODEL",
    RATE_HEADERS[0],
    RATE_HEADERS[1],
    RATE_HEADERS[2],
    "DROPPED",
    "P50 MS",
    "P95",
    "P99",
    "QUEUE P95",
    "BATCH P95",
    "NETWORK P95",
    "WORKER P95",
    "COMPUTE P95",
    "MEAN BATCH",
];

/// Prints a line for each model and one for their sums.
pub(super) fn print_models(models: &[ModelReport], totals: Totals) -> std::io::Result<()> {
    let mut table = output::new_table(&HEADER);
    for model in models {
        table.add_row(model_row(model));
    }
    let mut row = vec!["total".to_owned()];
    row.extend(
        [
            totals.offered_rps,
            totals.throughput_rps,
            totals.goodput_rps,
        ]
        .map(format_number),
    );
    row.push(totals.dropped.to_string());
    row.resize(HEADER.len(), String::new());
    table.add_row(row);
    output::print_line(output::table_text(&table))?;
    if let Some(pools) = totals.pools {
        output::print_line(format!(
            "weights: {} copied to devices, {} made room for others; {} requests came when no device had their model's",
            pools.loads, pools.evictions, pools.cold_requests
        ))?;
    }
    Ok(())
}

fn model_row(model: &ModelReport) -> Vec<String> {
    let (latency, stages) = (model.latency_ms, model.stages_ms_p95);
    let mut row = vec![model.name.clone()];
    row.extend([model.offered_rps, model.throughput_rps, model.goodput_rps].map(format_number));
    row.push(model.dropped.to_string());
    row.extend([latency.p50, latency.p95, latency.p99].map(format_number_or_dash));
    row.extend(
        [
            stages.queue,
            stages.batch,
            stages.network,
            stages.worker_queue,
            stages.compute,
        ]
        .map(format_number_or_dash),
    );
    row.push(format_number_or_dash(model.mean_batch));
    row
}

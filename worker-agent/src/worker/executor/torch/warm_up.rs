//! The runs of a GPU before the executor serves: each batch size runs once, and is recorded if graphs are requested.

use std::time::Duration;

use packhorse_cluster::Program;

use super::{
    batch::Prepared,
    error::TorchError,
    executor::TorchExecutor,
    graphs::{Graphs, InputShapes},
    shim::Graph,
};
use crate::{
    clock::now,
    executor::synthetic::{self, Fill},
};

/// The time limit for the runs of the batch sizes between 1, 2, 4, …
const INTERMEDIATE_SIZES_LIMIT: Duration = Duration::from_secs(10);

/// Runs synthetic batches of the sizes between those in `sizes`, the largest first, until the time limit: with the first batch of a
/// size the GPU's libraries choose among their kernels, which takes longer than the batch. Returns all sizes that have run, in
/// ascending order.
pub(super) fn run_intermediate_sizes(
    executor: &TorchExecutor,
    program: &Program,
    sizes: &[u32],
    fill: Fill,
) -> Vec<u32> {
    let start = now();
    let mut all = sizes.to_vec();
    let largest = sizes.last().copied().unwrap_or(0);
    // Large batches come first, because they are sent under load.
    for rows in (1..largest).rev().filter(|rows| !sizes.contains(rows)) {
        if now() - start >= INTERMEDIATE_SIZES_LIMIT {
            tracing::info!(
                batch.size = rows,
                "no time to warm up this and smaller sizes"
            );
            break;
        }
        if let Err(error) = synthetic::run_batch(executor, program, rows, fill) {
            tracing::warn!(batch.size = rows, %error, "an intermediate batch size does not run");
            break;
        }
        all.push(rows);
    }
    all.sort_unstable();
    all
}

/// Records the program at these batch sizes, the largest first, whose memory the others share. If a size cannot be recorded, the sizes
/// below it are not tried. If no size can be recorded, the reason is kept.
pub(super) fn record_graphs(
    executor: &TorchExecutor,
    program: &Program,
    sizes: &[u32],
    fill: Fill,
) {
    let mut graphs = Graphs::default();
    let mut failure = None;
    for rows in sizes.iter().rev() {
        match record_graph(executor, program, *rows, fill, graphs.any()) {
            Ok((shapes, graph)) => graphs.insert_smaller(*rows, shapes, graph),
            Err(reason) => {
                tracing::warn!(batch.size = rows, reason, "a CUDA graph cannot be recorded");
                failure = Some(reason);
                break;
            }
        }
    }
    tracing::info!(batch_sizes = ?graphs.batch_sizes(), "CUDA graphs recorded");
    let outcome = match failure {
        Some(reason) if graphs.batch_sizes().is_empty() => Err(reason),
        _ => Ok(graphs),
    };
    let first = executor.device.graphs.set(outcome).is_ok();
    assert!(first, "graphs are recorded once");
}

fn record_graph(
    executor: &TorchExecutor,
    program: &Program,
    rows: u32,
    fill: Fill,
    pool_owner: Option<&Graph>,
) -> Result<(InputShapes, Graph), String> {
    let summary = |error: TorchError| error.summary();
    let inputs = synthetic::input_headers(program, rows).map_err(|e| e.to_string())?;
    let mut batch = Prepared::new(&executor.device, &inputs).map_err(summary)?;
    synthetic::fill_inputs(&mut batch, program, fill);
    batch.record(pool_owner).map_err(summary)
}

//! The runs of a GPU before the executor serves: each batch size runs once, and is recorded as a CUDA graph.

use std::{iter, time::Duration};

use packhorse_cluster::Program;

use super::{
    batch::Prepared, error::TorchError, executor::TorchExecutor, graphs::InputShapes, shim::Graph,
};
use crate::{
    clock::now,
    executor::{
        stages::Executor as _,
        synthetic::{self, Fill},
    },
};

/// The time limit for the runs of the batch sizes between 1, 2, 4, …
const INTERMEDIATE_SIZES_LIMIT: Duration = Duration::from_secs(10);
/// The time limit for recording. A batch whose size is not recorded runs kernel by kernel.
const RECORDING_LIMIT: Duration = Duration::from_secs(10);

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

/// Records the runs of these batch sizes, which have all run, until the first that cannot be recorded or the time limit. The largest comes
/// first, because the others share its memory, then the smallest, which gain most.
pub(super) fn record(executor: &TorchExecutor, program: &Program, sizes: &[u32], fill: Fill) {
    let start = now();
    let (largest, smaller) = sizes.split_last().expect("a size has run");
    for rows in iter::once(largest).chain(smaller) {
        if now() - start >= RECORDING_LIMIT {
            tracing::info!(batch.size = rows, "no time to record this and larger sizes");
            break;
        }
        let mut graphs = executor.device.graphs_mut();
        match record_one(executor, program, *rows, fill, graphs.largest()) {
            Ok((shapes, graph)) => graphs.insert(*rows, shapes, graph),
            Err(reason) => {
                tracing::info!(batch.size = rows, reason, "a CUDA graph cannot be recorded");
                graphs.set_failure(reason);
                break;
            }
        }
    }
    // The device may have memory for a recording, but not for the copies to and from its inputs and outputs.
    if let Err(error) = synthetic::run_batch(executor, program, *largest, fill) {
        let reason = error.to_string();
        tracing::info!(reason, "the recorded CUDA graphs are not used");
        executor.forget_recordings();
        executor.device.graphs_mut().set_failure(reason);
    }
    let took_s = (now() - start).as_secs_f64();
    let recorded = executor.device.graphs().batch_sizes().map_or(0, <[_]>::len);
    tracing::info!(batch_sizes = recorded, took_s, "CUDA graphs recorded");
}

fn record_one(
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

//! The runs of a GPU before the executor serves: each batch size runs once.

use std::time::Duration;

use packhorse_cluster::Program;

use super::executor::TorchExecutor;
use crate::{
    clock::now,
    executor::{fill::Fill, synthetic},
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

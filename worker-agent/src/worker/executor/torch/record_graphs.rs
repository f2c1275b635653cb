//! The recording of runs as CUDA graphs.

use std::{iter, sync::Arc, time::Duration};

use packhorse_cluster::Program;

use super::{batch::Prepared, device::Device, error::TorchError, graphs::InputShapes, shim::Graph};
use crate::{
    clock::now,
    executor::{fill::Fill, synthetic},
};

/// The time limit for recording. A batch whose size is not recorded is padded to one that is, or runs kernel by kernel.
const LIMIT: Duration = Duration::from_secs(10);

/// Records the runs of these batch sizes, which have all run, until the first that cannot be recorded or the time limit. The largest comes
/// first, because the others share its memory, then the smallest, which gain most.
pub(super) fn record(device: &Arc<Device>, program: &Program, sizes: &[u32], fill: Fill) {
    let start = now();
    let (largest, smaller) = sizes.split_last().expect("a size has run");
    for rows in iter::once(largest).chain(smaller) {
        if now() - start >= LIMIT {
            tracing::info!(batch.size = rows, "no time to record this and larger sizes");
            break;
        }
        let mut graphs = device.graphs_mut();
        match record_one(device, program, *rows, fill, graphs.largest()) {
            Ok((shapes, graph)) => graphs.insert(*rows, shapes, graph),
            Err(reason) => {
                tracing::info!(batch.size = rows, reason, "a CUDA graph cannot be recorded");
                graphs.set_failure(reason);
                break;
            }
        }
    }
    let took_s = (now() - start).as_secs_f64();
    let recorded = device.graphs().batch_sizes().map_or(0, <[_]>::len);
    tracing::info!(batch_sizes = recorded, took_s, "CUDA graphs recorded");
}

fn record_one(
    device: &Arc<Device>,
    program: &Program,
    rows: u32,
    fill: Fill,
    pool_owner: Option<&Graph>,
) -> Result<(InputShapes, Graph), String> {
    let summary = |error: TorchError| error.summary();
    let inputs = synthetic::input_headers(program, rows).map_err(|e| e.to_string())?;
    let mut batch = Prepared::to_record(device, &inputs).map_err(summary)?;
    synthetic::fill_inputs(&mut batch, program, fill);
    batch.record(pool_owner).map_err(summary)
}

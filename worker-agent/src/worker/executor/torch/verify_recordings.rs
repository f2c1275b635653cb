//! The verification of recorded runs, and of the padding to recorded batch sizes.

use packhorse_cluster::{DroppedRewriting, Verification};
use packhorse_worker_agent::handoff::Optimize;

use super::{executor::TorchExecutor, options::StartOptions};
use crate::executor::{
    error::ExecutionError,
    fill::Fill,
    stages::Executor as _,
    verification::{Difference, InputRange, Precision, Reference},
};

/// The most rows of a batch that is compared.
const MAX_ROWS: u32 = 16;

/// Records the runs of these batch sizes, and drops what answers otherwise than the reference, or, without one, than the program without
/// recorded runs: first the padding to recorded sizes, then the recorded runs.
///
/// # Errors
/// If the device failed.
pub(super) fn record(
    executor: &TorchExecutor,
    options: &StartOptions<'_>,
    sizes: &[u32],
    fill: Fill,
    reference: Option<&Reference>,
) -> Result<Vec<DroppedRewriting>, ExecutionError> {
    let program = options.program;
    let own = match reference {
        None if executor.records() && options.optimize == Optimize::Verify => {
            Some(collect(executor, options)?)
        }
        _ => None,
    };
    executor.record(program, sizes, fill);
    let Some(reference) = reference.or(own.as_ref()) else {
        return Ok(Vec::new());
    };
    if !executor.has_recorded() {
        return Ok(Vec::new());
    }
    let mut dropped = Vec::new();
    for rewriting in ["padding to recorded batch sizes", "CUDA graphs"] {
        let Some(difference) = reference.difference(executor, program)? else {
            break;
        };
        if rewriting == "CUDA graphs" {
            // The padding is not to blame.
            dropped.clear();
            executor.refuse_recordings(difference.to_string());
        } else {
            executor.stop_padding();
        }
        dropped.push(dropped_rewriting(rewriting, &difference));
    }
    Ok(dropped)
}

/// Runs a program on random inputs, of sizes that show what padding does.
pub(super) fn collect(
    executor: &TorchExecutor,
    options: &StartOptions<'_>,
) -> Result<Reference, ExecutionError> {
    // Three rows are padded to four where runs are recorded.
    let (rows, range, precision) = match options.cuda_device {
        None => ([1, 3, 2], InputRange::Wide, Precision::Full),
        Some(_) => (
            [1, 3, options.batch_size.min(MAX_ROWS)],
            InputRange::Careful,
            Precision::Tf32,
        ),
    };
    // Larger batches are never sent, and there may be no memory for them.
    let rows = rows.map(|rows: u32| rows.min(options.batch_size));
    Reference::collect(executor, options.program, &rows, range, precision)
}

pub(super) fn dropped_rewriting(rewriting: &str, difference: &Difference) -> DroppedRewriting {
    let mut reason = difference.to_string();
    reason.truncate(reason.floor_char_boundary(Verification::MAX_TEXT));
    DroppedRewriting {
        rewriting: rewriting.to_owned(),
        reason,
    }
}

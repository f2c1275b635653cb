//! The start of programs with a shared backbone on one device.

use std::{path::Path, sync::Arc};

use packhorse_worker_agent::handoff::Optimize;

use super::{
    attempt::{Start, configure, verification},
    batch::Prepared,
    device::{Code, Streams},
    error::TorchError,
    executor::TorchExecutor,
    options::StartOptions,
    programs::Programs,
    shim::Backbone,
    verify,
};
use crate::{
    executor::{
        error::{ExecutionError, StartError},
        fill::Fill,
        started::Started,
        synthetic,
        verification::Reference,
    },
    process_memory,
};

/// The numbers of rows for which is looked whether the backbone keeps rows apart.
const PROBED_ROWS: [u32; 2] = [2, 3];

/// Loads and warms up programs with a shared backbone, and returns an executor for each.
///
/// # Errors
/// If a program cannot be loaded, frozen or run. Each may still be started alone.
pub(in crate::executor) fn start_together(
    all: &[StartOptions<'_>],
) -> Result<Vec<Started>, StartError> {
    let first = all.first().expect("a worker has a program");
    configure(first)?;
    if all.iter().any(|options| options.optimize == Optimize::Off) {
        return Err(StartError::transient("programs as they are share nothing"));
    }
    let shared_before = process_memory::shared();
    let references = all.iter().map(|options| {
        verify::reference_if_wanted(&Start {
            options,
            names: Programs::from_single(String::new()),
            shared_before,
        })
    });
    let references: Vec<Option<Reference>> = references.collect::<Result<_, _>>()?;
    let paths: Vec<&Path> = all.iter().map(|options| options.artifact).collect();
    let cuda_device = first.cuda_device;
    let failed = |error: TorchError| ExecutionError::from(error);
    let backbone = Arc::new(Backbone::load(&paths, cuda_device).map_err(failed)?);
    let streams = Streams::new(cuda_device, false).map_err(failed)?;
    let mut executors = Vec::new();
    for (program, options) in all.iter().enumerate() {
        let backbone = Arc::clone(&backbone);
        let code = Code::OfBackbone { backbone, program };
        // All programs together have batches as large as one of them alone.
        let executor =
            TorchExecutor::with_code(options, code, None, streams.clone(), 1, shared_before);
        executors.push(executor?);
    }
    let mut warm = Vec::new();
    for (executor, options) in executors.iter().zip(all) {
        // The backbone needs its memory once, whichever program runs.
        let sizes = synthetic::batch_sizes(options.batch_size);
        let sizes = if warm.is_empty() {
            &sizes[..]
        } else {
            &sizes[..1]
        };
        warm.push(synthetic::warm_up(executor, options.program, sizes)?);
    }
    for ((executor, options), reference) in executors.iter().zip(all).zip(&references) {
        let difference = reference
            .as_ref()
            .map(|r| r.difference(executor, options.program));
        if let Some(difference) = difference.transpose()?.flatten() {
            return Err(StartError::transient(format!(
                "with a shared backbone: {difference}"
            )));
        }
    }
    let (fill, batch_size) = warm[0];
    let keeps_rows = keeps_rows(&backbone, &executors[0], first, fill)?;
    tracing::info!(
        programs = all.len(),
        keeps_rows,
        "programs with a shared backbone loaded"
    );
    let executors = executors.into_iter().zip(warm).zip(&references).map(
        |((executor, (fill, _)), reference)| Started {
            executor: Arc::new(executor.joining(if keeps_rows { batch_size } else { 0 })),
            batch_size,
            fill,
            verification: verification(reference.as_ref(), Vec::new()),
            verified: None,
        },
    );
    Ok(executors.collect())
}

/// Returns true if the backbone keeps the rows of batches apart.
fn keeps_rows(
    backbone: &Backbone,
    executor: &TorchExecutor,
    options: &StartOptions<'_>,
    fill: Fill,
) -> Result<bool, ExecutionError> {
    if !options.program.batches() {
        return Ok(false);
    }
    for rows in PROBED_ROWS {
        let inputs = synthetic::input_headers(options.program, rows)?;
        let mut batch = Prepared::new(&executor.device, &inputs)?;
        synthetic::fill_inputs(&mut batch, options.program, fill);
        let batch = batch.load()?;
        let stream = &executor.device.streams.compute;
        batch.wait_in(stream)?;
        if !backbone.keeps_rows(stream, batch.inputs())? {
            return Ok(false);
        }
    }
    Ok(true)
}

//! Programs with a shared backbone on one device: their start, and batches of several programs that run together.

use std::{any::Any, collections::BTreeMap, path::Path, sync::Arc};

use tch::Tensor;

use super::{
    batch::{Interval, Loaded, Prepared},
    device::{Code, Streams},
    error::{TorchError, TorchErrorKind},
    executor::TorchExecutor,
    options::StartOptions,
    process_memory,
    shim::{Backbone, BatchOf},
    start::configure,
};
use crate::executor::{
    error::{ExecutionError, StartError},
    stages::{ComputedBatch, Executed, PreparedBatch},
    started::Started,
    synthetic,
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
    let resident_before = process_memory::resident();
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
        let executor = TorchExecutor::with_code(options, code, streams.clone(), 1, resident_before);
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
    let (fill, batch_size) = warm[0];
    let keeps_rows = keeps_rows(&backbone, &executors[0], first, fill)?;
    tracing::info!(
        programs = all.len(),
        keeps_rows,
        "programs with a shared backbone loaded"
    );
    let executors = executors
        .into_iter()
        .zip(warm)
        .map(|(executor, (fill, _))| Started {
            executor: Arc::new(executor.joining(if keeps_rows { batch_size } else { 0 })),
            batch_size,
            fill,
        });
    Ok(executors.collect())
}

/// Returns true if the backbone keeps the rows of batches apart.
fn keeps_rows(
    backbone: &Backbone,
    executor: &TorchExecutor,
    options: &StartOptions<'_>,
    fill: synthetic::Fill,
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

/// Runs batches together, and returns the outcome of each. If they fail together, each runs alone, so that a batch which is to blame spoils no
/// other.
pub(super) fn run_together(
    batches: Vec<Box<dyn PreparedBatch>>,
) -> Vec<Result<Executed, ExecutionError>> {
    let batches: Vec<Box<dyn Any>> = batches.into_iter().map(|batch| batch as _).collect();
    let loaded = batches.into_iter().map(|batch| {
        let batch = batch.downcast::<Prepared>();
        batch.expect("batches of the executor").load()
    });
    let loaded: Vec<Result<Loaded, TorchError>> = loaded.collect();
    let mut alike: BTreeMap<Vec<Vec<i64>>, Vec<usize>> = BTreeMap::new();
    for (i, batch) in loaded.iter().enumerate() {
        if let Ok(batch) = batch {
            alike.entry(row_shapes(batch.inputs())).or_default().push(i);
        }
    }
    let mut computed: BTreeMap<usize, Result<Outputs, ExecutionError>> = BTreeMap::new();
    for indices in alike.into_values() {
        let of_index = |i: &usize| loaded[*i].as_ref().expect("only these are grouped");
        let batches: Vec<&Loaded> = indices.iter().map(of_index).collect();
        computed.extend(indices.into_iter().zip(compute_or_separate(&batches)));
    }
    let finish = |(i, batch): (usize, Result<Loaded, TorchError>)| {
        let batch = batch?;
        let outputs = computed.remove(&i);
        let (outputs, compute) = outputs.expect("one for each batch that is loaded")?;
        Box::new(batch.computed(outputs, compute)).copy_out()
    };
    loaded.into_iter().enumerate().map(finish).collect()
}

/// Returns the shape of a row of each input. Only batches with equal ones run together.
fn row_shapes(inputs: &[Tensor]) -> Vec<Vec<i64>> {
    let shape = |input: &Tensor| input.size().get(1..).unwrap_or_default().to_vec();
    inputs.iter().map(shape).collect()
}

fn compute_or_separate(batches: &[&Loaded]) -> Vec<Result<Outputs, ExecutionError>> {
    match compute_together(batches) {
        Err(error) if error.kind != TorchErrorKind::DeviceFailed && batches.len() > 1 => {
            let alone = |batch: &&Loaded| Ok(compute_together(&[batch])?.remove(0));
            batches.iter().map(alone).collect()
        }
        Err(error) => {
            let error = ExecutionError::from(error);
            batches.iter().map(|_| Err(error.clone())).collect()
        }
        Ok(outputs) => outputs.into_iter().map(Ok).collect(),
    }
}

/// The outputs of a batch, and the interval of its run.
type Outputs = (Vec<Tensor>, Interval);

fn compute_together(batches: &[&Loaded]) -> Result<Vec<Outputs>, TorchError> {
    let Some(first) = batches.first() else {
        return Ok(Vec::new());
    };
    let stream = &first.device().streams.compute;
    let (backbone, _) = first.device().backbone();
    let mut parts = Vec::new();
    for batch in batches {
        batch.wait_in(stream)?;
        let (of_batch, program) = batch.device().backbone();
        assert!(Arc::ptr_eq(backbone, of_batch), "batches of one worker");
        let inputs = batch.inputs();
        parts.push(BatchOf { program, inputs });
    }
    let record = |_: &BatchOf<'_>| stream.record_event();
    let starts: Vec<_> = parts.iter().map(record).collect::<Result<_, _>>()?;
    let outputs = backbone.forward(stream, &parts)?;
    let ends: Vec<_> = parts.iter().map(record).collect::<Result<_, _>>()?;
    let intervals = starts.into_iter().zip(ends);
    let intervals = intervals.map(|(start, end)| Interval { start, end });
    Ok(outputs.into_iter().zip(intervals).collect())
}

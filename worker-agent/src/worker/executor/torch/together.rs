//! Batches of several programs with a shared backbone that run together.

use std::{any::Any, collections::BTreeMap, sync::Arc};

use tch::Tensor;

use super::{
    batch::{Interval, Loaded, Prepared},
    error::{TorchError, TorchErrorKind},
    shim::BatchOf,
};
use crate::executor::{
    error::ExecutionError,
    stages::{ComputedBatch, Executed, PreparedBatch},
};

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

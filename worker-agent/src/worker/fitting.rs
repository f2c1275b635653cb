//! The batch size that there is memory for: kept to, and found anew when there was none for a batch.
//!
//! A worker tries at its start which sizes fit, on made-up inputs. Inputs that are longer than those in a variable dimension, or a
//! neighbour that has taken memory since, can prove it wrong while it serves. Then the next smaller size is kept to at once, and tried;
//! and so on down, through the same pipeline as all batches and in the shapes of the batch that failed, until one fits.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
    mpsc,
};

use packhorse_cluster::{Program, Shape};
use packhorse_wire::{FailureKind, StageDurations, TensorHeader};

use super::{
    gate::Gate,
    now,
    pipeline::{Job, Pipeline, Sender},
};
use crate::executor::{
    Executor, OutputTensor,
    sample::{self, Fill},
};

/// What is known of the sizes that fit.
pub(super) struct Fitting {
    /// The most rows of a batch; all that can be said where nobody has seen a limit.
    rows: AtomicU32,
    shortages: mpsc::Sender<Shortage>,
}

/// A batch for which there was no memory.
pub(super) struct Shortage {
    rows: u32,
    inputs: Vec<TensorHeader>,
}

impl Fitting {
    /// With the limit that was found at the start, if one was; and with what is to be looked into by [`Search::run`].
    pub(super) fn new(limit: Option<u32>) -> (Arc<Self>, mpsc::Receiver<Shortage>) {
        let (shortages, to_look_into) = mpsc::channel();
        let rows = AtomicU32::new(limit.unwrap_or(u32::MAX));
        (Arc::new(Self { rows, shortages }), to_look_into)
    }

    /// The most rows of a batch, if there is a limit: a request of more rows than batches are planned with is computed else.
    pub(super) fn limit(&self) -> Option<u32> {
        let rows = self.rows.load(Ordering::Relaxed);
        (rows < u32::MAX).then_some(rows)
    }

    /// There was no memory for a batch of these inputs. Nothing is smaller than one row: if that does not fit, another may.
    pub(super) fn lacked(&self, rows: u32, inputs: &[TensorHeader]) {
        let Some(smaller) = smaller(rows).next() else {
            return;
        };
        self.rows.fetch_min(smaller, Ordering::Relaxed);
        // Nobody looks into it any more where the process is about to end.
        let _ = self.shortages.send(Shortage {
            rows,
            inputs: inputs.to_vec(),
        });
    }
}

/// The sizes below one, the largest first.
fn smaller(rows: u32) -> impl Iterator<Item = u32> {
    let sizes = sample::batch_sizes(rows).into_iter().rev();
    sizes.filter(move |size| *size < rows)
}

/// Finds what fits.
pub(super) struct Search {
    pub(super) executor: Arc<dyn Executor>,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) program: Program,
    pub(super) fill: Fill,
    pub(super) fitting: Arc<Fitting>,
    /// A process that drains waits for what is tried: a client of MPS must not end with work on the GPU.
    pub(super) batches: Arc<Gate>,
}

impl Search {
    /// Looks into shortages as long as batches are computed, and tells every limit that is found.
    pub(super) fn run(&self, shortages: mpsc::Receiver<Shortage>, found: impl Fn(u32)) {
        let mut least = u32::MAX;
        for shortage in shortages {
            // Of several in flight the first tells all.
            if shortage.rows >= least {
                continue;
            }
            least = shortage.rows;
            let _pass = self.batches.enter();
            let Some(rows) = self.largest_below(&shortage) else {
                return;
            };
            self.fitting.rows.fetch_min(rows, Ordering::Relaxed);
            tracing::warn!(
                batch.size = shortage.rows,
                batch.fitting = rows,
                "no memory for a batch: smaller ones are asked for"
            );
            found(rows);
        }
    }

    /// `None` if nothing is computed any more.
    fn largest_below(&self, shortage: &Shortage) -> Option<u32> {
        for rows in smaller(shortage.rows) {
            if self.fits(rows, &shortage.inputs)? {
                return Some(rows);
            }
        }
        Some(1)
    }

    fn fits(&self, rows: u32, inputs: &[TensorHeader]) -> Option<bool> {
        let inputs: Option<Vec<_>> = inputs.iter().map(|input| with_rows(input, rows)).collect();
        let Some(Ok(mut batch)) = inputs.map(|inputs| self.executor.prepare(&inputs)) else {
            return Some(false);
        };
        sample::fill_inputs(&mut *batch, &self.program, self.fill);
        let (outcome, ended) = mpsc::channel();
        self.pipeline.push(Job {
            batch,
            rows,
            receive: std::time::Duration::ZERO,
            received_at: now(),
            sender: Box::new(Trial(outcome)),
        });
        match ended.recv() {
            Ok(Err(FailureKind::OutOfMemory)) => Some(false),
            Ok(Err(FailureKind::TimedOut)) | Err(_) => None,
            // What a program says of made-up inputs is no matter of memory.
            Ok(_) => Some(true),
        }
    }
}

/// The input of a batch with another number of rows.
fn with_rows(input: &TensorHeader, rows: u32) -> Option<TensorHeader> {
    let mut dims: Vec<i64> = input
        .shape()
        .dims()
        .iter()
        .map(|d| d.cast_signed())
        .collect();
    *dims.first_mut()? = rows.into();
    TensorHeader::new(input.datatype(), Shape::new(&dims).ok()?).ok()
}

/// Waits for a batch only to know that it was computed.
struct Trial(mpsc::Sender<Result<(), FailureKind>>);

impl Sender for Trial {
    fn is_there(&self) -> bool {
        true
    }

    fn result(self: Box<Self>, _outputs: Vec<OutputTensor>, _stages: StageDurations) {
        let _ = self.0.send(Ok(()));
    }

    fn failure(self: Box<Self>, kind: FailureKind, _message: &str) {
        let _ = self.0.send(Err(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_below_is_kept_to_at_once_and_never_grows() {
        let (fitting, shortages) = Fitting::new(None);
        assert_eq!(fitting.limit(), None);
        for (rows, limit) in [(12, 8), (16, 8), (8, 4), (3, 2), (1, 2)] {
            fitting.lacked(rows, &[]);
            assert_eq!(fitting.limit(), Some(limit), "after {rows}");
        }
        // One row has no size below.
        let looked_into: Vec<u32> = shortages.try_iter().map(|of| of.rows).collect();
        assert_eq!(looked_into, [12, 16, 8, 3]);
        assert_eq!(Fitting::new(Some(2)).0.limit(), Some(2));
    }

    #[test]
    fn sizes_below_are_those_that_are_warmed_up() {
        assert_eq!(smaller(8).collect::<Vec<_>>(), [4, 2, 1]);
        assert_eq!(smaller(6).collect::<Vec<_>>(), [4, 2, 1]);
        assert_eq!(smaller(1).next(), None);
    }
}

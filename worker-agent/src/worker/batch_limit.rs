//! The batch size that fits into memory, which a worker may find again while it serves.
//!
//! At its start a worker finds the sizes that fit with synthetic inputs. While it serves, a neighbour that has allocated memory since
//! can make such a batch fail. The worker then limits batches to the next smaller size at once, and tries that size and those below it
//! in the shapes of the failed batch, in the same pipeline as all batches, until one fits.
//!
//! Rows that are longer than the synthetic ones, in a variable dimension, say nothing of those: the limit stays, and it is the gateway that
//! sends smaller batches of long rows for a while.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use packhorse_cluster::{Program, Shape};
use packhorse_wire::{StageDurations, TensorHeader};

use crate::{
    clock::now,
    executor::{ExecutionError, Executor, Fill, OutputTensor, synthetic},
    pipeline::{BatchReply, Pipeline, ReceivedBatch},
    semaphore::Semaphore,
};

/// The most rows of a batch that fit into memory.
pub(crate) struct BatchLimit {
    /// The limit; `u32::MAX` if there is none.
    rows: AtomicU32,
    /// The bytes of a row of the synthetic inputs. Batches of longer rows do not change the limit.
    bytes_per_row: u64,
    shortages: mpsc::Sender<MemoryShortage>,
    /// The start of the search, which takes a thread, and which most workers never need.
    start: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// A batch for which there was not enough memory.
pub(crate) struct MemoryShortage {
    rows: u32,
    inputs: Vec<TensorHeader>,
}

impl BatchLimit {
    /// Creates a limit with the value that was found at the start, if there is one, with rows of this many bytes. The receiver is for
    /// [`BatchLimitSearch::run`].
    pub(crate) fn new(
        limit: Option<u32>,
        bytes_per_row: u64,
    ) -> (Arc<Self>, mpsc::Receiver<MemoryShortage>) {
        let (shortages, receiver) = mpsc::channel();
        let limit = Self {
            rows: AtomicU32::new(limit.unwrap_or(u32::MAX)),
            bytes_per_row,
            shortages,
            start: Mutex::default(),
        };
        (Arc::new(limit), receiver)
    }

    /// Returns the limit; `None` if all sizes fit, also those above the planned batch size, which a single large request may have.
    pub(crate) fn rows(&self) -> Option<u32> {
        let rows = self.rows.load(Ordering::Relaxed);
        (rows < u32::MAX).then_some(rows)
    }

    /// Lowers the limit after a batch for which there was not enough memory. A batch of one row changes nothing: no size is smaller, and
    /// another batch of one row may fit. Nor does one of long rows.
    pub(crate) fn report_shortage(&self, rows: u32, inputs: &[TensorHeader]) {
        if input_bytes(inputs) > self.bytes_per_row.saturating_mul(rows.into()) {
            return;
        }
        let Some(smaller) = sizes_below(rows).next() else {
            return;
        };
        self.rows.fetch_min(smaller, Ordering::Relaxed);
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(start) = { start }.take() {
            thread::spawn(start);
        }
        // The search has ended if the process is about to end.
        let _ = self.shortages.send(MemoryShortage {
            rows,
            inputs: inputs.to_vec(),
        });
    }
}

/// Returns the bytes of all inputs together.
pub(crate) fn input_bytes(inputs: &[TensorHeader]) -> u64 {
    inputs.iter().map(TensorHeader::byte_len).sum()
}

/// Returns the warm-up sizes below `rows`, the largest first.
fn sizes_below(rows: u32) -> impl Iterator<Item = u32> {
    let sizes = synthetic::batch_sizes(rows).into_iter().rev();
    sizes.filter(move |size| *size < rows)
}

/// The search for the largest batch size that fits into memory.
pub(crate) struct BatchLimitSearch {
    /// The executor.
    pub(crate) executor: Arc<dyn Executor>,
    /// The pipeline in which the sizes are tried.
    pub(crate) pipeline: Arc<Pipeline>,
    /// The program.
    pub(crate) program: Arc<Program>,
    /// The content of synthetic inputs.
    pub(crate) fill: Fill,
    /// The limit that the search lowers, as long as somebody else has it.
    pub(crate) limit: Weak<BatchLimit>,
    /// The semaphore of the worker's batches. A process that drains waits for the batches of the search, too, because an MPS client
    /// must not end with work on the GPU.
    pub(crate) batches: Arc<Semaphore>,
}

impl BatchLimitSearch {
    /// Has the search begin with the first shortage of the limit.
    pub(crate) fn run_when_needed(
        self,
        limit: &BatchLimit,
        shortages: mpsc::Receiver<MemoryShortage>,
        found: impl Fn(u32) + Send + 'static,
    ) {
        let start = move || self.run(shortages, found);
        let mut starts = limit.start.lock().unwrap_or_else(PoisonError::into_inner);
        *starts = Some(Box::new(start));
    }

    /// Searches after each shortage, as long as batches are computed and the limit is there, and calls `found` with each new limit.
    fn run(&self, shortages: mpsc::Receiver<MemoryShortage>, found: impl Fn(u32)) {
        let mut smallest = u32::MAX;
        for shortage in shortages {
            // Of several failed batches in flight, only one is searched.
            if shortage.rows >= smallest {
                continue;
            }
            smallest = shortage.rows;
            let _permit = self.batches.acquire();
            let Some(rows) = self.find_below(&shortage) else {
                return;
            };
            let Some(limit) = self.limit.upgrade() else {
                return;
            };
            limit.rows.fetch_min(rows, Ordering::Relaxed);
            tracing::warn!(
                batch.size = shortage.rows,
                batch.limit = rows,
                "not enough memory for a batch: the worker accepts smaller batches only"
            );
            found(rows);
        }
    }

    /// Returns the largest size below a shortage that fits; `None` if batches are no longer computed.
    fn find_below(&self, shortage: &MemoryShortage) -> Option<u32> {
        for rows in sizes_below(shortage.rows) {
            if self.fits(rows, &shortage.inputs)? {
                return Some(rows);
            }
        }
        Some(1)
    }

    /// Runs a batch. Returns true if it fits into memory; `None` if batches are no longer computed.
    fn fits(&self, rows: u32, inputs: &[TensorHeader]) -> Option<bool> {
        let inputs: Option<Vec<_>> = inputs.iter().map(|input| with_rows(input, rows)).collect();
        let Some(Ok(mut batch)) = inputs.map(|inputs| self.executor.prepare(&inputs)) else {
            return Some(false);
        };
        synthetic::fill_inputs(&mut *batch, &self.program, self.fill);
        let (outcome, reply) = mpsc::channel();
        self.pipeline.push(ReceivedBatch {
            batch,
            rows,
            program: Arc::clone(&self.program),
            executor: Arc::clone(&self.executor),
            receive: Duration::ZERO,
            received_at: now(),
            reply: Box::new(SearchReply(outcome)),
        });
        match reply.recv() {
            Ok(Err(ExecutionError::OutOfMemory(_))) => Some(false),
            Ok(Err(ExecutionError::TimedOut(_) | ExecutionError::NotBegun(_))) | Err(_) => None,
            // Other failures with synthetic inputs are no lack of memory.
            Ok(_) => Some(true),
        }
    }
}

/// Returns an input's header with another number of rows.
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

/// The reply of a batch of the search, of which only the success counts.
struct SearchReply(mpsc::Sender<Result<(), ExecutionError>>);

impl BatchReply for SearchReply {
    fn is_wanted(&self) -> bool {
        true
    }

    fn send_result(self: Box<Self>, _outputs: Vec<OutputTensor>, _stages: StageDurations) {
        let _ = self.0.send(Ok(()));
    }

    fn send_failure(self: Box<Self>, error: ExecutionError) {
        let _ = self.0.send(Err(error));
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Datatype;

    use super::*;

    #[test]
    fn a_shortage_lowers_the_limit_at_once_and_it_never_grows() {
        let (limit, shortages) = BatchLimit::new(None, 0);
        assert_eq!(limit.rows(), None);
        for (rows, expected) in [(12, 8), (16, 8), (8, 4), (3, 2), (1, 2)] {
            limit.report_shortage(rows, &[]);
            assert_eq!(limit.rows(), Some(expected), "after {rows}");
        }
        // No size is smaller than one row.
        let searched: Vec<u32> = shortages.try_iter().map(|shortage| shortage.rows).collect();
        assert_eq!(searched, [12, 16, 8, 3]);
        assert_eq!(BatchLimit::new(Some(2), 0).0.rows(), Some(2));
    }

    #[test]
    fn a_shortage_of_longer_rows_than_those_of_the_start_changes_nothing() {
        let inputs = |rows, columns| {
            let shape = Shape::new(&[rows, columns]).unwrap();
            [TensorHeader::new(Datatype::Fp32, shape).unwrap()]
        };
        let (limit, shortages) = BatchLimit::new(None, 64);
        limit.report_shortage(8, &inputs(8, 17));
        assert_eq!(limit.rows(), None);
        assert!(shortages.try_recv().is_err());
        limit.report_shortage(8, &inputs(8, 16));
        assert_eq!(limit.rows(), Some(4));
        assert_eq!(shortages.try_recv().unwrap().rows, 8);
    }

    #[test]
    fn the_sizes_below_are_those_of_the_warm_up() {
        assert_eq!(sizes_below(8).collect::<Vec<_>>(), [4, 2, 1]);
        assert_eq!(sizes_below(6).collect::<Vec<_>>(), [4, 2, 1]);
        assert_eq!(sizes_below(1).next(), None);
    }
}

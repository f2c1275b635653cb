//! The seam between the worker and its executors: a trait for the executor, and one for a batch in each stage.

use std::{any::Any, sync::Arc, time::Duration};

use packhorse_cluster::{ByteCount, Program};
use packhorse_mapped::View;
use packhorse_wire::{ByteRange, TensorHeader};

use super::{error::ExecutionError, fill::Fill};

/// Runs batches of one program on one device.
pub(crate) trait Executor: Send + Sync {
    /// Returns memory for the inputs of a batch. May be called from any thread, also while batches run. There is memory for
    /// [`PipelineSettings::buffers`](packhorse_worker_agent::handoff::PipelineSettings::buffers) batches; a further call waits until
    /// the outputs of one of them, or the batch itself, are dropped.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn prepare(&self, inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError>;

    /// Prepares the memory of a gateway for [`PreparedBatch::map_inputs`].
    fn prepare_memory(&self, mapped: View) -> Arc<dyn InputMemory> {
        Arc::new(mapped)
    }

    /// Runs batches of this executor and of those that were started with it, and returns the outcome of each.
    fn run_together(
        &self,
        batches: Vec<Box<dyn PreparedBatch>>,
    ) -> Vec<Result<Executed, ExecutionError>> {
        batches.into_iter().map(PreparedBatch::run).collect()
    }

    /// Returns the most rows of batches that take less time together than one after the other; 0 if none do.
    fn most_rows_together(&self) -> u32 {
        0
    }

    /// Returns the memory that a replica with batches of this size has needed so far, or is known to need.
    fn memory(&self, batch_size: u32) -> Option<ByteCount>;

    /// Returns the number of multiprocessors that the process may use; `None` if the device has none.
    fn multiprocessors(&self) -> Option<u32> {
        None
    }

    /// Returns the program's weights if they may leave the device; `None` if they stay.
    fn weights(&self) -> Option<&dyn Weights> {
        None
    }

    /// Drops all recordings of runs.
    fn forget_recordings(&self) {}

    /// Records the runs of synthetic batches of these sizes, in ascending order, which have all run: the device then replays them (CUDA
    /// graphs). An executor that cannot record, or has not been asked to, does nothing.
    fn record(&self, _program: &Program, _sizes: &[u32], _fill: Fill) {}

    /// Returns the batch sizes whose runs are recorded, or the reason why none is, as text for people.
    fn recorded_sizes(&self) -> Result<Vec<u32>, String> {
        Err("not requested".to_owned())
    }

    /// Releases unused memory, after a batch for which there was not enough and before a larger one.
    fn release_memory(&self) {}
}

/// The weights of a program, which may leave the device while nothing runs. A batch that comes meanwhile brings them back first.
pub(crate) trait Weights: Send + Sync {
    /// Returns the bytes that come free when they leave.
    fn bytes(&self) -> u64;

    /// Returns the time that bringing them back took when it was tried.
    fn load_time(&self) -> Duration;

    /// Returns true if they are on the device.
    fn is_resident(&self) -> bool;

    /// Brings them back.
    ///
    /// # Errors
    /// If they cannot be read.
    fn restore(&self) -> Result<(), ExecutionError>;

    /// Has them leave the device, once no batch uses them.
    fn park(&self);

    /// Has them leave the device if no batch uses them. Returns false if one does, or they are not there.
    fn try_park(&self) -> bool;
}

/// The mapped memory of a gateway, in which inputs lie, with what its executor has prepared to read it.
pub(crate) trait InputMemory: Any + Send + Sync {
    /// Returns the mapping.
    fn view(&self) -> &View;
}

impl InputMemory for View {
    fn view(&self) -> &View {
        self
    }
}

/// A batch whose inputs are being filled.
pub(crate) trait PreparedBatch: Any + Send {
    /// Returns the bytes of an input, [`TensorHeader::byte_len`] of them: little-endian, row-major, without gaps. Their content is
    /// undefined until it is written.
    fn input_mut(&mut self, index: usize) -> &mut [u8];

    /// Takes the inputs from the memory of a gateway, which [`Executor::prepare_memory`] has returned. These ranges, which are within it, have
    /// the bytes of all inputs one after the other, and do not change until the batch is answered. Returns false if the inputs must be written
    /// to [`PreparedBatch::input_mut`] instead.
    fn map_inputs(&mut self, _memory: &Arc<dyn InputMemory>, _ranges: &[ByteRange]) -> bool {
        false
    }

    /// Copies the inputs to the device, or enqueues the copies.
    fn copy_in(self: Box<Self>) -> Result<Box<dyn LoadedBatch>, ExecutionError>;

    /// Runs all stages, one after the other.
    fn run(self: Box<Self>) -> Result<Executed, ExecutionError> {
        self.copy_in()?.compute()?.copy_out()
    }
}

/// A batch whose inputs are on the device, or will be there when the enqueued copies are done.
pub(crate) trait LoadedBatch: Send {
    /// Runs the program, or enqueues its run. The batches of an executor are computed one after the other, preferably on the thread on
    /// which it was started.
    fn compute(self: Box<Self>) -> Result<Box<dyn ComputedBatch>, ExecutionError>;

    /// Repeats one stage of the batch while `go_on` returns true, and drops the results. Returns the number of repetitions. This
    /// measures the most that the device can do.
    fn repeat(
        &self,
        stage: RepeatedStage,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, ExecutionError>;
}

/// A stage that [`LoadedBatch::repeat`] repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepeatedStage {
    /// Copying the inputs to the device.
    CopyIn,
    /// Running the program.
    Compute,
}

/// A batch whose outputs are on the device, or will be there when the enqueued run is done.
pub(crate) trait ComputedBatch: Send {
    /// Copies the outputs to host memory, and waits until they are there.
    fn copy_out(self: Box<Self>) -> Result<Executed, ExecutionError>;
}

/// A batch that has run.
pub(crate) struct Executed {
    /// The outputs in the order of the program's results, not yet checked against the signature.
    pub(crate) outputs: Vec<OutputTensor>,
    /// The duration of the copy from host to device memory.
    pub(crate) copy_in: Duration,
    /// The duration of the program's run.
    pub(crate) compute: Duration,
    /// The duration of making the outputs contiguous and copying them from device to host memory.
    pub(crate) copy_out: Duration,
}

/// An output in host memory.
pub(crate) struct OutputTensor {
    /// The datatype and shape.
    pub(crate) header: TensorHeader,
    /// The elements, [`TensorHeader::byte_len`] bytes.
    pub(crate) bytes: Box<dyn AsRef<[u8]> + Send>,
}

//! What runs a program: one trait, one file per implementation.
//!
//! The worker's receiving threads ask an [`Executor`] for a [`PreparedBatch`] and fill its inputs straight from the socket. From
//! there it goes through three stages, each of which may run on a thread of its own: copied in ([`LoadedBatch`]), computed
//! ([`ComputedBatch`]), copied out ([`Executed`]). A device that works by itself is only told what to do by the first two; the
//! third waits for it.

mod pool;
pub(crate) mod recording;
pub(crate) mod sample;
mod signature;
mod simulated;
#[cfg(feature = "torch")]
mod torch;

use std::{sync::Arc, time::Duration};

use packhorse_cluster::{ByteCount, Profile};
use packhorse_wire::TensorHeader;

pub(crate) use signature::{check_batch, check_outputs};

use packhorse_worker_agent::handoff::{Execution, ExecutorChoice};

/// Runs batches of one program on one device.
pub(crate) trait Executor: Send + Sync {
    /// Memory for the inputs of a batch. Called from any thread, also while batches run. There is memory for
    /// [`Pipeline::in_flight`](packhorse_worker_agent::handoff::PipelineSettings::in_flight) batches and one more that is received: whoever
    /// wants more waits until the outputs of one are dropped, or the batch itself.
    ///
    /// # Errors
    /// Out of memory.
    fn prepare(&self, inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError>;

    /// Memory that a replica with batches of this size was seen to need, or is known to need.
    fn memory(&self, batch_size: u32) -> Option<ByteCount>;

    /// How many multiprocessors of its device the process may use, where there are such.
    fn multiprocessors(&self) -> Option<u32> {
        None
    }

    /// Whether runs are recorded and played again; a reason, for people, where they are not.
    fn graphs(&self) -> Result<Vec<u32>, String> {
        Err("not asked for".to_owned())
    }

    /// Makes room after a batch for which there was no memory.
    fn release_memory(&self) {}
}

/// A batch whose inputs are being filled in.
pub(crate) trait PreparedBatch: Send {
    /// The bytes of one input, [`TensorHeader::byte_len`] of them: little-endian, row-major, without gaps. What they are
    /// before they are written is not said.
    fn input_mut(&mut self, index: usize) -> &mut [u8];

    /// Brings the inputs to the device, or tells it to fetch them.
    fn copy_in(self: Box<Self>) -> Result<Box<dyn LoadedBatch>, ExecutionError>;

    /// All stages, one after the other.
    fn run(self: Box<Self>) -> Result<Executed, ExecutionError> {
        self.copy_in()?.compute()?.copy_out()
    }
}

/// A batch whose inputs are on the device, or on their way.
pub(crate) trait LoadedBatch: Send {
    /// Runs the program, or tells the device to. Batches of one executor are computed one after the other, best on the thread on
    /// which it was started.
    fn compute(self: Box<Self>) -> Result<Box<dyn ComputedBatch>, ExecutionError>;

    /// Does one thing with it again and again, as long as `go_on` says so, and drops what comes of it: what the device can do at
    /// the most. How often it was done.
    fn repeat(
        &self,
        what: Repeated,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, ExecutionError>;
}

/// One thing that a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// It gets the inputs from the host's memory.
    CopyIn,
    /// It runs the program.
    Compute,
}

/// A batch whose outputs are on the device, or will be.
pub(crate) trait ComputedBatch: Send {
    /// Brings the outputs to the host's memory, and waits until they are there.
    fn copy_out(self: Box<Self>) -> Result<Executed, ExecutionError>;
}

/// A batch that has run.
pub(crate) struct Executed {
    /// In the order of the program's results. Nobody has checked them yet.
    pub(crate) outputs: Vec<OutputTensor>,
    /// From the host's memory to the device's.
    pub(crate) copy_in: Duration,
    /// In the program.
    pub(crate) compute: Duration,
    /// From the device's memory to the host's, and making the outputs contiguous.
    pub(crate) copy_out: Duration,
}

/// One output, in the host's memory.
pub(crate) struct OutputTensor {
    /// Datatype and shape.
    pub(crate) header: TensorHeader,
    /// The elements, [`TensorHeader::byte_len`] bytes.
    pub(crate) bytes: Box<dyn AsRef<[u8]> + Send>,
}

/// Why a batch has no outputs. The texts are for whoever sent the request: one line, no paths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExecutionError {
    /// The program threw.
    #[cfg_attr(
        not(any(feature = "torch", test)),
        expect(dead_code, reason = "a simulation never throws")
    )]
    #[error("the model threw: {0}")]
    ModuleThrew(String),
    /// The program answered something else than declared.
    #[error("the model answered {0}")]
    WrongOutput(String),
    /// There was no memory for the batch.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The device computes nothing any more, neither this batch nor another.
    #[cfg_attr(
        not(any(feature = "torch", test)),
        expect(dead_code, reason = "a simulation never fails")
    )]
    #[error("the device failed: {0}")]
    DeviceFailed(String),
}

/// Why a program cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct StartError {
    /// For people; no paths.
    pub(crate) reason: String,
    /// Whether trying again is bound to fail again.
    pub(crate) permanent: bool,
}

impl StartError {
    fn permanent(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            permanent: true,
        }
    }

    #[cfg(feature = "torch")]
    fn passing(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            permanent: false,
        }
    }
}

impl From<ExecutionError> for StartError {
    fn from(error: ExecutionError) -> Self {
        Self {
            reason: error.to_string(),
            permanent: !matches!(
                error,
                ExecutionError::OutOfMemory(_) | ExecutionError::DeviceFailed(_)
            ),
        }
    }
}

/// Which batch sizes a GPU runs before the first batch that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// 1, 2, 4, … and the largest: enough to find out what fits.
    Doubling,
    /// All of them: none is to be met while a request waits.
    Every,
}

/// An executor that is ready.
pub(crate) struct Started {
    pub(crate) executor: Arc<dyn Executor>,
    /// The largest batch that there is memory for, up to the one that was asked for.
    pub(crate) batch_size: u32,
    /// Made-up inputs that the program takes.
    pub(crate) fill: sample::Fill,
}

/// Loads the program and warms up for all batch sizes up to `batch_size`, or up to the largest that fits into memory. To be
/// called on the thread that will compute the batches: libtorch keeps threads and settings per thread.
///
/// # Errors
/// The program cannot be served as it is registered, or the device not be used.
pub(crate) fn start(
    execution: &Execution,
    batch_size: u32,
    sizes: Sizes,
) -> Result<Started, StartError> {
    match &execution.executor {
        ExecutorChoice::Simulated {
            device_kind,
            profile_csv,
        } => {
            // A clock needs to meet none.
            let _ = sizes;
            let program = &execution.program;
            let profile = simulated::profile(&program.model, device_kind, profile_csv)?;
            let buffers = execution.pipeline.buffers();
            Ok(Started {
                executor: Arc::new(simulated::Simulated::new(program, profile, buffers)),
                batch_size,
                fill: sample::Fill::Ones,
            })
        }
        #[cfg(feature = "torch")]
        ExecutorChoice::Torch {
            artifact,
            cuda_device,
        } => {
            torch::set_threads(execution.threads);
            let plan = torch::Start {
                program: &execution.program,
                artifact,
                cuda_device: *cuda_device,
                batch_size,
                sizes,
                pipeline: execution.pipeline,
            };
            torch::start(&plan)
        }
        #[cfg(not(feature = "torch"))]
        ExecutorChoice::Torch { .. } => Err(StartError::permanent(
            "this worker was built without libtorch",
        )),
    }
}

/// The profile of a program on an executor that need not be measured, because it has one to begin with.
pub(crate) fn known_profile(execution: &Execution) -> Result<Option<Profile>, StartError> {
    match &execution.executor {
        ExecutorChoice::Simulated {
            device_kind,
            profile_csv,
        } => simulated::profile(&execution.program.model, device_kind, profile_csv).map(Some),
        ExecutorChoice::Torch { .. } => Ok(None),
    }
}

/// Has `last_words` told of what ends the process where libtorch gives up, which then ends with `code`: once a device has failed, many of
/// its destructors do.
pub(crate) fn on_terminate(last_words: impl Fn(ExecutionError) + Send + Sync + 'static, code: u8) {
    #[cfg(feature = "torch")]
    torch::on_terminate(last_words, code);
    #[cfg(not(feature = "torch"))]
    let _ = (last_words, code);
}

/// Ends the process at once. A hung program may still be computing, and libtorch's destructors must not run under it.
pub(crate) fn exit_now(code: u8) -> ! {
    #[cfg(feature = "torch")]
    torch::exit_now(code);
    #[cfg(not(feature = "torch"))]
    std::process::exit(i32::from(code))
}

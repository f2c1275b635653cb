//! The choice and the start of an executor, and the end of its process.

#[cfg(feature = "torch")]
use std::path::Path;
use std::time::Duration;

use packhorse_api::local_worker::TriedOutput;
use packhorse_cluster::{ByteCount, Profile};
use packhorse_estimator::OperatorGraph;
use packhorse_worker_agent::handoff::{Execution, ExecutorChoice};

#[cfg(feature = "torch")]
use super::torch;
use super::{
    error::{ExecutionError, StartError},
    simulated,
    started::{Started, WarmUpSizes},
};

/// The time limit for loading and warming up a program. A program that takes longer never gets ready.
pub(crate) const LOAD_LIMIT: Duration = Duration::from_mins(5);

/// The rows of the batch with which a program of unknown outputs is tried.
#[cfg(feature = "torch")]
const TRIED_ROWS: u32 = 3;

/// Loads the program and warms up for all batch sizes up to `batch_size`, or up to the largest that fits into memory. Must be called on
/// the thread that will compute the batches, because libtorch keeps threads and settings per thread.
///
/// # Errors
/// If the program cannot be served as it is registered, or the device cannot be used.
pub(crate) fn start(
    execution: &Execution,
    batch_size: u32,
    sizes: WarmUpSizes,
) -> Result<Started, StartError> {
    match &execution.executor {
        ExecutorChoice::Simulated {
            device_kind,
            profile_csv,
            compute_share,
            folder,
        } => {
            // The simulated executor has nothing to prepare and to warm up.
            let _ = sizes;
            let program = &execution.program;
            let profile = simulated::read_profile(&program.model, device_kind, profile_csv)?;
            let options = simulated::SimulatedOptions {
                program: program.clone(),
                profile,
                compute_share: *compute_share,
                folder: folder.clone(),
                buffers: execution.pipeline.buffers(),
                batch_size,
                parks: execution.parks,
            };
            options.start()
        }
        #[cfg(feature = "torch")]
        ExecutorChoice::Torch {
            artifact,
            cuda_device,
        } => torch::start(&torch_options(
            execution,
            artifact,
            *cuda_device,
            batch_size,
            sizes,
        )),
        #[cfg(not(feature = "torch"))]
        ExecutorChoice::Torch { .. } => Err(StartError::permanent(
            "this worker was built without libtorch",
        )),
    }
}

/// Loads and warms up programs that share a backbone, and returns an executor for each. If they cannot share it, each is started for itself.
/// Like [`start`] otherwise.
///
/// # Errors
/// Those of [`start`].
pub(crate) fn start_together(
    executions: &[&Execution],
    batch_size: u32,
) -> Result<Vec<Started>, StartError> {
    let sizes = WarmUpSizes::All;
    #[cfg(feature = "torch")]
    if executions.len() > 1 {
        let options = executions.iter().map(|execution| {
            let options = |artifact, cuda_device| {
                torch_options(execution, artifact, cuda_device, batch_size, sizes)
            };
            match &execution.executor {
                ExecutorChoice::Torch {
                    artifact,
                    cuda_device,
                } => Some(options(artifact, *cuda_device)),
                ExecutorChoice::Simulated { .. } => None,
            }
        });
        if let Some(options) = options.collect::<Option<Vec<_>>>() {
            match torch::start_together(&options) {
                Err(error) => tracing::warn!(%error, "the programs do not share a backbone"),
                started => return started,
            }
        }
    }
    let start = |execution: &&Execution| start(execution, batch_size, sizes);
    executions.iter().map(start).collect()
}

#[cfg(feature = "torch")]
fn torch_options<'a>(
    execution: &'a Execution,
    artifact: &'a Path,
    cuda_device: Option<u32>,
    batch_size: u32,
    sizes: WarmUpSizes,
) -> torch::StartOptions<'a> {
    torch::StartOptions {
        program: &execution.program,
        artifact,
        cuda_device,
        threads: execution.threads,
        batch_size,
        sizes,
        optimize: execution.optimize,
        parks: execution.parks,
        pipeline: execution.pipeline,
    }
}

/// Returns the profile of a program if its executor has one and needs no measurement.
///
/// # Errors
/// If a simulated device has no profile of the program.
pub(crate) fn known_profile(execution: &Execution) -> Result<Option<Profile>, StartError> {
    match &execution.executor {
        ExecutorChoice::Simulated {
            device_kind,
            profile_csv,
            ..
        } => simulated::read_profile(&execution.program.model, device_kind, profile_csv).map(Some),
        ExecutorChoice::Torch { .. } => Ok(None),
    }
}

/// Returns the operators of a program, without running it.
///
/// # Errors
/// The reason why they cannot be known, as text for people.
pub(crate) fn inspect(execution: &Execution) -> Result<OperatorGraph, String> {
    match &execution.executor {
        #[cfg(feature = "torch")]
        ExecutorChoice::Torch { artifact, .. } => torch::inspect(&execution.program, artifact),
        #[cfg(not(feature = "torch"))]
        ExecutorChoice::Torch { .. } => Err("this worker was built without libtorch".to_owned()),
        ExecutorChoice::Simulated { .. } => Err("a simulated program has no operators".to_owned()),
    }
}

/// Runs a program of which only the inputs are known on random ones, and returns its outputs.
///
/// # Errors
/// The reason why it cannot be run, or why its rows are not those of a batch, as text for people.
pub(crate) fn try_outputs(execution: &Execution) -> Result<Vec<TriedOutput>, String> {
    match &execution.executor {
        #[cfg(feature = "torch")]
        ExecutorChoice::Torch {
            artifact,
            cuda_device,
        } => torch::try_outputs(&torch_options(
            execution,
            artifact,
            *cuda_device,
            execution.program.rows_limit().min(TRIED_ROWS),
            WarmUpSizes::PowersOfTwo,
        )),
        #[cfg(not(feature = "torch"))]
        ExecutorChoice::Torch { .. } => Err("this worker was built without libtorch".to_owned()),
        ExecutorChoice::Simulated { .. } => Err("a simulated program has no outputs".to_owned()),
    }
}

/// Sets a function that is called with the cause if libtorch terminates the process, which then exits with `code`. Once a device has
/// failed, many of libtorch's destructors throw and terminate the process.
pub(crate) fn on_terminate(report: impl Fn(ExecutionError) + Send + Sync + 'static, code: u8) {
    #[cfg(feature = "torch")]
    torch::on_terminate(report, code);
    #[cfg(not(feature = "torch"))]
    let _ = (report, code);
}

/// Prepares this process for programs whose weights leave memory. Must be called before the process hides its memory.
pub(crate) fn prepare_parking() {
    #[cfg(feature = "torch")]
    torch::prepare_regions();
}

/// Returns the memory to the system that programs have freed.
pub(crate) fn release_free_memory() {
    #[cfg(feature = "torch")]
    torch::release_free_memory();
}

/// Returns the memory of a CUDA device that this process has for weights and batches, without its context; `None` if it is unknown. What it keeps for other
/// weights is given back as far as that is more than `most` with it.
pub(crate) fn cuda_memory(cuda_device: u32, most: u64) -> Option<ByteCount> {
    #[cfg(feature = "torch")]
    let bytes = torch::cuda_memory(cuda_device, most).map(ByteCount::new);
    #[cfg(not(feature = "torch"))]
    let bytes = {
        let _ = (cuda_device, most);
        None
    };
    bytes
}

/// Returns the memory to the CUDA devices that batches have freed.
pub(crate) fn release_cuda_memory() {
    #[cfg(feature = "torch")]
    torch::release_cuda_memory();
}

/// Exits at once. A hung program may still be computing, and libtorch's destructors must not run meanwhile.
pub(crate) fn exit_now(code: u8) -> ! {
    #[cfg(feature = "torch")]
    torch::exit_now(code);
    #[cfg(not(feature = "torch"))]
    std::process::exit(i32::from(code))
}

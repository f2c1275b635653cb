//! The start of an executor: it loads the program, optimises it as far as possible, and warms it up.

use std::{
    fs::File,
    sync::{Arc, Once},
};

use tch::Cuda;

use super::{
    executor::TorchExecutor, options::StartOptions, package, programs::Programs,
    shim::Optimization, warm_up,
};
use crate::executor::{
    error::StartError,
    stages::Executor as _,
    started::{Preparation, Started, WarmUpSizes},
    synthetic,
};

/// Loads and warms up the program with the strongest optimization that works: some programs cannot be optimised, a few not even frozen, and
/// some fail only when they run. A package was compiled for its device beforehand and is not optimised further.
pub(in crate::executor) fn start(options: &StartOptions<'_>) -> Result<Started, StartError> {
    configure(options)?;
    let names = File::open(options.artifact).and_then(package::program_names);
    let names =
        names.map_err(|e| StartError::transient(format!("the model file cannot be read: {e}")))?;
    if !names.is_empty() {
        let programs = Programs::from_names(names, options.program.max_batch_size);
        return start_with(options, &programs, Optimization::Compiled);
    }
    let script = Programs::from_single(String::new());
    if options.preparation == Preparation::AsIs {
        return start_with(options, &script, Optimization::Plain);
    }
    start_with(options, &script, Optimization::Optimized)
        .or_else(|error| {
            tracing::info!(%error, "the program cannot be optimised");
            start_with(options, &script, Optimization::Frozen)
        })
        .or_else(|error| {
            tracing::info!(%error, "the program cannot be frozen");
            start_with(options, &script, Optimization::Plain)
        })
}

/// Sets libtorch's threads, and checks that it finds the device.
pub(super) fn configure(options: &StartOptions<'_>) -> Result<(), StartError> {
    // libtorch refuses a second call.
    static THREADS: Once = Once::new();
    THREADS.call_once(|| {
        tch::set_num_threads(i32::try_from(options.threads).unwrap_or(i32::MAX).max(1));
        tch::set_num_interop_threads(1);
    });
    match options.cuda_device {
        Some(index) if i64::from(index) >= Cuda::device_count() => Err(StartError::transient(
            format!("libtorch finds no CUDA device {index}"),
        )),
        _ => Ok(()),
    }
}

/// Starts the programs with these names, which only a package has.
fn start_with(
    options: &StartOptions<'_>,
    names: &Programs<String>,
    optimization: Optimization,
) -> Result<Started, StartError> {
    check_max_rows(options, names)?;
    let executor = TorchExecutor::load(options, names, optimization)?;
    let program = options.program;
    let sizes = synthetic::batch_sizes(options.batch_size);
    let (fill, batch_size) = synthetic::warm_up(&executor, program, &sizes)?;
    let mut sizes: Vec<u32> = sizes.into_iter().filter(|s| *s <= batch_size).collect();
    if options.cuda_device.is_some() && options.sizes == WarmUpSizes::All {
        sizes = warm_up::run_intermediate_sizes(&executor, program, &sizes, fill);
    }
    executor.record(program, &sizes, fill);
    executor.equalize_buffers()?;
    tracing::info!(program.optimization = ?optimization, "program loaded");
    Ok(Started {
        executor: Arc::new(executor),
        batch_size,
        fill,
    })
}

/// Checks that the programs accept batches of the declared size.
fn check_max_rows(options: &StartOptions<'_>, names: &Programs<String>) -> Result<(), StartError> {
    let Some(max_rows) = names.max_rows() else {
        return Ok(());
    };
    if max_rows == 0 {
        return Err(StartError::permanent(
            "the package has no program with the name `model`, or `rows-N` for N rows",
        ));
    }
    let declared = options.program.max_batch_size;
    if max_rows < u64::from(declared) {
        return Err(StartError::permanent(format!(
            "the package accepts batches of at most {max_rows} rows; max_batch_size is {declared}"
        )));
    }
    Ok(())
}

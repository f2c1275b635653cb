//! One attempt to start a program: it is loaded with a given optimization, warmed up, compared and recorded.

use std::sync::{Arc, Once};

use packhorse_cluster::{ByteCount, DroppedRewriting, Verification};
use tch::Cuda;

use super::{
    executor::TorchExecutor,
    options::StartOptions,
    programs::Programs,
    seal_weights,
    shim::{Optimization, Rewriting},
    verified::VerifiedProgram,
    verify_recordings, warm_up,
};
use crate::executor::{
    error::StartError,
    stages::Executor as _,
    started::{Started, Verified, WarmUpSizes},
    synthetic,
    verification::{Difference, Reference},
};

/// An attempt that another, with less optimization, may follow.
pub(super) enum AttemptError {
    /// The program cannot be loaded or run this way.
    Failed(StartError),
    /// The program answers something else than it does as it is in its file.
    Differs(Difference),
}

impl From<StartError> for AttemptError {
    fn from(error: StartError) -> Self {
        Self::Failed(error)
    }
}

/// The programs of a file that is started.
pub(super) struct Start<'a> {
    /// The options.
    pub(super) options: &'a StartOptions<'a>,
    /// The names of the programs, which only a package has.
    pub(super) names: Programs<String>,
    /// The memory before anything was loaded that the process shares with others of the same libraries.
    pub(super) shared_before: Option<ByteCount>,
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

impl Start<'_> {
    /// Returns true if the file is a package, which was compiled ahead of time.
    pub(super) fn is_package(&self) -> bool {
        self.names.iter().any(|name| !name.is_empty())
    }

    /// Loads the programs and nothing else.
    pub(super) fn load(&self, rewriting: &Rewriting) -> Result<TorchExecutor, StartError> {
        self.check_max_rows()?;
        TorchExecutor::load(self.options, &self.names, rewriting, self.shared_before)
    }

    /// Loads, warms up and records the programs, and compares nothing but their recorded runs.
    pub(super) fn unverified(&self, optimization: Optimization) -> Result<Started, StartError> {
        let rewriting = optimization.into();
        let attempt = self.attempt(&rewriting, None);
        attempt.map_err(|error| match error {
            AttemptError::Failed(error) => error,
            AttemptError::Differs(_) => unreachable!("there is nothing to differ from"),
        })
    }

    /// Loads, warms up and records the programs, and compares their answers with the reference, or, without one, those of their recorded runs
    /// with their own.
    pub(super) fn attempt(
        &self,
        rewriting: &Rewriting,
        reference: Option<&Reference>,
    ) -> Result<Started, AttemptError> {
        let options = self.options;
        let executor = self.load(rewriting)?;
        let program = options.program;
        let sizes = synthetic::batch_sizes(options.batch_size);
        let warm = synthetic::warm_up(&executor, program, &sizes).map_err(StartError::from);
        let (fill, batch_size) = warm?;
        if let Some(reference) = reference {
            let difference = reference.difference(&executor, program);
            if let Some(difference) = difference.map_err(StartError::from)? {
                return Err(AttemptError::Differs(difference));
            }
        }
        let mut sizes: Vec<u32> = sizes.into_iter().filter(|s| *s <= batch_size).collect();
        if options.cuda_device.is_some() && options.sizes == WarmUpSizes::All {
            sizes = warm_up::run_intermediate_sizes(&executor, program, &sizes, fill);
        }
        let dropped = verify_recordings::record(&executor, options, &sizes, fill, reference);
        let dropped = dropped.map_err(StartError::from)?;
        executor.equalize_buffers().map_err(StartError::from)?;
        let proof = seal_weights::seal(&executor, program).map_err(StartError::from)?;
        let verified = proof.map(|proof| {
            let recorded = executor.recorded_sizes().unwrap_or_default();
            let batches = (batch_size, fill);
            let program =
                VerifiedProgram::new(options, &self.names, rewriting, batches, recorded, proof);
            Arc::new(program) as Arc<dyn Verified>
        });
        tracing::info!(program.rewriting = ?rewriting, "program loaded");
        Ok(Started {
            executor: Arc::new(executor),
            batch_size,
            fill,
            verification: verification(reference, dropped),
            verified,
        })
    }

    /// Checks that the programs accept batches of the declared size.
    fn check_max_rows(&self) -> Result<(), StartError> {
        let Some(max_rows) = self.names.max_rows() else {
            return Ok(());
        };
        if max_rows == 0 {
            return Err(StartError::permanent(
                "the package has no program with the name `model`, or `rows-N` for N rows",
            ));
        }
        let declared = self.options.program.max_batch_size;
        if max_rows < u64::from(declared) {
            return Err(StartError::permanent(format!(
                "the package accepts batches of at most {max_rows} rows; max_batch_size is {declared}"
            )));
        }
        Ok(())
    }
}

/// Returns what there is to report of a comparison.
pub(super) fn verification(
    reference: Option<&Reference>,
    dropped: Vec<DroppedRewriting>,
) -> Option<Verification> {
    if reference.is_none() && dropped.is_empty() {
        return None;
    }
    Some(Verification {
        compared: reference.map_or(0, Reference::compared),
        not_compared: reference
            .and_then(Reference::not_compared)
            .map(ToString::to_string),
        dropped,
    })
}

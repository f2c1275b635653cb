//! The trial by which a program's weights may leave memory: it answers the same before and after, or it keeps them.

use std::time::Duration;

use packhorse_cluster::Program;

use super::{
    error::TorchError,
    executor::TorchExecutor,
    programs::Programs,
    shim::Module,
    weights::{RegionWeights, Sealed},
};
use crate::{
    clock::now,
    executor::{error::ExecutionError, verification::SampleAnswer},
};

/// The bytes below which weights stay: they are not worth two calls into the kernel.
const LEAST_BYTES: u64 = 256 << 10;

/// The proof that a program answers the same before and after its weights were given back and brought back. Only the trial makes one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parkable {
    /// The time to bring the weights back.
    load: Duration,
}

/// Seals the weights of a program that has been warmed up, and tries if it answers the same once they were given back and brought back. A program of
/// which that is not certain keeps its weights, and has no proof.
///
/// # Errors
/// If the device failed.
pub(super) fn seal(
    executor: &TorchExecutor,
    program: &Program,
) -> Result<Option<Parkable>, ExecutionError> {
    let Some(weights) = &executor.device.weights else {
        return Ok(None);
    };
    match try_seal(executor, weights, program) {
        Ok(sealed) => {
            weights.may_leave(sealed);
            Ok(Some(Parkable { load: sealed.load }))
        }
        Err(NotParkable::Failed(error @ ExecutionError::DeviceFailed(_))) => Err(error),
        Err(reason) => {
            tracing::info!(%reason, "the program keeps its weights in memory");
            Ok(None)
        }
    }
}

/// Seals the weights of a program that has been tried before, and was loaded again and has run. If they cannot be sealed, they stay.
pub(super) fn seal_again(executor: &TorchExecutor, proof: Parkable) {
    let Some(weights) = &executor.device.weights else {
        return;
    };
    match weights.seal() {
        Ok(bytes) => weights.may_leave(Sealed {
            bytes,
            load: proof.load,
        }),
        Err(error) => {
            let reason = error.summary();
            tracing::warn!(reason, "the program keeps its weights in memory");
        }
    }
}

/// The reason why a program keeps its weights.
#[derive(Debug, thiserror::Error)]
enum NotParkable {
    #[error("it may keep something from one batch to the next")]
    HasState,
    #[error("they have {0} bytes")]
    Small(u64),
    #[error("its bytes are others once they were given back")]
    OtherBytes,
    #[error("it answers otherwise once they were given back")]
    OtherAnswers,
    #[error("it takes no random inputs, or answers the same ones differently")]
    Uncertain,
    #[error("it writes to them")]
    Written,
    #[error("{0}")]
    NotMoved(String),
    #[error(transparent)]
    Failed(#[from] ExecutionError),
}

impl From<TorchError> for NotParkable {
    fn from(error: TorchError) -> Self {
        Self::NotMoved(error.summary())
    }
}

fn try_seal(
    executor: &TorchExecutor,
    weights: &RegionWeights,
    program: &Program,
) -> Result<Sealed, NotParkable> {
    let mut modules = { executor.device.programs().into_iter() }.flat_map(Programs::iter);
    // The kernel tells which pages of the CPU's memory are written, and nothing tells it of a GPU's.
    let on_gpu = executor.device.cuda_index.is_some();
    let keeps = |module: &Module| module.has_state() || (on_gpu && !module.only_reads_weights());
    if modules.any(keeps) {
        return Err(NotParkable::HasState);
    }
    let answer = SampleAnswer::collect(executor, program)?;
    let answer = answer.ok_or(NotParkable::Uncertain)?;
    let bytes = weights.seal()?;
    let digest = weights.digest()?;
    let mut load = Duration::ZERO;
    // The first time the kernel may still write the file.
    for _ in 0..2 {
        if !weights.give_back() {
            return Err(NotParkable::Written);
        }
        let start = now();
        weights.bring_back()?;
        load = now() - start;
        if weights.digest()? != digest {
            return Err(NotParkable::OtherBytes);
        }
    }
    if !answer.is_repeated(executor, program)? {
        return Err(NotParkable::OtherAnswers);
    }
    if weights.is_written()? {
        return Err(NotParkable::Written);
    }
    if bytes < LEAST_BYTES {
        return Err(NotParkable::Small(bytes));
    }
    Ok(Sealed { bytes, load })
}

//! The weights of a program on the CPU, which leave memory while other programs need it.
//!
//! They lie in a region of their own. Once the program has been loaded and has run, the region is sealed: its memory becomes that of a file, and
//! then giving it back and bringing it back changes no byte and no address. It is believed only after it was tried: the program answers the same before
//! and after, or keeps its weights.

use std::{
    sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError},
    time::Duration,
};

use packhorse_cluster::Program;

use super::{
    error::TorchError,
    executor::TorchExecutor,
    programs::Programs,
    shim::{Module, Region},
};
use crate::{
    clock::now,
    executor::{
        error::ExecutionError,
        stages::{Executor as _, Weights},
        verification::SampleAnswer,
    },
};

/// The bytes below which weights stay: they are not worth two calls into the kernel.
const LEAST_BYTES: u64 = 256 << 10;

/// The weights of a program that was loaded into a region.
pub(super) struct RegionWeights {
    region: Region,
    sealed: OnceLock<Sealed>,
    /// False while the memory is given back. A run holds the lock for reading.
    resident: RwLock<bool>,
}

/// The measurements of a region whose memory can be given back.
#[derive(Clone, Copy, Debug)]
struct Sealed {
    bytes: u64,
    load: Duration,
}

/// The proof that weights are in memory, and the reason why they stay.
pub(super) struct Lease<'a> {
    _resident: Option<RwLockReadGuard<'a, bool>>,
}

impl Lease<'_> {
    /// Returns the lease of weights that never leave memory.
    pub(super) fn of_fixed() -> Self {
        Self { _resident: None }
    }
}

impl RegionWeights {
    /// Reserves a region.
    pub(super) fn new() -> Result<Self, TorchError> {
        Ok(Self {
            region: Region::new()?,
            sealed: OnceLock::new(),
            resident: RwLock::new(true),
        })
    }

    /// Has the program be loaded into the region.
    pub(super) fn load(
        &self,
        load: impl FnOnce() -> Result<Module, TorchError>,
    ) -> Result<Module, TorchError> {
        self.region.during(load)
    }

    /// Returns a lease, for which the weights are brought back first if they are not there.
    pub(super) fn lease(&self) -> Result<Lease<'_>, TorchError> {
        loop {
            let resident = self.resident.read().unwrap_or_else(PoisonError::into_inner);
            if *resident {
                return Ok(Lease {
                    _resident: Some(resident),
                });
            }
            drop(resident);
            self.bring_back()?;
        }
    }

    fn bring_back(&self) -> Result<(), TorchError> {
        let mut resident = self
            .resident
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if !*resident {
            self.region.restore()?;
            *resident = true;
        }
        Ok(())
    }

    fn give_back(&self) {
        let resident = self.resident.write();
        self.park_with(resident.unwrap_or_else(PoisonError::into_inner));
    }

    /// Gives the memory back, if it is there.
    fn park_with(&self, mut resident: RwLockWriteGuard<'_, bool>) -> bool {
        let was_resident = std::mem::replace(&mut *resident, false);
        if was_resident {
            self.region.park();
        }
        was_resident
    }
}

impl Weights for RegionWeights {
    fn bytes(&self) -> u64 {
        self.sealed.get().map_or(0, |sealed| sealed.bytes)
    }

    fn load_time(&self) -> Duration {
        self.sealed
            .get()
            .map_or(Duration::ZERO, |sealed| sealed.load)
    }

    fn is_resident(&self) -> bool {
        *self.resident.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn restore(&self) -> Result<(), ExecutionError> {
        Ok(self.bring_back()?)
    }

    fn park(&self) {
        if self.sealed.get().is_some() {
            self.give_back();
        }
    }

    fn try_park(&self) -> bool {
        let Some(_) = self.sealed.get() else {
            return false;
        };
        match self.resident.try_write() {
            Ok(resident) => self.park_with(resident),
            Err(TryLockError::Poisoned(poisoned)) => self.park_with(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        }
    }
}

/// Seals the weights of a program that has been warmed up, and tries if it answers the same once they were given back and brought back. A program of
/// which that is not certain keeps its weights.
///
/// # Errors
/// If the device failed.
pub(super) fn seal(executor: &TorchExecutor, program: &Program) -> Result<(), ExecutionError> {
    let Some(weights) = &executor.device.weights else {
        return Ok(());
    };
    match try_seal(executor, weights, program) {
        Ok(sealed) => {
            let _ = weights.sealed.set(sealed);
            Ok(())
        }
        Err(NotParkable::Failed(error @ ExecutionError::DeviceFailed(_))) => Err(error),
        Err(reason) => {
            tracing::info!(%reason, "the program keeps its weights in memory");
            Ok(())
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
    #[error(transparent)]
    Failed(#[from] ExecutionError),
}

impl From<TorchError> for NotParkable {
    fn from(error: TorchError) -> Self {
        Self::Failed(error.into())
    }
}

fn try_seal(
    executor: &TorchExecutor,
    weights: &RegionWeights,
    program: &Program,
) -> Result<Sealed, NotParkable> {
    let programs = executor.device.programs().into_iter();
    let mut modules = programs.flat_map(Programs::iter);
    if modules.any(Module::has_state) {
        return Err(NotParkable::HasState);
    }
    let answer = SampleAnswer::collect(executor, program)?;
    let bytes = weights.region.seal(&std::env::temp_dir())?;
    let digest = weights.region.digest();
    let mut load = Duration::ZERO;
    // The first time the kernel may still write the file.
    for _ in 0..2 {
        weights.give_back();
        let start = now();
        weights.bring_back()?;
        load = now() - start;
        if weights.region.digest() != digest {
            return Err(NotParkable::OtherBytes);
        }
    }
    if let Some(answer) = answer
        && !answer.is_repeated(executor, program)?
    {
        return Err(NotParkable::OtherAnswers);
    }
    if bytes < LEAST_BYTES {
        return Err(NotParkable::Small(bytes));
    }
    executor.release_memory();
    Ok(Sealed { bytes, load })
}

//! The weights of a program, which leave the memory of their device while other programs need it.
//!
//! They lie in a region of their own. Once the program has been loaded and has run, the region is sealed: on the CPU its memory becomes that of a file,
//! and of that on a GPU the host has a copy. Then giving it back and bringing it back changes no byte and no address. A run has a lease, for which they are
//! brought back first.

use std::{
    sync::{
        Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    error::TorchError,
    shim::{Module, Region, StageStream, StreamEvent},
};
use crate::executor::{error::ExecutionError, stages::Weights};

/// The weights of a program that was loaded into a region.
pub(super) struct RegionWeights {
    region: Region,
    sealed: OnceLock<Sealed>,
    /// False while the memory is given back. A run holds the lock for reading.
    resident: RwLock<bool>,
    /// The same, for those who do not wait for a run.
    is_resident: AtomicBool,
    /// True once the program has written to its weights, which then stay.
    stays: AtomicBool,
    /// The end of the last run, which a GPU reaches after the call that begins it has returned.
    last_run: Mutex<Option<StreamEvent>>,
}

/// The measurements of a region whose memory can be given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    /// The bytes that come free.
    pub(super) bytes: u64,
    /// The time to bring them back.
    pub(super) load: Duration,
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
    /// Reserves a region of a CUDA device, or of the CPU.
    pub(super) fn new(cuda_device: Option<u32>) -> Result<Self, TorchError> {
        Ok(Self {
            region: Region::new(cuda_device)?,
            sealed: OnceLock::new(),
            resident: RwLock::new(true),
            is_resident: AtomicBool::new(true),
            stays: AtomicBool::new(false),
            last_run: Mutex::default(),
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

    /// Notes that a run was begun on a stream of a GPU, while its lease lives.
    pub(super) fn note_run(&self, stream: &StageStream) -> Result<(), TorchError> {
        let mut last_run = self.last_run.lock().unwrap_or_else(PoisonError::into_inner);
        *last_run = Some(stream.record_event()?);
        Ok(())
    }

    /// Keeps the region's bytes elsewhere. Returns the bytes that come free when its memory is given back.
    pub(super) fn seal(&self) -> Result<u64, TorchError> {
        self.region.seal(&std::env::temp_dir())
    }

    /// Has the weights leave memory from now on when they are asked to.
    pub(super) fn may_leave(&self, sealed: Sealed) {
        let _ = self.sealed.set(sealed);
    }

    /// Returns a number that the bytes determine.
    pub(super) fn digest(&self) -> Result<u64, TorchError> {
        self.region.digest()
    }

    /// Brings the weights back, if they are not there.
    pub(super) fn bring_back(&self) -> Result<(), TorchError> {
        let mut resident = self
            .resident
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if !*resident {
            self.region.restore()?;
            *resident = true;
            self.is_resident.store(true, Relaxed);
        }
        Ok(())
    }

    /// Has the weights leave memory, once no run uses them. Returns false if they were not there, or stay.
    pub(super) fn give_back(&self) -> bool {
        let resident = self.resident.write();
        self.park_with(resident.unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the memory back, if it is there.
    fn park_with(&self, mut resident: RwLockWriteGuard<'_, bool>) -> bool {
        if !*resident {
            return false;
        }
        match self.park_region() {
            Ok(true) => {}
            Ok(false) => {
                if !self.stays.swap(true, Relaxed) {
                    tracing::warn!("the program has written to its weights, which stay in memory");
                }
                return false;
            }
            Err(error) => {
                tracing::warn!(error = error.summary(), "the weights stay where they are");
                return false;
            }
        }
        *resident = false;
        self.is_resident.store(false, Relaxed);
        true
    }

    /// Gives the region's memory back after the last run. No run begins meanwhile.
    fn park_region(&self) -> Result<bool, TorchError> {
        let mut last_run = self.last_run.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = &*last_run {
            end.wait_until_complete()?;
        }
        *last_run = None;
        self.region.park()
    }

    /// Returns true if the program has written to its weights.
    pub(super) fn is_written(&self) -> Result<bool, TorchError> {
        self.region.is_written()
    }
}

impl Weights for RegionWeights {
    fn bytes(&self) -> u64 {
        let sealed = self.sealed.get().filter(|_| !self.stays.load(Relaxed));
        sealed.map_or(0, |sealed| sealed.bytes)
    }

    fn load_time(&self) -> Duration {
        self.sealed
            .get()
            .map_or(Duration::ZERO, |sealed| sealed.load)
    }

    fn is_resident(&self) -> bool {
        self.is_resident.load(Relaxed)
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

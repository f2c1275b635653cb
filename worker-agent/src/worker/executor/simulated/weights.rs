//! The weights of a program on a simulated device, which take their time to come.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use packhorse_cluster::ByteCount;
use packhorse_worker_agent::devices::SIMULATED_HOST_LINK_BYTES_PER_SECOND;

use crate::executor::{error::ExecutionError, stages::Weights};

/// The speed of a simulated disk, in bytes per second.
const DISK_BYTES_PER_SECOND: f64 = 2e9;

/// The weights of a program, which may leave the device.
#[derive(Debug)]
pub(super) struct SimulatedWeights {
    bytes: ByteCount,
    is_resident: AtomicBool,
    /// Held while a batch uses them, or they come or go.
    in_use: Mutex<()>,
}

impl SimulatedWeights {
    /// Creates weights that are on the device, after the time that reading them takes.
    pub(super) fn read(bytes: ByteCount) -> Self {
        thread::sleep(time(bytes, DISK_BYTES_PER_SECOND));
        Self {
            bytes,
            is_resident: AtomicBool::new(true),
            in_use: Mutex::default(),
        }
    }

    /// Keeps them on the device, to which they are brought if they are not there, until what is returned is dropped.
    pub(super) fn hold(&self) -> MutexGuard<'_, ()> {
        let held = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_resident() {
            thread::sleep(self.load_time());
            self.is_resident.store(true, Relaxed);
        }
        held
    }
}

impl Weights for SimulatedWeights {
    fn bytes(&self) -> u64 {
        self.bytes.as_u64()
    }

    fn load_time(&self) -> Duration {
        time(self.bytes, SIMULATED_HOST_LINK_BYTES_PER_SECOND)
    }

    fn is_resident(&self) -> bool {
        self.is_resident.load(Relaxed)
    }

    fn restore(&self) -> Result<(), ExecutionError> {
        drop(self.hold());
        Ok(())
    }

    fn park(&self) {
        let _unused = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_resident.store(false, Relaxed);
    }

    fn try_park(&self) -> bool {
        let _unused = match self.in_use.try_lock() {
            Ok(unused) => unused,
            Err(TryLockError::Poisoned(unused)) => unused.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.is_resident.swap(false, Relaxed)
    }
}

fn time(bytes: ByteCount, bytes_per_second: f64) -> Duration {
    Duration::from_secs_f64(bytes.as_u64() as f64 / bytes_per_second)
}

//! The state that the handlers share.

use std::{
    io,
    sync::{Arc, atomic::AtomicU64},
    thread::available_parallelism,
    time::Duration,
};

use super::{shared_memory::SharedMemory, work_pool::WorkPool};
use crate::{driver::DataPlane, keys::Keyring, telemetry::Telemetry};

/// The limits of a client's requests.
#[derive(Clone, Copy, Debug)]
pub struct InferenceLimits {
    /// The most bytes of a request's body, before and after decompression.
    pub body_bytes: u64,
    /// The longest pause in a body before it is given up.
    pub body_timeout: Duration,
}

impl Default for InferenceLimits {
    fn default() -> Self {
        Self {
            body_bytes: 256 << 20,
            body_timeout: Duration::from_secs(10),
        }
    }
}

/// The state that the handlers share.
#[derive(Clone, Debug)]
pub struct Inference {
    pub(super) data_plane: DataPlane,
    /// The keys that requests need; none if they need none.
    pub(super) keys: Option<Keyring>,
    pub(super) limits: InferenceLimits,
    pub(super) pool: WorkPool,
    /// The regions of system shared memory; none if the extension is off.
    pub(super) shared_memory: Option<SharedMemory>,
    /// The requests that would have been refused by their head for the length of the queue.
    pub(super) hopeless: Arc<AtomicU64>,
}

impl Inference {
    pub(super) fn telemetry(&self) -> &Telemetry {
        self.data_plane.telemetry()
    }

    /// Creates the state, and starts the threads that parse and format large messages.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(
        data_plane: DataPlane,
        limits: InferenceLimits,
        keys: Option<Keyring>,
    ) -> io::Result<Self> {
        let body_bytes = limits.body_bytes.min(data_plane.memory().limit() / 2);
        let cores = available_parallelism().map_or(1, usize::from);
        Ok(Self {
            data_plane,
            keys,
            limits: InferenceLimits {
                // A model alone may have half of the memory budget.
                body_bytes,
                ..limits
            },
            pool: WorkPool::start(cores - 1)?,
            shared_memory: None,
            hopeless: Arc::default(),
        })
    }

    /// Returns the state with Triton's system shared memory extension on or off.
    #[must_use]
    pub fn with_system_shared_memory(self, is_on: bool) -> Self {
        Self {
            shared_memory: is_on.then(SharedMemory::default),
            ..self
        }
    }
}

//! The state that the handlers share.

use std::{
    io,
    ops::Deref,
    sync::{Arc, atomic::AtomicU64},
    thread::available_parallelism,
    time::Duration,
};

use super::{platforms::settings::Platforms, shared_memory::SharedMemory, work_pool::WorkPool};
use crate::{
    api::web_policy::WebPolicy, driver::DataPlane, keys::Keyring, memory::ModelMemory,
    telemetry::Telemetry, wake_latency::WakeLatency,
};

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

/// The state that the handlers share. Clones share it: every layer of the router makes some for each request.
#[derive(Clone, Debug)]
pub struct Inference {
    shared: Arc<State>,
}

/// The state behind all clones.
#[derive(Debug)]
pub struct State {
    pub(in crate::api) data_plane: DataPlane,
    /// The keys that requests need; none if they need none.
    pub(in crate::api) keys: Option<Keyring>,
    pub(in crate::api) limits: InferenceLimits,
    /// The hosts that the listener answers for, and the web pages that may use it.
    pub(in crate::api) web: WebPolicy,
    pub(in crate::api) pool: WorkPool,
    /// The memory of requests whose model is not known yet, or that are for none.
    pub(in crate::api) unnamed: ModelMemory,
    /// The platforms whose contracts the listener speaks.
    pub(in crate::api) platforms: Platforms,
    /// The regions of system shared memory; none if the extension is off.
    pub(in crate::api) shared_memory: Option<SharedMemory>,
    /// The limit of the cores' wake latency while requests come; none leaves it to the system.
    pub(in crate::api) wake_latency: Option<WakeLatency>,
    /// The requests that would have been refused by their head for the length of the queue.
    pub(in crate::api) hopeless: AtomicU64,
}

impl Inference {
    /// Creates the state, and starts the threads that parse and format large messages. Clients may use Triton's system shared memory extension if
    /// `system_shared_memory` is true.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(
        data_plane: DataPlane,
        limits: InferenceLimits,
        keys: Option<Keyring>,
        web: WebPolicy,
        system_shared_memory: bool,
        platforms: Platforms,
        wake_latency: Option<WakeLatency>,
    ) -> io::Result<Self> {
        let body_bytes = limits.body_bytes.min(data_plane.memory().limit() / 2);
        let cores = available_parallelism().map_or(1, usize::from);
        let unnamed = data_plane.memory().model();
        let shared = State {
            data_plane,
            keys,
            limits: InferenceLimits {
                // A model alone may have half of the memory budget.
                body_bytes,
                ..limits
            },
            web,
            pool: WorkPool::start(cores - 1)?,
            unnamed,
            platforms,
            shared_memory: system_shared_memory.then(SharedMemory::default),
            wake_latency,
            hopeless: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

impl Deref for Inference {
    type Target = State;

    fn deref(&self) -> &State {
        &self.shared
    }
}

impl State {
    pub(in crate::api) fn telemetry(&self) -> &Telemetry {
        self.data_plane.telemetry()
    }
}

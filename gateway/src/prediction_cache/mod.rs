//! The cache of predictions: the outputs of models that were answered before, for requests of the same tenant with the same inputs.
//!
//! A key has the model's number, which another program under the same name does not get, and the hash of its inputs.
//! Tenants do not see each other's entries: how fast an answer comes would tell what another one has asked.
//! Nothing waits for an equal request that is being computed: of several at a time each is computed.

mod kept_outputs;
mod key;
mod parts;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use packhorse_cluster::Time;
use packhorse_serving::TenantKey;

use parts::TenantParts;

pub(crate) use kept_outputs::{KeptOutput, KeptOutputs};
pub(crate) use key::{InputDigest, PredictionKey};

/// A handle to the cache. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct PredictionCache {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: u64,
    parts: Mutex<TenantParts>,
    evictions: AtomicU64,
}

impl PredictionCache {
    /// Creates a cache of at most so many bytes; it keeps nothing with 0.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                limit,
                parts: Mutex::new(TenantParts::new(limit)),
                evictions: AtomicU64::new(0),
            }),
        }
    }

    /// Returns true if it keeps answers.
    pub(crate) fn is_on(&self) -> bool {
        self.shared.limit > 0
    }

    /// Returns the most bytes that it holds.
    pub(crate) fn limit(&self) -> u64 {
        self.shared.limit
    }

    /// Returns the bytes that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts().bytes()
    }

    /// Returns the number of answers that gave way to others.
    pub(crate) fn evictions(&self) -> u64 {
        self.shared.evictions.load(Relaxed)
    }

    /// Returns a tenant's answer, if it is kept.
    pub(crate) fn get(
        &self,
        now: Time,
        tenant: TenantKey,
        key: &PredictionKey,
    ) -> Option<KeptOutputs> {
        self.parts().get(now, tenant, key)
    }

    /// Returns true if an answer of so many bytes may be kept.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        self.parts().takes(bytes as u64)
    }

    /// Keeps a tenant's answer, unless it is too large.
    pub(crate) fn insert(
        &self,
        now: Time,
        tenant: TenantKey,
        key: PredictionKey,
        outputs: KeptOutputs,
    ) {
        let evicted = self.parts().insert(now, tenant, key, outputs);
        self.shared.evictions.fetch_add(evicted, Relaxed);
    }

    fn parts(&self) -> MutexGuard<'_, TenantParts> {
        // A panic of another thread has at worst lost an answer.
        let parts = self.shared.parts.lock();
        parts.unwrap_or_else(PoisonError::into_inner)
    }
}

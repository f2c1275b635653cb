//! A served model, as the HTTP handlers see it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_cluster::{ModelId, ModelSpec, Time};
use packhorse_serving::{ModelKey, Refusal, TenantKey};

use super::{home::Home, load::ModelLoad};
use crate::{
    input_memory::InputMemory, memory::ModelMemory, telemetry::ModelTelemetry,
    tokenizers::ModelTokenizer,
};

/// A registered model version.
#[derive(Clone, Debug)]
pub(crate) struct ServedModel {
    /// The model's number in the engine.
    pub(crate) key: ModelKey,
    /// The model's specification.
    pub(crate) spec: Arc<ModelSpec>,
    /// The model's measurements.
    pub(crate) telemetry: Arc<ModelTelemetry>,
    /// The memory that the model's requests hold.
    pub(crate) memory: ModelMemory,
    /// The memory for bodies that workers of this host read.
    pub(crate) inputs: InputMemory,
    /// The tokenizer, if the model takes texts.
    pub(crate) tokenizer: Option<Arc<ModelTokenizer>>,
    /// The most requests that wait for the model.
    pub(crate) queue_limit: usize,
    /// The model's queue, and how fast it drains.
    pub(crate) load: Arc<ModelLoad>,
    /// The driver that decides for the model.
    pub(super) home: Arc<Home>,
    pub(super) readiness: Arc<Readiness>,
}

/// The shortest time after which a client is asked to try again: the header's unit.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest time after which a client is asked to try again.
const RETRY_MAX: Duration = Duration::from_mins(1);
/// The time after which to ask again for a model that has no replica: about as long as one takes to start.
const RETRY_WITHOUT_REPLICA: Duration = Duration::from_secs(5);

/// The readiness of a model, updated by the driver.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// True if a replica takes batches.
    pub(super) ready: AtomicBool,
    /// True if a replica is being connected to.
    pub(super) loading: AtomicBool,
}

impl ServedModel {
    /// Returns name and version.
    pub(crate) fn id(&self) -> &ModelId {
        &self.spec.program.model
    }

    /// Returns true if a replica takes the model's requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.ready.load(Relaxed)
    }

    /// Returns the reason why the engine would refuse any request of a tenant now, as far as that is known without the request.
    pub(crate) fn refusal(&self, tenant: TenantKey) -> Option<Refusal> {
        if !self.is_ready() {
            Some(Refusal::NoReplica)
        } else if self.load.queued() >= self.queue_limit && self.load.stands_behind(tenant) {
            Some(Refusal::QueueFull {
                limit: self.queue_limit,
            })
        } else {
            None
        }
    }

    /// Returns true if the queue is so long that a tenant's request that arrived at `arrived` would wait for longer than the model's SLO, and
    /// for longer than any recent request was ready to.
    pub(crate) fn is_hopeless(&self, now: Time, arrived: Time, tenant: TenantKey) -> bool {
        if !self.load.stands_behind(tenant) {
            return false;
        }
        let allowed = self.spec.slo.max(self.load.patience(now));
        self.load
            .expected_wait(now)
            .is_some_and(|wait| now.saturating_since(arrived).saturating_add(wait) > allowed)
    }

    /// Returns the time after which a refused client may try again: when the present queue has drained.
    pub(crate) fn retry_after(&self, now: Time) -> Duration {
        if self.is_ready() {
            let wait = self.load.expected_wait(now).unwrap_or_default();
            wait.clamp(RETRY_MIN, RETRY_MAX)
        } else if self.is_loading() {
            RETRY_MIN
        } else {
            RETRY_WITHOUT_REPLICA
        }
    }

    /// Returns true if replicas of the model are being connected to.
    pub(crate) fn is_loading(&self) -> bool {
        self.readiness.loading.load(Relaxed)
    }
}

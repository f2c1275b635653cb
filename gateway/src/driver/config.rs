//! The data plane's settings.

use std::{path::PathBuf, sync::Arc, time::Duration};

use packhorse_serving::{EngineConfig, ModelLimits};
use packhorse_tls::{ClientTls, Reloaded};
use packhorse_wire::{LinkSecret, MAX_PAYLOAD};

use crate::telemetry::TelemetryConfig;

/// The settings of a data plane.
#[derive(Clone, Debug)]
pub struct DataPlaneConfig {
    /// The secret that workers must share.
    pub link_secret: LinkSecret,
    /// TLS of connections to workers on other machines; `None` without.
    pub link_tls: Option<Arc<Reloaded<ClientTls>>>,
    /// The number of drivers, at least 1 and at most 256. Models that share no device and no family, directly or through others, have different ones.
    pub drivers: usize,
    /// True if links to workers of this host use shared memory.
    pub shared_memory_links: bool,
    /// The user that workers of this host run as, beside the gateway's.
    pub worker_user: Option<u32>,
    /// The most requests that wait for a model without a limit of its own; a further one is refused.
    pub queue_limit: usize,
    /// The longest time for which `fixed-wait` holds an open batch.
    pub max_batch_wait: Duration,
    /// The most requests between arrival and answer; a further one is refused.
    pub request_limit: usize,
    /// The most bytes that all requests hold together, from a request's first byte to the last byte of its answer; a request that
    /// would need more is refused.
    pub memory_budget_bytes: u64,
    /// The most bytes of answers that are kept for requests with the same inputs; 0 keeps none.
    pub prediction_cache_bytes: u64,
    /// The largest result of one batch that a worker may send, in bytes; at most [`MAX_PAYLOAD`].
    pub result_limit_bytes: u64,
    /// The longest time for which a worker may hold a batch before the gateway gives up on the worker. Longer than the workers'
    /// own limit, which ends them with a reason.
    pub batch_time: Duration,
    /// The folder of the stored files, of which the tokenizers of models are read.
    pub files: PathBuf,
    /// The settings of the measurements.
    pub telemetry: TelemetryConfig,
}

impl Default for DataPlaneConfig {
    fn default() -> Self {
        Self {
            link_secret: LinkSecret::none(),
            link_tls: None,
            drivers: 1,
            shared_memory_links: true,
            worker_user: None,
            queue_limit: ModelLimits::DEFAULT_QUEUE_LIMIT,
            max_batch_wait: EngineConfig::default().max_batch_wait,
            request_limit: 1 << 16,
            memory_budget_bytes: 1 << 30,
            prediction_cache_bytes: 64 << 20,
            result_limit_bytes: MAX_PAYLOAD,
            batch_time: Duration::from_secs(15),
            files: PathBuf::new(),
            telemetry: TelemetryConfig::default(),
        }
    }
}

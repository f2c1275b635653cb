//! The metrics of the serving engines.

use std::{
    fmt::Error,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{MetricType, histogram::Histogram},
    registry::Registry,
};

use super::samples::{encode_samples, encode_value};

/// The upper bounds of the buckets of the engines' pauses, in seconds.
const PAUSES: [f64; 8] = [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1];

/// The metrics of the serving engines.
#[derive(Debug, Clone)]
pub(super) struct EngineMetrics {
    /// The replicas that each engine decides for, by its number.
    replicas: Arc<Mutex<Vec<usize>>>,
    moved_models: Arc<AtomicU64>,
    pauses: Histogram,
}

impl EngineMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            replicas: Arc::default(),
            moved_models: Arc::default(),
            pauses: Histogram::new(PAUSES),
        };
        registry.register(
            "packhorse_engine_pause_seconds",
            "Time for which a change of models or replicas stopped the serving engines",
            metrics.pauses.clone(),
        );
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }

    /// Sets the numbers of replicas, by the engines' numbers.
    pub(super) fn set_replicas(&self, replicas: impl Iterator<Item = usize>) {
        *self.lock_replicas() = replicas.collect();
    }

    /// Counts models that went to another engine.
    pub(super) fn count_moved(&self, models: usize) {
        self.moved_models.fetch_add(models as u64, Relaxed);
    }

    /// Records a time for which the engines were stopped.
    pub(super) fn record_pause(&self, pause: Duration) {
        self.pauses.observe(pause.as_secs_f64());
    }

    fn lock_replicas(&self) -> MutexGuard<'_, Vec<usize>> {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let replicas = self.lock_replicas();
        let by_engine = replicas.iter().enumerate();
        encode_samples(
            &mut encoder,
            "packhorse_engine_replicas",
            "Replicas that each serving engine decides for.",
            MetricType::Gauge,
            by_engine.map(|(engine, replicas)| ([("engine", engine)], *replicas as u64)),
        )?;
        encode_value(
            &mut encoder,
            "packhorse_engine_moved_models_total",
            "Models that went from one serving engine to another.",
            MetricType::Counter,
            &self.moved_models.load(Relaxed),
        )
    }
}

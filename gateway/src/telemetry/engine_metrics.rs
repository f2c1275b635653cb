//! The metrics of the serving engines.

use std::{
    fmt::Error,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use prometheus_client::{
    collector::Collector, encoding::DescriptorEncoder, metrics::MetricType, registry::Registry,
};

use super::samples::{encode_samples, encode_value};

/// The metrics of the serving engines.
#[derive(Debug, Clone, Default)]
pub(super) struct EngineMetrics {
    /// The replicas that each engine decides for, by its number.
    replicas: Arc<Mutex<Vec<usize>>>,
    moved_models: Arc<AtomicU64>,
}

impl EngineMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
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

//! The metrics of the serving engines.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The metrics of the serving engines.
#[derive(Debug)]
pub(super) struct EngineMetrics {
    replicas: Family<[(&'static str, String); 1], Gauge>,
    moved_models: Counter,
}

impl EngineMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            replicas: Family::default(),
            moved_models: Counter::default(),
        };
        registry.register(
            "packhorse_engine_replicas",
            "Replicas that each serving engine decides for.",
            metrics.replicas.clone(),
        );
        registry.register(
            "packhorse_engine_moved_models",
            "Models that went from one serving engine to another.",
            metrics.moved_models.clone(),
        );
        metrics
    }

    /// Sets the numbers of replicas, by the engines' numbers.
    pub(super) fn set_replicas(&self, replicas: impl Iterator<Item = usize>) {
        for (engine, replicas) in replicas.enumerate() {
            let gauge = self
                .replicas
                .get_or_create(&[("engine", engine.to_string())]);
            gauge.set(i64::try_from(replicas).unwrap_or(i64::MAX));
        }
    }

    /// Counts models that went to another engine.
    pub(super) fn count_moved(&self, models: usize) {
        self.moved_models.inc_by(models as u64);
    }
}

//! The measured models.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use packhorse_cluster::ModelId;

use super::{
    model::ModelTelemetry, otel::Tracer, request_log::RequestLog, stage_histogram::Buckets,
};
use crate::clock::Clock;

/// The measurements of all models. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Models {
    by_id: Arc<RwLock<BTreeMap<ModelId, Arc<ModelTelemetry>>>>,
    /// The buckets of the histograms on `/metrics`.
    pub(super) buckets: Buckets,
}

impl Models {
    /// Creates an empty list, whose histograms are written with these buckets.
    pub(super) fn new(buckets: Buckets) -> Self {
        Self {
            by_id: Arc::default(),
            buckets,
        }
    }

    /// Returns the measurements of all models, ordered by model.
    pub(super) fn all(&self) -> Vec<Arc<ModelTelemetry>> {
        self.by_id
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// Returns the measurements of a model; they begin at zero if there are none.
    pub(super) fn get_or_insert(
        &self,
        model: &ModelId,
        clock: Clock,
        requests: &RequestLog,
        tracer: Option<&Tracer>,
    ) -> Arc<ModelTelemetry> {
        let mut models = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let (model, requests, tracer) = (model.clone(), requests.clone(), tracer.cloned());
            Arc::new(ModelTelemetry::new(model, clock, requests, tracer))
        };
        Arc::clone(models.entry(model.clone()).or_insert_with(new))
    }

    /// Removes the measurements of a model.
    pub(super) fn remove(&self, model: &ModelId) {
        let mut models = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(removed) = models.remove(model) {
            removed.forget();
        }
    }
}

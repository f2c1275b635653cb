//! What the data plane measures of itself: counters for Prometheus and Triton's statistics, windows for goodput. Beside them, what
//! agents read of their GPUs.
//!
//! Only what is registered has a name here: what clients send never becomes a label, and a model that is removed takes its
//! series along.

mod exposition;
mod gpus;
mod http;
mod latency;
mod model;
mod window;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use packhorse_api::{ModelGoodput, agent::GpuStatus};
use packhorse_cluster::{ModelId, NodeName};
use prometheus_client::{encoding::text, registry::Registry};

pub use http::measure_http;
pub(crate) use model::{BatchTimes, End, RequestMeter};
pub use model::{ModelTelemetry, Tally};
pub use window::LONGEST_WINDOW;

use crate::driver::Clock;

/// The content type of [`Telemetry::metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A handle to all measurements. Clones share them.
#[derive(Clone, Debug)]
pub struct Telemetry {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    models: Models,
    gpus: gpus::Gpus,
    http: http::HttpDurations,
    registry: Registry,
}

/// The models that are measured.
#[derive(Clone, Debug, Default)]
struct Models(Arc<RwLock<BTreeMap<ModelId, Arc<ModelTelemetry>>>>);

impl Models {
    fn all(&self) -> Vec<Arc<ModelTelemetry>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }
}

impl Telemetry {
    /// Without models.
    pub(crate) fn new(clock: Clock) -> Self {
        let mut registry = Registry::default();
        let models = Models::default();
        registry.register_collector(Box::new(models.clone()));
        let gpus = gpus::Gpus::default();
        registry.register_collector(Box::new(gpus.clone()));
        let http = http::HttpDurations::register(&mut registry);
        Self {
            shared: Arc::new(Shared {
                clock,
                models,
                gpus,
                http,
                registry,
            }),
        }
    }

    /// The measurements of a model, from zero if there are none.
    pub(crate) fn model(&self, model: &ModelId) -> Arc<ModelTelemetry> {
        let mut models = self
            .shared
            .models
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let begin = || Arc::new(ModelTelemetry::new(model.clone(), self.shared.clock));
        Arc::clone(models.entry(model.clone()).or_insert_with(begin))
    }

    /// Drops the measurements of a model.
    pub(crate) fn forget(&self, model: &ModelId) {
        self.shared
            .models
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(model);
    }

    /// Takes what a node's agent read of its GPUs, in the place of what it read before.
    pub(crate) fn set_gpus(&self, node: &NodeName, gpus: Vec<GpuStatus>) {
        self.shared.gpus.set(node, gpus);
    }

    /// How the models fared in the last `window`, at most [`LONGEST_WINDOW`].
    pub(crate) fn goodput(&self, window: Duration) -> Vec<ModelGoodput> {
        self.shared
            .models
            .all()
            .iter()
            .map(|model| model.goodput(window))
            .collect()
    }

    /// Everything in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        let mut buffer = String::new();
        text::encode_registry(&mut buffer, &self.shared.registry)
            .expect("writing to a string does not fail");
        buffer
    }

    fn clock(&self) -> Clock {
        self.shared.clock
    }

    fn http(&self) -> &http::HttpDurations {
        &self.shared.http
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> ModelId {
        text.parse().unwrap()
    }

    #[test]
    fn a_request_is_counted_once_where_it_ended() {
        let clock = Clock::start();
        let telemetry = Telemetry::new(clock);
        let model = telemetry.model(&id("m:3"));
        let begin = || model.begin(clock.now(), Duration::from_secs(10));
        begin().end(End::Answered);
        begin().end(End::Refused);
        begin().end(End::Failed);
        drop(begin());
        model.begin(clock.now(), Duration::ZERO).end(End::Answered);

        let text = telemetry.metrics_text();
        let labels = r#"model="m",version="3""#;
        for line in [
            format!("nv_inference_request_success{{{labels}}} 2"),
            format!("nv_inference_request_failure{{{labels},reason=\"REJECTED\"}} 1"),
            format!("nv_inference_request_failure{{{labels},reason=\"CANCELED\"}} 1"),
            format!("nv_inference_request_failure{{{labels},reason=\"BACKEND\"}} 1"),
            format!("packhorse_slo_met_total{{{labels}}} 1"),
            format!("packhorse_slo_missed_total{{{labels},cause=\"late\"}} 1"),
            format!("packhorse_slo_missed_total{{{labels},cause=\"refused\"}} 1"),
            "# TYPE nv_inference_request_success counter".to_owned(),
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        let goodput = telemetry.goodput(Duration::from_secs(10)).remove(0);
        assert!((goodput.offered_rps - 5.0).abs() < 1e-9, "{goodput:?}");
        assert!((goodput.goodput_rps - 1.0).abs() < 1e-9, "{goodput:?}");
        assert_eq!(goodput.dropped, 1);
    }

    #[test]
    fn a_removed_model_takes_its_series_along() {
        let telemetry = Telemetry::new(Clock::start());
        telemetry.model(&id("gone:1"));
        telemetry.model(&id("stays:1"));
        telemetry.forget(&id("gone:1"));
        let text = telemetry.metrics_text();
        assert!(!text.contains("gone"));
        assert!(text.contains("stays"));
        assert!(telemetry.goodput(LONGEST_WINDOW).len() == 1);
    }
}

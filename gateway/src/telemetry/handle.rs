//! The handle to all measurements.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::HeaderMap;
use packhorse_api::{ModelGoodput, agent::GpuStatus};
use packhorse_cluster::{DeviceId, ModelId, NodeName};
use packhorse_control::{MissedRequests, RequestCounts, ShapeCounts};
use packhorse_history::ModelSample;
use prometheus_client::{encoding::text, registry::Registry};

use super::{
    cluster_metrics::{ClusterMetrics, ClusterState},
    engine_metrics::EngineMetrics,
    gpu_metrics::GpuMetrics,
    http_durations::HttpDurations,
    key_metrics::KeyMetrics,
    missed_counter::MissedCounter,
    model::ModelTelemetry,
    models::Models,
    otel::{RequestIdentity, Tracer},
    prediction_metrics::{PredictionMetrics, Predictions},
    rejected_requests::RejectedRequests,
    replica_metrics::{ReplicaMetrics, ReplicaState},
    replica_weights::ReplicaWeights,
    request_log::RequestLog,
    stage_histogram::Buckets,
    tls_metrics::TlsMetrics,
};
use crate::{
    clock::Clock, keys::Keyring, memory::MemoryBudget, prediction_cache::PredictionCache,
    serve::Certificate,
};

/// The content type of [`Telemetry::metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The settings of the measurements.
#[derive(Clone, Debug, Default)]
pub struct TelemetryConfig {
    /// The exporter of traces, if there is one.
    pub tracer: Option<Tracer>,
    /// The buckets of the histograms on `/metrics`.
    pub buckets: Buckets,
    /// The API keys, if their requests are counted.
    pub keys: Option<Keyring>,
}

/// A handle to all measurements. Clones share them.
#[derive(Clone, Debug)]
pub struct Telemetry {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    models: Models,
    requests: RequestLog,
    rejected: RejectedRequests,
    missed: Mutex<MissedCounter>,
    tracer: Option<Tracer>,
    gpus: GpuMetrics,
    predictions: PredictionMetrics,
    cluster: ClusterMetrics,
    replicas: ReplicaMetrics,
    weights: ReplicaWeights,
    engines: EngineMetrics,
    http: HttpDurations,
    tls: TlsMetrics,
    registry: Registry,
}

impl Telemetry {
    /// Creates measurements without models.
    pub(crate) fn new(
        clock: Clock,
        (memory, kept): (MemoryBudget, PredictionCache),
        config: TelemetryConfig,
    ) -> Self {
        let TelemetryConfig {
            tracer,
            buckets,
            keys,
        } = config;
        let mut registry = Registry::default();
        let models = Models::new(buckets);
        registry.register_collector(Box::new(models.clone()));
        let gpus = GpuMetrics::default();
        registry.register_collector(Box::new(gpus.clone()));
        let predictions = PredictionMetrics::default();
        registry.register_collector(Box::new(predictions.clone()));
        let cluster = ClusterMetrics::default();
        registry.register_collector(Box::new(cluster.clone()));
        let replicas = ReplicaMetrics::default();
        registry.register_collector(Box::new(replicas.clone()));
        let weights = ReplicaWeights::default();
        registry.register_collector(Box::new(weights.clone()));
        registry.register_collector(Box::new(memory));
        registry.register_collector(Box::new(kept));
        let tls = TlsMetrics::default();
        registry.register_collector(Box::new(tls.clone()));
        if let Some(keys) = keys {
            registry.register_collector(Box::new(KeyMetrics::new(keys)));
        }
        if let Some(tracer) = &tracer {
            registry.register_collector(Box::new(tracer.clone()));
        }
        let http = HttpDurations::register(&mut registry);
        let engines = EngineMetrics::register(&mut registry);
        Self {
            shared: Arc::new(Shared {
                clock,
                models,
                requests: RequestLog::default(),
                rejected: RejectedRequests::default(),
                missed: Mutex::default(),
                tracer,
                gpus,
                predictions,
                cluster,
                replicas,
                weights,
                engines,
                http,
                tls,
                registry,
            }),
        }
    }

    /// Returns the weights of replicas in pools.
    pub(crate) fn weights(&self) -> &ReplicaWeights {
        &self.shared.weights
    }

    /// Returns the measurements of a model; they begin at zero if there are none.
    pub(crate) fn model(&self, model: &ModelId) -> Arc<ModelTelemetry> {
        let Shared {
            models,
            clock,
            requests,
            tracer,
            ..
        } = &*self.shared;
        models.get_or_insert(model, *clock, requests, tracer.as_ref())
    }

    /// Removes the measurements of a model.
    pub(crate) fn remove_model(&self, model: &ModelId) {
        self.shared.models.remove(model);
    }

    /// Returns the counts of the requests of all models.
    pub(crate) fn request_counts(&self) -> BTreeMap<ModelId, RequestCounts> {
        let models = self.shared.models.all();
        let counts = models.iter();
        counts
            .map(|model| (model.model.clone(), model.request_counts()))
            .collect()
    }

    /// Returns the counts of the missed requests of all models with some.
    pub(crate) fn missed_requests(&self) -> BTreeMap<ModelId, MissedRequests> {
        let models = self.shared.models.all();
        let present: BTreeSet<&ModelId> = models.iter().map(|model| &model.model).collect();
        // A panic of another reader has at worst lost some counts.
        let missed = self.shared.missed.lock();
        let mut missed = missed.unwrap_or_else(PoisonError::into_inner);
        missed.read(&self.shared.requests, |model| present.contains(model))
    }

    /// Returns the counted shapes of the batches of all models with variable inputs.
    pub(crate) fn shape_counts(&self) -> BTreeMap<ModelId, ShapeCounts> {
        let models = self.shared.models.all();
        let counts = models
            .iter()
            .map(|model| (model.model.clone(), model.shapes.counts()));
        counts.filter(|(_, counts)| counts.rows > 0).collect()
    }

    /// Returns the tenants of every model that were paused a short while ago because their requests ended its workers.
    pub(crate) fn paused_tenants(&self) -> BTreeMap<ModelId, Vec<String>> {
        let models = self.shared.models.all();
        let paused = models
            .iter()
            .map(|model| (model.model.clone(), model.paused_tenants()));
        paused.filter(|(_, tenants)| !tenants.is_empty()).collect()
    }

    /// Returns the requests that ended lately.
    pub(crate) fn requests(&self) -> &RequestLog {
        &self.shared.requests
    }

    /// Returns the requests that were refused before they reached a model.
    pub(crate) fn rejected(&self) -> &RejectedRequests {
        &self.shared.rejected
    }

    /// Returns the identity of a new request with these headers.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> RequestIdentity {
        let tracer = self.shared.tracer.as_ref();
        RequestIdentity::new(headers, tracer.map(Tracer::ratio))
    }

    /// Replaces what the plan predicts.
    pub(crate) fn set_predictions(&self, predictions: Predictions) {
        self.shared.predictions.set(predictions);
    }

    /// Sets the certificates of the listeners.
    pub(crate) fn set_certificates(&self, certificates: Vec<Certificate>) {
        self.shared.tls.set(certificates);
    }

    /// Replaces the state of the cluster.
    pub(crate) fn set_cluster(&self, state: ClusterState) {
        self.shared.cluster.set(state);
    }

    /// Replaces the replicas and devices of the cluster.
    pub(crate) fn set_replicas(&self, state: ReplicaState) {
        self.shared.replicas.set(state);
    }

    /// Sets the numbers of replicas that each serving engine decides for, by the engines' numbers.
    pub(crate) fn set_engine_replicas(&self, replicas: impl Iterator<Item = usize>) {
        self.shared.engines.set_replicas(replicas);
    }

    /// Counts models that went from one serving engine to another.
    pub(crate) fn count_moved_models(&self, models: usize) {
        self.shared.engines.count_moved(models);
    }

    /// Records a time for which the serving engines were stopped.
    pub(crate) fn record_engine_pause(&self, pause: Duration) {
        self.shared.engines.record_pause(pause);
    }

    /// Replaces the readings of a node's GPUs.
    pub(crate) fn set_gpus(&self, node: &NodeName, gpus: Vec<GpuStatus>) {
        self.shared.gpus.set(node, gpus);
    }

    /// Returns the last readings of a node's GPUs.
    pub(crate) fn gpus(&self, node: &NodeName) -> Vec<GpuStatus> {
        self.shared.gpus.get(node)
    }

    /// Returns the models' goodput in the last `window`, at most [`super::LONGEST_WINDOW`].
    pub(crate) fn goodput(&self, window: Duration) -> Vec<ModelGoodput> {
        self.shared
            .models
            .all()
            .iter()
            .map(|model| model.goodput(window))
            .collect()
    }

    /// Returns what happened to the requests of each model in these seconds since the start of the clock.
    pub(crate) fn model_samples(
        &self,
        seconds: &RangeInclusive<u64>,
    ) -> BTreeMap<ModelId, ModelSample> {
        let models = self.shared.models.all();
        let samples = models.iter();
        samples
            .map(|model| (model.model.clone(), model.sample(seconds.clone())))
            .collect()
    }

    /// Returns the generation of the current plan; none before the first.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.shared.cluster.generation()
    }

    /// Returns the memory that the workers on each device reported, in bytes.
    pub(crate) fn device_memory(&self) -> BTreeMap<DeviceId, u64> {
        self.shared.replicas.device_memory()
    }

    /// Returns all metrics in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        let mut buffer = String::new();
        text::encode_registry(&mut buffer, &self.shared.registry)
            .expect("writing to a string does not fail");
        buffer
    }

    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock
    }

    pub(super) fn http(&self) -> &HttpDurations {
        &self.shared.http
    }
}

#[cfg(test)]
mod tests {
    use packhorse_api::CacheUse;
    use packhorse_cluster::Time;
    use packhorse_serving::{Refusal, RequestOutcome};

    use super::*;
    use crate::telemetry::{CountAndTime, LONGEST_WINDOW, RequestCourse};

    fn nothing() -> (MemoryBudget, PredictionCache) {
        (MemoryBudget::new(0), PredictionCache::new(0))
    }

    fn id(text: &str) -> ModelId {
        text.parse().unwrap()
    }

    #[test]
    fn a_request_is_counted_once_where_it_ended() {
        let clock = Clock::start();
        let telemetry = Telemetry::new(clock, nothing(), TelemetryConfig::default());
        let model = telemetry.model(&id("m:3"));
        let course = RequestCourse::default();
        let begin = || model.begin_request(clock.now(), Duration::from_secs(10), 1, false);
        begin().end(RequestOutcome::Answered, course);
        begin().end(RequestOutcome::Refused(Refusal::NoReplica), course);
        begin().end(RequestOutcome::Failed, course);
        drop(begin());
        model
            .begin_request(clock.now(), Duration::ZERO, 1, false)
            .end(RequestOutcome::Answered, course);

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
        assert!((goodput.refused_rps - 1.0).abs() < 1e-9, "{goodput:?}");
        assert!((goodput.late_rps - 1.0).abs() < 1e-9, "{goodput:?}");
        assert!((goodput.failed_rps - 1.0).abs() < 1e-9, "{goodput:?}");
        // What was cancelled, or is in flight, is neither in time nor missed.
        assert_eq!(goodput.share_in_time(), Some(0.25));
    }

    #[test]
    fn a_request_has_its_rows_and_one_that_is_refused_unread_as_many_as_others_have() {
        let clock = Clock::start();
        let telemetry = Telemetry::new(clock, nothing(), TelemetryConfig::default());
        let model = telemetry.model(&id("m:1"));
        let identity = || RequestIdentity::new(&HeaderMap::new(), None);
        model.record_refusal(clock.now(), Duration::ZERO, identity(), false, "no memory");
        for (rows, for_family) in [(32, false), (30, true)] {
            let meter = model.begin_request(clock.now(), Duration::from_secs(10), rows, for_family);
            meter.end(RequestOutcome::Answered, RequestCourse::default());
        }
        let counts = model.request_counts();
        assert_eq!(
            (counts.arrived, counts.within_slo, counts.missed),
            (3, 2, 1)
        );
        assert_eq!(counts.rows_arrived, 1 + 32 + 30);
        assert_eq!((counts.rows_within_slo, counts.rows_for_family), (62, 30));
        model.record_refusal(clock.now(), Duration::ZERO, identity(), false, "no memory");
        assert_eq!(model.request_counts().rows_arrived, 63 + 21);
    }

    #[test]
    fn a_hit_is_answered_and_counts_neither_in_the_planned_rate_nor_in_the_goodput() {
        let clock = Clock::start();
        let telemetry = Telemetry::new(clock, nothing(), TelemetryConfig::default());
        let model = telemetry.model(&id("m:1"));
        let course = |cache| RequestCourse {
            cache: Some(cache),
            ..RequestCourse::default()
        };
        let long = Duration::from_secs(10);
        let miss = model.begin_request(clock.now(), long, 2, false);
        miss.end(RequestOutcome::Answered, course(CacheUse::Miss));
        let counts = model.request_counts();
        let goodput = telemetry.goodput(long).remove(0);
        for (allowed, outcome) in [
            (long, RequestOutcome::Answered),
            (Duration::ZERO, RequestOutcome::Answered),
            (long, RequestOutcome::Failed),
        ] {
            let hit = model.begin_hit(clock.now(), allowed, 3);
            hit.end(outcome, course(CacheUse::Hit));
        }
        let hits = RequestCounts { hits: 3, ..counts };
        assert_eq!(model.request_counts(), hits);
        assert_eq!(telemetry.goodput(long).remove(0), goodput);
        assert!(telemetry.missed_requests().is_empty());
        assert_eq!(model.success().count(), 3);
        assert_eq!(model.failed().0, 1);
        assert_eq!(model.cache().map(CountAndTime::count), [3, 1]);
    }

    #[test]
    fn a_removed_model_takes_its_series_along() {
        let telemetry = Telemetry::new(Clock::start(), nothing(), TelemetryConfig::default());
        telemetry.model(&id("gone:1"));
        telemetry.model(&id("stays:1"));
        assert!(!telemetry.metrics_text().contains("stays"), "an idle model");
        for model in ["gone:1", "stays:1"] {
            let model = telemetry.model(&id(model));
            let meter = model.begin_request(Time::ZERO, Duration::ZERO, 1, false);
            meter.end(RequestOutcome::Expired, RequestCourse::default());
        }
        telemetry.remove_model(&id("gone:1"));
        let text = telemetry.metrics_text();
        assert!(!text.contains("gone"));
        assert!(text.contains("stays"));
        assert!(telemetry.goodput(LONGEST_WINDOW).len() == 1);
    }
}

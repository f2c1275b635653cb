//! The metrics of all models that have had a request, in Prometheus' text format.

use std::fmt::Error;
use std::sync::{Arc, atomic::Ordering::Relaxed};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::{
    count_and_time::CountAndTime,
    model::{FAILURE_REASONS, MISS_CAUSES, ModelTelemetry, Stage},
    models::Models,
    samples::encode_samples,
};

type Labels = Vec<(&'static str, String)>;

fn labels(model: &ModelTelemetry) -> Labels {
    vec![
        ("model", model.model.name.to_string()),
        ("version", model.model.version.to_string()),
    ]
}

fn with_label(mut labels: Labels, name: &'static str, value: &str) -> Labels {
    labels.push((name, value.to_owned()));
    labels
}

fn micros(time: &CountAndTime) -> u64 {
    time.nanos() / 1000
}

type ReadCounter = fn(&ModelTelemetry) -> u64;
/// A counter with one sample per model: its name, its description, and its reading.
type Counter = (&'static str, &'static str, ReadCounter);

fn encode_counters<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    counters: &[Counter],
    models: &(impl Iterator<Item = &'a Arc<ModelTelemetry>> + Clone),
) -> Result<(), Error> {
    for (name, help, reading) in counters {
        let counts = models.clone().map(|model| (labels(model), reading(model)));
        encode_samples(encoder, name, help, MetricType::Counter, counts)?;
    }
    Ok(())
}

/// The counters with one sample per model, in the order in which they are written.
const COUNTERS: [Counter; 13] = [
    (
        "nv_inference_request_success",
        "Requests that were answered.",
        |m| m.success.count(),
    ),
    ("nv_inference_count", "Rows that were computed.", |m| {
        m.inferences()
    }),
    (
        "nv_inference_exec_count",
        "Batches that were computed.",
        |m| m.executions(),
    ),
    (
        "nv_inference_request_duration_us",
        "Total time of answered requests from their head to the answer, in microseconds.",
        |m| micros(&m.success),
    ),
    (
        "nv_inference_queue_duration_us",
        "Total time of requests in the queue, in microseconds.",
        |m| micros(&m.queue),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Total time of copying to the device, added once per request, in microseconds.",
        |m| micros(&m.compute_input),
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Total time of computing, added once per request, in microseconds.",
        |m| micros(&m.compute_infer),
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Total time of copying from the device, added once per request, in microseconds.",
        |m| micros(&m.compute_output),
    ),
    (
        "packhorse_slo_met_total",
        "Requests that were computed and answered within their model's SLO.",
        |m| m.slo_met.load(Relaxed),
    ),
    (
        "packhorse_replica_ejections_total",
        "Replicas that were ejected because their batches failed while others computed theirs.",
        |m| m.ejections.load(Relaxed),
    ),
    (
        "packhorse_weights_loads_total",
        "Times that weights were copied to a device because requests waited for them.",
        |m| m.weights_loads.load(Relaxed),
    ),
    (
        "packhorse_weights_cold_loads_total",
        "Times among these that a program was loaded from its file.",
        |m| m.weights_cold_loads.load(Relaxed),
    ),
    (
        "packhorse_weights_evictions_total",
        "Times that weights left a device because others needed its memory.",
        |m| m.weights_evictions.load(Relaxed),
    ),
];

/// The same for models with a cache.
const CACHE_COUNTERS: [Counter; 4] = [
    (
        "nv_cache_num_hits_per_model",
        "Requests that were answered from the cache of predictions.",
        |m| m.cache_hits.count(),
    ),
    (
        "nv_cache_num_misses_per_model",
        "Requests that were looked for in the cache of predictions and not found.",
        |m| m.cache_misses.count(),
    ),
    (
        "nv_cache_hit_duration_per_model",
        "Total time of looking for what was found in the cache, in microseconds.",
        |m| micros(&m.cache_hits),
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total time of looking for what was not found in the cache, in microseconds.",
        |m| micros(&m.cache_misses),
    ),
];

impl Collector for Models {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut models = self.all();
        // Thousands of models that nobody uses would otherwise make megabytes of zeros.
        models.retain(|model| !model.is_idle());
        encode_counters(&mut encoder, &COUNTERS, &models.iter())?;
        let cached = models.iter().filter(|model| model.was_looked_for());
        encode_counters(&mut encoder, &CACHE_COUNTERS, &cached)?;
        let seconds = |model: &ModelTelemetry| model.weights_load_micros.load(Relaxed) as f64 / 1e6;
        encode_samples(
            &mut encoder,
            "packhorse_weights_load_seconds_total",
            "Time from the order to copy weights to a device until they were there.",
            MetricType::Counter,
            models.iter().map(|model| (labels(model), seconds(model))),
        )?;
        let accurate = models.iter().filter_map(|model| {
            let family = &model.variant()?.family;
            let labels = with_label(labels(model), "family", family.as_str());
            Some((labels, model.accurate()))
        });
        encode_samples(
            &mut encoder,
            "packhorse_accurate_answers_total",
            "Answers of the variants of families within the SLO, each counted by the accuracy of its variant, from 0 to 1.",
            MetricType::Counter,
            accurate,
        )?;
        let failures = models.iter().flat_map(|model| {
            let by_reason = FAILURE_REASONS.iter().zip(&model.failures);
            by_reason.map(|(reason, failures)| {
                let labels = with_label(labels(model), "reason", reason);
                (labels, failures.count())
            })
        });
        encode_samples(
            &mut encoder,
            "nv_inference_request_failure",
            "Requests that were not answered.",
            MetricType::Counter,
            failures,
        )?;
        let missed = models.iter().flat_map(|model| {
            let by_cause = MISS_CAUSES.iter().zip(&model.slo_missed);
            by_cause.map(|(cause, count)| {
                let labels = with_label(labels(model), "cause", cause);
                (labels, count.load(Relaxed))
            })
        });
        encode_samples(
            &mut encoder,
            "packhorse_slo_missed_total",
            "Requests that were not answered within their model's SLO.",
            MetricType::Counter,
            missed,
        )?;
        let paused = models.iter().flat_map(|model| {
            let tenants = model.tenant_pauses().into_iter();
            tenants.map(|(tenant, pauses)| (with_label(labels(model), "tenant", &tenant), pauses))
        });
        encode_samples(
            &mut encoder,
            "packhorse_tenant_pauses_total",
            "Pauses of clients whose requests ended workers of the model or had them hang, by API key or address.",
            MetricType::Counter,
            paused,
        )?;
        let pending = models.iter();
        encode_samples(
            &mut encoder,
            "nv_inference_pending_request_count",
            "Requests in the queue.",
            MetricType::Gauge,
            pending.map(|model| (labels(model), model.pending.load(Relaxed))),
        )?;
        let mut metric = encoder.encode_descriptor(
            "packhorse_stage_duration_seconds",
            "Time of each stage in seconds; receive, decode, tokenize, lookup, inbox, batch and queue are observed per request, the others per batch.",
            None,
            MetricType::Histogram,
        )?;
        for model in &models {
            for ((kind, stage), histogram) in Stage::ALL.iter().zip(&model.stages) {
                if *kind == Stage::Lookup && !model.was_looked_for() {
                    continue;
                }
                let labels = with_label(labels(model), "stage", stage);
                histogram.encode(&mut metric, &labels, self.buckets)?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "packhorse_request_duration_seconds",
            "Time of answered requests from their head to the answer, in seconds.",
            None,
            MetricType::Histogram,
        )?;
        for model in &models {
            let labels = labels(model);
            model.latencies.encode(&mut metric, &labels, self.buckets)?;
        }
        Ok(())
    }
}

//! The gateway's measurements: counters for Prometheus and Triton's statistics, sliding windows for goodput, the requests that ended
//! lately, their traces for OpenTelemetry, and the agents' readings of their GPUs.
//!
//! All label values come from registered objects: nothing that a client sends becomes a label, and a model that is removed takes
//! its series along.

mod batch_shapes;
mod cluster_metrics;
mod count_and_time;
mod engine_metrics;
mod gpu_metrics;
mod handle;
mod history_samples;
mod http_durations;
mod http_middleware;
mod key_metrics;
mod latency_histogram;
mod memory_metrics;
mod missed_counter;
mod model;
mod model_metrics;
mod models;
mod otel;
mod paused_tenants;
mod prediction_cache_metrics;
mod prediction_metrics;
mod rejected_requests;
mod replica_metrics;
mod replica_weights;
mod request_end;
mod request_log;
mod request_texts;
mod request_views;
mod samples;
mod sliding_window;
mod stage_histogram;
mod tls_metrics;
mod trace;
mod which_requests;

pub(crate) use cluster_metrics::ClusterState;
pub use count_and_time::CountAndTime;
pub use handle::{METRICS_CONTENT_TYPE, Telemetry, TelemetryConfig};
pub(crate) use http_middleware::HttpMeasurement;
pub use http_middleware::measure_http;
pub use model::ModelTelemetry;
pub(crate) use model::{BatchIdentity, BatchTimes, EndedRequest, RequestMeter, Waits};
pub use otel::{
    EndpointError, OtlpEndpoint, SampleRatio, SampleRatioError, TraceExporter, TraceQueue,
    TraceSettings, Tracer,
};
pub(crate) use otel::{REQUEST_ID, RequestIdentity};
pub(crate) use prediction_metrics::Predictions;
pub(crate) use rejected_requests::RejectedRequest;
pub(crate) use replica_metrics::{DeviceMemory, ReplicaState};
pub(crate) use replica_weights::ReplicaWeights;
pub(crate) use request_log::{
    BatchOutcome, BatchStages, ReplicaNumber, RequestBatch, RequestCourse,
};
pub(crate) use request_views::{batch_view, request, requests, stages_view};
pub use sliding_window::LONGEST_WINDOW;
pub use stage_histogram::Buckets;
pub(crate) use trace::{TraceWindow, write_trace};
pub(crate) use which_requests::WhichRequests;

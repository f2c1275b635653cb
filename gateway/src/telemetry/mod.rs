//! The gateway's measurements: counters for Prometheus and Triton's statistics, sliding windows for goodput, and the agents'
//! readings of their GPUs.
//!
//! All label values come from registered objects: nothing that a client sends becomes a label, and a model that is removed takes
//! its series along.

mod count_and_time;
mod gpu_metrics;
mod handle;
mod http_durations;
mod http_middleware;
mod latency_histogram;
mod memory_metrics;
mod model;
mod model_metrics;
mod models;
mod sliding_window;

pub use count_and_time::CountAndTime;
pub use handle::{METRICS_CONTENT_TYPE, Telemetry};
pub use http_middleware::measure_http;
pub use model::ModelTelemetry;
pub(crate) use model::{BatchTimes, RequestMeter};
pub use sliding_window::LONGEST_WINDOW;

//! What the data plane measures of itself: counters for Prometheus and Triton's statistics, windows for goodput.

/// The content type of [`crate::driver::DataPlane::metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

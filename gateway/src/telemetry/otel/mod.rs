//! Traces for OpenTelemetry: spans of requests and batches, sent over OTLP/HTTP.
//!
//! Spans are made from the records of requests that have ended (`request_log`), so nothing is measured twice. Without
//! `--otlp-endpoint` a request costs nothing but its id; with it, a request that is chosen costs one send to a bounded queue. The choice
//! falls at the end: requests that missed their SLO are always exported, of the others a part.

mod context;
mod exporter;
mod identity;
mod otlp;
mod sample_ratio;
mod spans;
mod tracer;

pub use exporter::{EndpointError, OtlpEndpoint, TraceExporter, TraceQueue, TraceSettings};
pub(crate) use identity::{REQUEST_ID, RequestIdentity};
pub use sample_ratio::{SampleRatio, SampleRatioError};
pub use tracer::Tracer;

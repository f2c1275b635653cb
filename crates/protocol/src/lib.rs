//! Encoding and decoding of the Open Inference Protocol, version 2: requests, responses, metadata. Without HTTP. Also of the rows of version 1.
//!
//! A body is a [`ByteRope`] and the value of one header, [`HEADER_LENGTH`]. A gateway reads an [`InferRequest`] for a model's
//! [`Program`](packhorse_cluster::Program) and writes an [`InferResponse`]; a client writes a [`RequestMessage`] and reads an
//! [`InferResponse`]. Binary tensors are never copied: they are slices of the body.
//!
//! The crate is pure, and safe on any bytes: the memory that reading needs is bounded by the length of the input.

mod error;
mod field_path;
mod infer;
mod json;
mod json_tensor;
mod message;
mod metadata;
mod number;
mod region;
mod request;
mod response;
mod rope;
mod row_reader;
mod row_text;
mod rows;
mod short_number;
mod statistics;
mod tensor;
mod tensor_object;
#[cfg(test)]
mod tests;

pub use error::{EncodeError, JsonError, MessageError, RequestError, TensorError};
pub use infer::{InferRequest, RequestedOutput};
pub use json_tensor::{NonFinite, json_list_bound};
pub use message::{Limits, Message};
pub use metadata::{
    ClassesMetadata, DynamicBatching, ErrorBody, ModelConfig, ModelMetadata, ModelReady, PLATFORM,
    RawInputKind, RawInputMetadata, RegisterSystemSharedMemory, RepositoryEntry,
    RepositoryIndexRequest, RepositoryState, ServerLive, ServerMetadata, ServerReady,
    SystemSharedMemory, TensorConfig, TensorMetadata,
};
pub use region::{NoRegions, RegionRange, Regions};
pub use request::{OutputRequest, RequestMessage};
pub use response::InferResponse;
pub use rope::ByteRope;
pub use row_text::RowWriter;
pub use rows::{Rows, is_oip};
pub use statistics::{
    BatchStatistics, DurationStatistics, InferenceStatistics, ModelStatistics, Statistics,
};
pub use tensor::{Element, Form, Tensor};

/// The HTTP header with the number of bytes of a body's JSON part; the other bytes are binary tensors.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

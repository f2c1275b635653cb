//! Errors of messages. Every text may be sent to the peer: it names the field and the limit, and nothing internal.

use packhorse_cluster::{Datatype, OversizedDim, Shape, ShapeError, UndersizedDim, UnequalDims};

/// The error for text that is not JSON, or not the expected JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {at}")]
pub struct JsonError {
    /// The problem.
    pub problem: String,
    /// The byte offset in the JSON part, from 0.
    pub at: usize,
}

/// A tensor that is invalid for every model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum TensorError {
    #[error("{0} is missing")]
    MissingField(&'static str),
    #[error("{field}: {problem}")]
    Field {
        field: &'static str,
        problem: String,
    },
    #[error("shape: {0}")]
    Shape(ShapeError),
    #[error("{0}")]
    Json(JsonError),
    #[error("data[{index}]: expected {expected} for {datatype}, found {found}")]
    Value {
        index: u64,
        expected: &'static str,
        datatype: Datatype,
        found: String,
    },
    #[error("data[{index}]: {found} is out of the range of {datatype}")]
    OutOfRange {
        index: u64,
        datatype: Datatype,
        found: String,
    },
    #[error("data: a list of length {found}, but shape {shape} requires {expected}")]
    ListLength {
        found: String,
        expected: u64,
        shape: Shape,
    },
    #[error(
        "data: expected a list at depth {depth}, found {found}; nested lists must match shape {shape}"
    )]
    Nesting {
        depth: usize,
        found: String,
        shape: Shape,
    },
    #[error("{0} has no JSON form: send it as binary data")]
    BinaryOnly(Datatype),
    #[error(
        "no data: expected \"data\", parameters.binary_data_size or parameters.shared_memory_region"
    )]
    NoData,
    #[error(
        "expected one of \"data\", parameters.binary_data_size and parameters.shared_memory_region"
    )]
    DataTwice,
    #[error("binary_data_size is {size}, but only {left} bytes are left in the body")]
    Truncated { size: u64, left: u64 },
    #[error("shared memory region {region:?}: {problem}")]
    Region { region: String, problem: String },
    #[error("the data has {bytes} bytes, but {datatype} {shape} requires {expected}")]
    Size {
        bytes: u64,
        expected: u64,
        datatype: Datatype,
        shape: Shape,
    },
    #[error("byte {index} of BOOL data is {value}, expected 0 or 1")]
    Bool { index: usize, value: u8 },
    #[error("{0}")]
    Elements(String),
}

/// The error for bytes that are not a valid request or response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum MessageError {
    #[error("the JSON part has {bytes} bytes, over the limit of {limit}")]
    HeadTooLong { bytes: u64, limit: u64 },
    #[error(
        "Inference-Header-Content-Length is {header_length}, but the body has only {body} bytes"
    )]
    HeaderLength { header_length: u64, body: u64 },
    #[error("invalid JSON: {0}")]
    Json(JsonError),
    #[error(
        "invalid JSON in the first {header_length} bytes, as given by Inference-Header-Content-Length: {problem}"
    )]
    HeadJson {
        header_length: u64,
        problem: JsonError,
    },
    #[error("{field}: {problem}")]
    Field { field: String, problem: String },
    #[error("{tensor}: {problem}")]
    Tensor {
        tensor: String,
        problem: TensorError,
    },
    #[error("expected no bytes after the last binary tensor, found {left}")]
    LeftOver { left: u64 },
}

/// The error for a request that does not match its model. Each is a mistake of the client: HTTP status 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum RequestError {
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("input {name:?}: the model has no such input, only {known}")]
    UnknownInput { name: String, known: String },
    #[error("input {name:?}: given twice")]
    DuplicateInput { name: String },
    #[error("input {name:?}: missing")]
    MissingInput { name: String },
    #[error("input {name:?}: datatype {given}, but the model requires {expected}")]
    Datatype {
        name: String,
        given: Datatype,
        expected: Datatype,
    },
    #[error("input {name:?}: shape {given} does not match the model's {expected}")]
    Shape {
        name: String,
        given: Shape,
        expected: String,
    },
    #[error("input {name:?}: {dim}")]
    OversizedDim { name: String, dim: OversizedDim },
    #[error("input {name:?}: {dim}")]
    UndersizedDim { name: String, dim: UndersizedDim },
    #[error("inputs: {0}")]
    UnequalDims(UnequalDims),
    #[error("input {name:?}: a batch of {rows} rows, expected 1 to {limit}")]
    Rows { name: String, rows: u64, limit: u32 },
    #[error("input {name:?}: {rows} rows, but input {other:?} has {others}")]
    UnequalRows {
        name: String,
        rows: u64,
        other: String,
        others: u64,
    },
    #[error("output {name:?}: the model has no such output, only {known}")]
    UnknownOutput { name: String, known: String },
    #[error("output {name:?}: requested twice")]
    DuplicateOutput { name: String },
    #[error("output {name:?}: {datatype} has no JSON form: request it with binary_data")]
    BinaryOnlyOutput { name: String, datatype: Datatype },
    #[error("output {name:?}: classification: {problem}")]
    NoClasses { name: String, problem: &'static str },
    #[error("with Inference-Header-Content-Length 0 the body must be one raw tensor: {0}")]
    Raw(String),
}

/// The error for a message that cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum EncodeError {
    #[error("{name:?}: {datatype} has no JSON form: request it with binary_data")]
    BinaryOnly { name: String, datatype: Datatype },
    #[error(
        "{name:?}: element {index} is {value}, which JSON cannot represent: request it with binary_data, or as null with parameters.non_finite_as_null"
    )]
    NotFinite {
        name: String,
        index: usize,
        value: String,
    },
    #[error(
        "{name:?}: element {index} is not UTF-8, which JSON cannot represent: request it with binary_data"
    )]
    NotUtf8 { name: String, index: usize },
}

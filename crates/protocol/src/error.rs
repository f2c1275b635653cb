//! What can be wrong with a message. Every text is fit for the peer's eyes: it names field and limit, and nothing of ours.

use packhorse_cluster::{Datatype, Shape, ShapeError};

/// Text that is not JSON, or not the JSON that belongs there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {at}")]
pub struct JsonError {
    /// What is wrong.
    pub problem: String,
    /// Where, from 0, in the JSON part.
    pub at: usize,
}

/// What is wrong with one tensor, whatever the model wants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
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
    #[error("data: a list of {found}, where shape {shape} wants {expected}")]
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
        "no data: expected \"data\" or parameters.binary_data_size (shared memory is not supported)"
    )]
    NoData,
    #[error("expected either \"data\" or parameters.binary_data_size, not both")]
    DataTwice,
    #[error("binary_data_size is {size}, but only {left} bytes are left in the body")]
    Truncated { size: u64, left: u64 },
    #[error("{bytes} bytes, but {datatype} {shape} takes {expected}")]
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

/// Why bytes are no message, request or response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
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
        "invalid JSON in the {header_length} bytes that Inference-Header-Content-Length names: {problem}"
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
    #[error("{left} bytes are left over behind the last binary tensor")]
    LeftOver { left: u64 },
}

/// Why a request cannot be given to a model. The client's fault, each of them: status 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum RequestError {
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("input {name:?}: the model has no such input, but {known}")]
    UnknownInput { name: String, known: String },
    #[error("input {name:?}: given twice")]
    DuplicateInput { name: String },
    #[error("input {name:?}: missing")]
    MissingInput { name: String },
    #[error("input {name:?}: datatype {given}, but the model wants {expected}")]
    Datatype {
        name: String,
        given: Datatype,
        expected: Datatype,
    },
    #[error("input {name:?}: shape {given} does not fit {expected}")]
    Shape {
        name: String,
        given: Shape,
        expected: String,
    },
    #[error("input {name:?}: a batch of {rows} rows, expected 1 to {limit}")]
    Rows { name: String, rows: u64, limit: u32 },
    #[error("input {name:?}: {rows} rows, but input {other:?} has {others}")]
    UnequalRows {
        name: String,
        rows: u64,
        other: String,
        others: u64,
    },
    #[error("output {name:?}: the model has no such output, but {known}")]
    UnknownOutput { name: String, known: String },
    #[error("output {name:?}: asked for twice")]
    DuplicateOutput { name: String },
    #[error("output {name:?}: {datatype} has no JSON form: ask for binary_data")]
    BinaryOnlyOutput { name: String, datatype: Datatype },
    #[error("Inference-Header-Content-Length 0 announces one raw tensor: {0}")]
    Raw(String),
}

/// Why a message cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum EncodeError {
    #[error("{name:?}: {datatype} has no JSON form: ask for binary_data")]
    BinaryOnly { name: String, datatype: Datatype },
    #[error("{name:?}: element {index} is {value}, which JSON cannot say: ask for binary_data")]
    NotFinite {
        name: String,
        index: usize,
        value: String,
    },
    #[error("{name:?}: element {index} is no UTF-8, which JSON cannot say: ask for binary_data")]
    NotUtf8 { name: String, index: usize },
}

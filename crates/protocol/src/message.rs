//! The common parts of requests and responses: a JSON part with its limits, and binary tensors after it.

use std::fmt;

use bytes::Bytes;
use packhorse_cluster::Program;
use serde::Serialize;

use crate::{
    ByteRope, Form, JsonError, MessageError, Tensor, TensorError, field_path::FieldPath,
    json::Cursor,
};

/// The limits of a message. [`Shape`](packhorse_cluster::Shape) has its own, and the HTTP server limits the whole body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest size of the JSON part, in bytes. It is the only part that is made contiguous, and its numbers can grow fourfold when
    /// they are decoded ("0," becomes 8 bytes).
    pub json_bytes: usize,
    /// The largest size of a request's id, in bytes.
    pub id_bytes: usize,
    /// The largest size of a tensor's name, in bytes.
    pub name_bytes: usize,
    /// The largest number of inputs and the largest number of outputs.
    pub tensors: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            json_bytes: 64 << 20,
            id_bytes: 256,
            name_bytes: 256,
            tensors: Program::MAX_TENSORS,
        }
    }
}

/// An encoded request or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The JSON part.
    pub head: Bytes,
    /// The binary tensors, in declared order.
    pub tensors: ByteRope,
}

impl Message {
    /// Returns the value of `Inference-Header-Content-Length`; `None` if the message is only JSON and needs no such header.
    pub fn header_length(&self) -> Option<u64> {
        (!self.tensors.is_empty()).then_some(self.head.len() as u64)
    }

    /// Returns the value of `Content-Type`.
    pub fn content_type(&self) -> &'static str {
        if self.tensors.is_empty() {
            "application/json"
        } else {
            "application/octet-stream"
        }
    }

    /// Returns the whole body.
    pub fn into_body(self) -> ByteRope {
        let mut body = ByteRope::from(self.head);
        body.append(self.tensors);
        body
    }
}

/// Removes the JSON part from the body and parses it; the binary part stays in the body. Without a header length the whole body is
/// JSON.
pub(crate) fn parse_head<T>(
    body: &mut ByteRope,
    header_length: Option<u64>,
    limit: usize,
    parse: impl FnOnce(&mut Cursor<'_>) -> Result<T, MessageError>,
) -> Result<T, MessageError> {
    let whole = body.len() as u64;
    let bytes = header_length.unwrap_or(whole);
    if bytes > whole {
        return Err(MessageError::HeaderLength {
            header_length: bytes,
            body: whole,
        });
    }
    if bytes > limit as u64 {
        return Err(MessageError::HeadTooLong {
            bytes,
            limit: limit as u64,
        });
    }
    let head = body.split_to(bytes as usize).to_bytes();
    let parsed = Cursor::new(&head)
        .map_err(MessageError::Json)
        .and_then(|mut cursor| {
            let parsed = parse(&mut cursor)?;
            cursor.finish()?;
            Ok(parsed)
        });
    parsed.map_err(|error| match error {
        // The JSON may be valid and its given length wrong: name the length.
        MessageError::Json(problem) if bytes < whole => MessageError::HeadJson {
            header_length: bytes,
            problem,
        },
        error => error,
    })
}

impl From<JsonError> for MessageError {
    fn from(error: JsonError) -> Self {
        Self::Json(error)
    }
}

impl From<JsonError> for TensorError {
    fn from(error: JsonError) -> Self {
        Self::Json(error)
    }
}

/// Returns the error that a field has a problem.
#[cold]
pub(crate) fn field_error<'a>(
    field: impl Into<FieldPath<'a>>,
    problem: &(impl fmt::Display + ?Sized),
) -> MessageError {
    MessageError::Field {
        field: field.into().to_string(),
        problem: problem.to_string(),
    }
}

/// Sets a field that an object may have only once.
pub(crate) fn set_once<'a, T>(
    slot: &mut Option<T>,
    field: impl Into<FieldPath<'a>>,
    value: T,
) -> Result<(), MessageError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(field_error(field, "given twice")),
    }
}

/// Reads a string of at most `limit` bytes.
pub(crate) fn read_text<'a>(
    cursor: &mut Cursor<'_>,
    field: impl Into<FieldPath<'a>>,
    limit: usize,
) -> Result<String, MessageError> {
    let text = match cursor.string() {
        Ok(text) => text,
        Err(problem) => return Err(field_error(field, &problem)),
    };
    if text.len() > limit {
        return Err(field_error(
            field,
            &format!("{} bytes are over the limit of {limit}", text.len()),
        ));
    }
    Ok(text.into_owned())
}

/// Reads a list of at most `limit` objects, each by `item`, which receives the object's place.
pub(crate) fn read_objects<T>(
    cursor: &mut Cursor<'_>,
    field: &str,
    limit: usize,
    mut item: impl FnMut(&mut Cursor<'_>, &FieldPath<'_>) -> Result<T, MessageError>,
) -> Result<Vec<T>, MessageError> {
    let mut items = Vec::new();
    if cursor.peek() != Some(b'[') {
        return Err(field_error(field, &cursor.expected("a list")));
    }
    cursor.list(|cursor, index| {
        if index >= limit {
            return Err(field_error(
                field,
                &format!("more than the limit of {limit}"),
            ));
        }
        let path = FieldPath::Item(field, index);
        if cursor.peek() != Some(b'{') {
            return Err(field_error(path, &cursor.expected("an object")));
        }
        items.push(item(cursor, &path)?);
        Ok(())
    })?;
    Ok(items)
}

/// Joins the JSON part and the tensors in binary form.
pub(crate) fn assemble(head: &impl Serialize, tensors: &[Tensor]) -> Message {
    let head = serde_json::to_vec(head).expect("maps with string keys, strings and finite numbers");
    let mut binary = ByteRope::new();
    for tensor in tensors
        .iter()
        .filter(|tensor| tensor.form() == Form::Binary)
    {
        binary.append(tensor.data().clone());
    }
    Message {
        head: head.into(),
        tensors: binary,
    }
}

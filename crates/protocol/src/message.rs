//! What requests and responses have in common: a JSON part with its limits, and binary tensors behind it.

use std::fmt;

use bytes::Bytes;
use packhorse_cluster::Program;
use serde::Serialize;

use crate::{ByteRope, Form, JsonError, MessageError, Tensor, TensorError, json::Cursor};

/// The limits of a message, beside those of a [`Shape`](packhorse_cluster::Shape) and of the whole body, which the listener sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the JSON part. It is the only part that is made contiguous, and its numbers can grow fourfold when they are
    /// unpacked ("0," becomes 8 bytes).
    pub json_bytes: usize,
    /// Bytes of a request's id.
    pub id_bytes: usize,
    /// Bytes of the name of a tensor.
    pub name_bytes: usize,
    /// Inputs, and outputs.
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

/// A message in bytes: what to post, or to answer with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The JSON part.
    pub head: Bytes,
    /// The binary tensors, in declared order.
    pub tensors: ByteRope,
}

impl Message {
    /// The value of `Inference-Header-Content-Length`; `None` if the message is pure JSON and does without.
    pub fn header_length(&self) -> Option<u64> {
        (!self.tensors.is_empty()).then_some(self.head.len() as u64)
    }

    /// The value of `Content-Type`.
    pub fn content_type(&self) -> &'static str {
        if self.tensors.is_empty() {
            "application/json"
        } else {
            "application/octet-stream"
        }
    }

    /// The whole body.
    pub fn into_body(self) -> ByteRope {
        let mut body = ByteRope::from(self.head);
        body.append(self.tensors);
        body
    }
}

/// Takes the JSON part off the body and gives it to `parse`; the binary part stays in the body. Without a header length all
/// is JSON.
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
        // The JSON may well be right and its announced length wrong.
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

/// The error that something is wrong with this field.
pub(crate) fn field_error(
    field: impl Into<String>,
    problem: &(impl fmt::Display + ?Sized),
) -> MessageError {
    MessageError::Field {
        field: field.into(),
        problem: problem.to_string(),
    }
}

/// Sets what may stand in an object only once.
pub(crate) fn once<T>(slot: &mut Option<T>, field: &str, value: T) -> Result<(), MessageError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(field_error(field, "given twice")),
    }
}

/// Takes a string of at most `limit` bytes.
pub(crate) fn read_text(
    cursor: &mut Cursor<'_>,
    field: &str,
    limit: usize,
) -> Result<String, MessageError> {
    let text = cursor.string().map_err(|e| field_error(field, &e))?;
    if text.len() > limit {
        return Err(field_error(
            field,
            &format!("{} bytes are over the limit of {limit}", text.len()),
        ));
    }
    Ok(text.into_owned())
}

/// Takes a list of objects, each of them by `item`, which is told the object's path.
pub(crate) fn read_objects<T>(
    cursor: &mut Cursor<'_>,
    field: &str,
    limit: usize,
    mut item: impl FnMut(&mut Cursor<'_>, &str) -> Result<T, MessageError>,
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
        let path = format!("{field}[{index}]");
        if cursor.peek() != Some(b'{') {
            return Err(field_error(path, &cursor.expected("an object")));
        }
        items.push(item(cursor, &path)?);
        Ok(())
    })?;
    Ok(items)
}

/// Puts the JSON part and the tensors in binary form together.
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

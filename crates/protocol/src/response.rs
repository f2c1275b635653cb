//! Encoding and decoding of inference responses.

use serde::Serialize;

use crate::{
    ByteRope, EncodeError, Limits, Message, MessageError, Tensor,
    json::Cursor,
    json_tensor::NonFinite,
    message::{assemble, field_error, parse_head, read_objects, read_text, set_once},
    region::NoRegions,
    tensor_object::{DeclaredTensor, TensorHead, complete_all},
};

/// An inference response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferResponse {
    /// The model or family that was requested.
    pub model_name: String,
    /// The version of the model that answered, as a decimal number.
    pub model_version: String,
    /// The request's id; empty if it had none.
    pub id: String,
    /// The variant that answered, if a family was requested. It is the parameter `variant`, as clients show parameters, but not headers.
    pub variant: Option<String>,
    /// The outputs, each with the form in which it is sent.
    pub outputs: Vec<Tensor>,
}

#[derive(Serialize)]
struct EncodedResponse<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<ResponseParameters<'a>>,
    outputs: Vec<TensorHead<'a>>,
}

#[derive(Serialize)]
struct ResponseParameters<'a> {
    variant: &'a str,
}

impl InferResponse {
    /// Writes the response. JSON data is flat and row-major. An output in [`Form::Shared`](crate::Form::Shared) has no data.
    ///
    /// # Errors
    /// An output has the JSON form, but JSON cannot represent it: an infinity, a NaN, or bytes that are not UTF-8. The client must request
    /// binary data instead.
    pub fn encode(&self) -> Result<Message, EncodeError> {
        self.encode_with(NonFinite::Error)
    }

    /// Writes the response, with infinities and NaNs in JSON as `non_finite` says.
    ///
    /// # Errors
    /// As [`InferResponse::encode`].
    pub fn encode_with(&self, non_finite: NonFinite) -> Result<Message, EncodeError> {
        let head = EncodedResponse {
            model_name: &self.model_name,
            model_version: &self.model_version,
            id: &self.id,
            parameters: self
                .variant
                .as_deref()
                .map(|variant| ResponseParameters { variant }),
            outputs: self
                .outputs
                .iter()
                .map(|output| TensorHead::new(output, non_finite))
                .collect::<Result<_, _>>()?,
        };
        Ok(assemble(&head, &self.outputs))
    }

    /// Reads a response. `header_length` is the value of the header `Inference-Header-Content-Length`.
    ///
    /// # Errors
    /// Names the first mistake and its place.
    pub fn parse(
        mut body: ByteRope,
        header_length: Option<u64>,
        limits: &Limits,
    ) -> Result<Self, MessageError> {
        let head = parse_head(&mut body, header_length, limits.json_bytes, |cursor| {
            Head::read(cursor, limits)
        })?;
        let outputs = complete_all(head.outputs, "output", body, &mut NoRegions)?;
        Ok(Self {
            model_name: head.model_name,
            model_version: head.model_version,
            id: head.id,
            variant: head.variant,
            outputs,
        })
    }
}

/// The JSON part of a response.
struct Head {
    model_name: String,
    model_version: String,
    id: String,
    variant: Option<String>,
    outputs: Vec<DeclaredTensor>,
}

impl Head {
    fn read(cursor: &mut Cursor<'_>, limits: &Limits) -> Result<Self, MessageError> {
        let (mut model_name, mut model_version, mut id, mut outputs) = (None, None, None, None);
        let mut variant = None;
        cursor.object(|cursor, key| match key {
            "model_name" => set_once(
                &mut model_name,
                key,
                read_text(cursor, key, limits.name_bytes)?,
            ),
            "model_version" => set_once(
                &mut model_version,
                key,
                read_text(cursor, key, limits.name_bytes)?,
            ),
            "id" => set_once(&mut id, key, read_text(cursor, key, limits.id_bytes)?),
            "outputs" => {
                let read = read_objects(cursor, key, limits.tensors, |cursor, path| {
                    DeclaredTensor::read(cursor, path, limits)
                })?;
                set_once(&mut outputs, key, read)
            }
            "parameters" => cursor.object(|cursor, key| match key {
                "variant" => {
                    let text = read_text(cursor, "parameters.variant", limits.name_bytes)?;
                    set_once(&mut variant, "parameters.variant", text)
                }
                _ => Ok(cursor.skip()?),
            }),
            _ => Ok(cursor.skip()?),
        })?;
        Ok(Self {
            model_name: model_name.ok_or_else(|| field_error("model_name", "missing"))?,
            model_version: model_version.unwrap_or_default(),
            id: id.unwrap_or_default(),
            variant,
            outputs: outputs.ok_or_else(|| field_error("outputs", "missing"))?,
        })
    }
}

//! Encoding and decoding of inference requests, without a check against the model.

use std::time::Duration;

use serde::Serialize;

use crate::{
    ByteRope, EncodeError, Form, Limits, Message, MessageError, Tensor,
    field_path::FieldPath,
    json::Cursor,
    json_tensor::NonFinite,
    message::{assemble, field_error, parse_head, read_objects, read_text, set_once},
    region::{NoRegions, RangeParameters, RegionRange, Regions},
    tensor_object::{DeclaredTensor, TensorHead, complete_all},
};

/// An output that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputRequest {
    /// The output's name.
    pub name: String,
    /// The form of this output (`binary_data`); none for the request's default.
    pub form: Option<Form>,
    /// The place in shared memory into which the output is written; then the response has no data of it.
    pub range: Option<RegionRange>,
    /// The number of best classes of each row that the response has in place of the output (`classification`).
    pub classes: Option<u32>,
}

/// An inference request, as a client sends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMessage {
    /// The id that the response repeats; empty for none.
    pub id: String,
    /// The inputs, each with the form in which it is sent.
    pub inputs: Vec<Tensor>,
    /// The requested outputs; empty for all.
    pub outputs: Vec<OutputRequest>,
    /// The form of outputs without a form of their own (`binary_data_output`).
    pub output_form: Option<Form>,
    /// The form of infinities and NaNs in JSON outputs (`non_finite_as_null`).
    pub non_finite: NonFinite,
    /// The longest time that the client waits; none for the model's latency objective.
    pub timeout: Option<Duration>,
    /// The priority: 0 is the default, otherwise 1 is the most urgent.
    pub priority: u64,
}

impl RequestMessage {
    /// Reads a request. `header_length` is the value of the header `Inference-Header-Content-Length`.
    ///
    /// # Errors
    /// Names the first mistake and its place. The request is not checked against a model. Inputs in shared memory are a mistake.
    pub fn parse(
        body: ByteRope,
        header_length: Option<u64>,
        limits: &Limits,
    ) -> Result<Self, MessageError> {
        Self::parse_with(body, header_length, limits, &mut NoRegions)
    }

    /// Reads a request as [`RequestMessage::parse`] does, with inputs in shared memory.
    ///
    /// # Errors
    /// As [`RequestMessage::parse`], and where `regions` refuses a range.
    pub fn parse_with(
        mut body: ByteRope,
        header_length: Option<u64>,
        limits: &Limits,
        regions: &mut dyn Regions,
    ) -> Result<Self, MessageError> {
        let head = parse_head(&mut body, header_length, limits.json_bytes, |cursor| {
            Head::read(cursor, limits)
        })?;
        let inputs = complete_all(head.inputs, "input", body, regions)?;
        Ok(Self {
            id: head.id,
            inputs,
            outputs: head.outputs,
            output_form: head.parameters.output_form,
            non_finite: head.parameters.non_finite,
            timeout: head.parameters.timeout,
            priority: head.parameters.priority,
        })
    }

    /// Writes the request.
    ///
    /// # Errors
    /// An input has the JSON form, but JSON cannot represent it.
    pub fn encode(&self) -> Result<Message, EncodeError> {
        let inputs = self
            .inputs
            .iter()
            .map(|input| TensorHead::new(input, NonFinite::Error))
            .collect::<Result<_, _>>()?;
        let outputs = self.outputs.iter().map(|output| EncodedOutput {
            name: &output.name,
            parameters: EncodedOutputParameters::new(output),
        });
        let parameters = EncodedParameters {
            timeout: self
                .timeout
                .map(|timeout| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)),
            priority: self.priority,
            binary_data_output: self.output_form.map(|form| form == Form::Binary),
            non_finite_as_null: (self.non_finite == NonFinite::Null).then_some(true),
        };
        let head = EncodedRequest {
            id: &self.id,
            parameters: (parameters != EncodedParameters::default()).then_some(parameters),
            inputs,
            outputs: outputs.collect(),
        };
        Ok(assemble(&head, &self.inputs))
    }
}

/// The JSON part of a request.
#[derive(Default)]
struct Head {
    id: String,
    parameters: Parameters,
    inputs: Vec<DeclaredTensor>,
    outputs: Vec<OutputRequest>,
}

impl Head {
    fn read(cursor: &mut Cursor<'_>, limits: &Limits) -> Result<Self, MessageError> {
        let (mut id, mut parameters, mut inputs, mut outputs) = (None, None, None, None);
        cursor.object(|cursor, key| match key {
            "id" => set_once(&mut id, key, read_text(cursor, key, limits.id_bytes)?),
            "parameters" => set_once(&mut parameters, key, Parameters::read(cursor)?),
            "inputs" => {
                let read = read_objects(cursor, key, limits.tensors, |cursor, path| {
                    DeclaredTensor::read(cursor, path, limits)
                })?;
                set_once(&mut inputs, key, read)
            }
            "outputs" => {
                let read = read_objects(cursor, key, limits.tensors, |cursor, path| {
                    read_output(cursor, path, limits)
                })?;
                set_once(&mut outputs, key, read)
            }
            _ => Ok(cursor.skip()?),
        })?;
        Ok(Self {
            id: id.unwrap_or_default(),
            parameters: parameters.unwrap_or_default(),
            inputs: inputs.ok_or_else(|| field_error("inputs", "missing"))?,
            outputs: outputs.unwrap_or_default(),
        })
    }
}

/// The supported parameters of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: u64,
    output_form: Option<Form>,
    pub(crate) non_finite: NonFinite,
}

impl Parameters {
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, MessageError> {
        let (mut timeout, mut priority, mut output_form, mut as_null) = (None, None, None, None);
        read_parameters(
            cursor,
            &"parameters".into(),
            |cursor, key, field| match key {
                "timeout" => set_once(&mut timeout, field, read_unsigned(cursor, field)?),
                "priority" => set_once(&mut priority, field, read_unsigned(cursor, field)?),
                "binary_data_output" => {
                    set_once(&mut output_form, field, read_form(cursor, field)?)
                }
                "non_finite_as_null" => set_once(&mut as_null, field, read_flag(cursor, field)?),
                _ if key.starts_with("sequence_") => match cursor.raw_value()? {
                    "0" | "false" | "null" | r#""""# => Ok(()),
                    _ => Err(field_error(
                        field,
                        "sequences are not supported: models keep no state between requests",
                    )),
                },
                _ => Ok(cursor.skip()?),
            },
        )?;
        let timeout = timeout
            .filter(|micros| *micros > 0)
            .map(Duration::from_micros);
        Ok(Self {
            timeout,
            priority: priority.unwrap_or_default(),
            output_form,
            non_finite: if as_null == Some(true) {
                NonFinite::Null
            } else {
                NonFinite::Error
            },
        })
    }
}

fn read_parameters(
    cursor: &mut Cursor<'_>,
    path: &FieldPath<'_>,
    mut member: impl FnMut(&mut Cursor<'_>, &str, FieldPath<'_>) -> Result<(), MessageError>,
) -> Result<(), MessageError> {
    if cursor.peek() != Some(b'{') {
        return Err(field_error(*path, &cursor.expected("an object")));
    }
    cursor.object(|cursor, key| member(cursor, key, path.member(key)))
}

fn read_unsigned(cursor: &mut Cursor<'_>, field: FieldPath<'_>) -> Result<u64, MessageError> {
    cursor.read().map_err(|e| field_error(field, &e))
}

fn read_flag(cursor: &mut Cursor<'_>, field: FieldPath<'_>) -> Result<bool, MessageError> {
    cursor.read().map_err(|e| field_error(field, &e))
}

fn read_form(cursor: &mut Cursor<'_>, field: FieldPath<'_>) -> Result<Form, MessageError> {
    let binary = read_flag(cursor, field)?;
    Ok(if binary { Form::Binary } else { Form::Json })
}

fn read_output(
    cursor: &mut Cursor<'_>,
    path: &FieldPath<'_>,
    limits: &Limits,
) -> Result<OutputRequest, MessageError> {
    let (mut name, mut form, mut range) = (None, None, RangeParameters::default());
    let mut classes = None;
    cursor.object(|cursor, key| match key {
        "name" => {
            let field = path.member("name");
            set_once(
                &mut name,
                field,
                read_text(cursor, field, limits.name_bytes)?,
            )
        }
        "parameters" => read_parameters(
            cursor,
            &path.member("parameters"),
            |cursor, key, field| match key {
                "binary_data" => set_once(&mut form, field, read_form(cursor, field)?),
                "classification" => {
                    let count = cursor.read().map_err(|e| field_error(field, &e))?;
                    set_once(&mut classes, field, count)
                }
                _ => match range.read(cursor, key, limits.name_bytes) {
                    Ok(true) => Ok(()),
                    Ok(false) => Ok(cursor.skip()?),
                    Err(problem) => Err(field_error(*path, &problem)),
                },
            },
        ),
        _ => Ok(cursor.skip()?),
    })?;
    let name = name.ok_or_else(|| field_error(*path, "name is missing"))?;
    let range = range
        .finish()
        .map_err(|problem| field_error(*path, &problem))?;
    Ok(OutputRequest {
        name,
        form,
        range,
        // Clients write 0 for none.
        classes: classes.filter(|classes| *classes > 0),
    })
}

#[derive(Serialize)]
struct EncodedRequest<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<EncodedParameters>,
    inputs: Vec<TensorHead<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<EncodedOutput<'a>>,
}

#[derive(Default, PartialEq, Serialize)]
struct EncodedParameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    priority: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data_output: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    non_finite_as_null: Option<bool>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Serialize)]
struct EncodedOutput<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<EncodedOutputParameters<'a>>,
}

#[derive(Serialize)]
struct EncodedOutputParameters<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    classification: Option<u32>,
    #[serde(flatten)]
    range: Option<EncodedRange<'a>>,
}

impl<'a> EncodedOutputParameters<'a> {
    fn new(output: &'a OutputRequest) -> Option<Self> {
        if output.form.is_none() && output.range.is_none() && output.classes.is_none() {
            return None;
        }
        Some(Self {
            binary_data: output.form.map(|form| form == Form::Binary),
            classification: output.classes,
            range: output.range.as_ref().map(|range| EncodedRange {
                region: &range.region,
                offset: range.offset,
                bytes: range.bytes,
            }),
        })
    }
}

#[derive(Serialize)]
struct EncodedRange<'a> {
    #[serde(rename = "shared_memory_region")]
    region: &'a str,
    #[serde(rename = "shared_memory_offset")]
    offset: u64,
    #[serde(rename = "shared_memory_byte_size")]
    bytes: u64,
}

//! Inference requests: from a message of gRPC to the one that HTTP's requests become, too.

use std::{collections::vec_deque::VecDeque, time::Duration};

use bytes::Bytes;
use packhorse_cluster::{Datatype, Shape};
use packhorse_protocol::{
    ByteRope, Element, Form, Limits, MessageError, OutputRequest, Regions, RequestMessage, Tensor,
    TensorError,
};

use crate::{
    messages::inference::{
        InferTensorContents, ModelInferRequest,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
    parameters::{Parameters, REGION},
};

/// Returns true if the answers of a stream shall say which is the last to a request.
pub fn wants_final_mark(message: &ModelInferRequest) -> bool {
    let parameters = Parameters::new(&message.parameters, "");
    let flag = parameters.flag("triton_enable_empty_final_response");
    flag.unwrap_or_default()
}

/// Returns true if a request names a region of shared memory.
pub fn names_region(message: &ModelInferRequest) -> bool {
    let of_inputs = message.inputs.iter().map(|input| &input.parameters);
    let of_outputs = message.outputs.iter().map(|output| &output.parameters);
    let mut all = of_inputs.chain(of_outputs);
    all.any(|parameters| parameters.contains_key(REGION))
}

/// Reads a request. Raw tensors are not copied.
///
/// # Errors
/// Names the first mistake and its place. The request is not checked against a model.
pub fn read_request(
    message: ModelInferRequest,
    limits: &Limits,
    regions: &mut dyn Regions,
) -> Result<RequestMessage, MessageError> {
    check_length("id", &message.id, limits.id_bytes)?;
    check_count("inputs", message.inputs.len(), limits)?;
    check_count("outputs", message.outputs.len(), limits)?;
    let parameters = Parameters::new(&message.parameters, "");
    let stateless = "sequences are not supported: models keep no state between requests";
    parameters.refuse("sequence_", stateless)?;
    let timeout = parameters.unsigned("timeout")?;
    let priority = parameters.unsigned("priority")?;
    let has_raw = !message.raw_input_contents.is_empty();
    let mut raw: VecDeque<Bytes> = message.raw_input_contents.into();
    let given = raw.len();
    let mut inputs = Vec::with_capacity(message.inputs.len());
    for (index, input) in message.inputs.into_iter().enumerate() {
        let data = has_raw.then_some(&mut raw);
        inputs.push(read_input(index, input, data, limits, regions)?);
    }
    if !raw.is_empty() {
        let taken = given - raw.len();
        return Err(field_error(
            "raw_input_contents",
            format!("expected one for each input without shared memory, {taken}, found {given}"),
        ));
    }
    let outputs = message.outputs.into_iter().enumerate();
    let outputs = outputs.map(|(index, output)| read_output(index, output, limits));
    Ok(RequestMessage {
        id: message.id,
        inputs,
        outputs: outputs.collect::<Result<_, _>>()?,
        output_form: Some(Form::Binary),
        timeout: timeout
            .filter(|micros| *micros > 0)
            .map(Duration::from_micros),
        priority: priority.unwrap_or_default(),
        ..RequestMessage::default()
    })
}

fn field_error(field: impl Into<String>, problem: impl Into<String>) -> MessageError {
    MessageError::Field {
        field: field.into(),
        problem: problem.into(),
    }
}

fn check_length(field: &str, text: &str, limit: usize) -> Result<(), MessageError> {
    if text.len() <= limit {
        return Ok(());
    }
    let problem = format!("{} bytes are over the limit of {limit}", text.len());
    Err(field_error(field, problem))
}

fn check_count(field: &str, count: usize, limits: &Limits) -> Result<(), MessageError> {
    if count <= limits.tensors {
        return Ok(());
    }
    let problem = format!("{count} are over the limit of {}", limits.tensors);
    Err(field_error(field, problem))
}

/// Reads an input: its raw bytes, if the request has some, else its lists, or its place in shared memory.
fn read_input(
    index: usize,
    input: InferInputTensor,
    raw: Option<&mut VecDeque<Bytes>>,
    limits: &Limits,
    regions: &mut dyn Regions,
) -> Result<Tensor, MessageError> {
    let place = format!("inputs[{index}].");
    check_length(&format!("{place}name"), &input.name, limits.name_bytes)?;
    let datatype: Datatype = input
        .datatype
        .parse()
        .map_err(|e| field_error(format!("{place}datatype"), format!("{e}")))?;
    let of_tensor = |problem| MessageError::Tensor {
        tensor: format!("input {:?}", input.name),
        problem,
    };
    let shape = Shape::new(&input.shape).map_err(|e| of_tensor(TensorError::Shape(e)))?;
    let range = Parameters::new(&input.parameters, &place).range(limits)?;
    let lists = input.contents.filter(has_elements);
    let contents = |problem: &str| field_error(format!("{place}contents"), problem);
    let data: ByteRope = if let Some(range) = range {
        if lists.is_some() {
            return Err(contents("given, and the input is in shared memory"));
        }
        let bytes = regions.read(&range).map_err(|problem| {
            of_tensor(TensorError::Region {
                region: range.region.clone(),
                problem,
            })
        })?;
        bytes.into()
    } else if let Some(raw) = raw {
        if lists.is_some() {
            return Err(contents(
                "given, and raw_input_contents, too: expected one of them",
            ));
        }
        let missing = "there is none for this input";
        let bytes = raw.pop_front();
        let missing = || field_error(format!("raw_input_contents for inputs[{index}]"), missing);
        bytes.ok_or_else(missing)?.into()
    } else {
        let packed = packed(&lists.unwrap_or_default(), datatype);
        packed
            .map_err(|(list, problem)| match list {
                "raw" => field_error(format!("{place}contents"), problem),
                list => field_error(format!("{place}contents.{list}"), problem),
            })?
            .into()
    };
    Tensor::new(input.name.clone(), datatype, shape, data).map_err(of_tensor)
}

fn has_elements(contents: &InferTensorContents) -> bool {
    lengths(contents).iter().any(|(_, length)| *length > 0)
}

/// Returns the lists, by their names, and their lengths.
fn lengths(contents: &InferTensorContents) -> [(&'static str, usize); 8] {
    [
        ("bool_contents", contents.bool_contents.len()),
        ("int_contents", contents.int_contents.len()),
        ("int64_contents", contents.int64_contents.len()),
        ("uint_contents", contents.uint_contents.len()),
        ("uint64_contents", contents.uint64_contents.len()),
        ("fp32_contents", contents.fp32_contents.len()),
        ("fp64_contents", contents.fp64_contents.len()),
        ("bytes_contents", contents.bytes_contents.len()),
    ]
}

/// The name of a list, and what is wrong with it.
type ListError = (&'static str, String);

/// Returns the bytes of the list of a datatype.
fn packed(contents: &InferTensorContents, datatype: Datatype) -> Result<Vec<u8>, ListError> {
    let list = match datatype {
        Datatype::Bool => "bool_contents",
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => "int_contents",
        Datatype::Int64 => "int64_contents",
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => "uint_contents",
        Datatype::Uint64 => "uint64_contents",
        Datatype::Fp32 => "fp32_contents",
        Datatype::Fp64 => "fp64_contents",
        Datatype::Bytes => "bytes_contents",
        // The protocol has no list of these.
        Datatype::Fp16 | Datatype::Bf16 => {
            let problem = format!("{datatype} has no list: send it in raw_input_contents");
            return Err(("raw", problem));
        }
    };
    let mut others = lengths(contents).into_iter();
    if let Some((other, _)) = others.find(|(name, length)| *name != list && *length > 0) {
        let problem = format!("given for {datatype}, whose list is {list}");
        return Err((other, problem));
    }
    let narrowed = match datatype {
        Datatype::Bool => Ok(bytes_of(&contents.bool_contents)),
        Datatype::Int8 => narrow::<_, i8>(&contents.int_contents),
        Datatype::Int16 => narrow::<_, i16>(&contents.int_contents),
        Datatype::Int32 => Ok(bytes_of(&contents.int_contents)),
        Datatype::Int64 => Ok(bytes_of(&contents.int64_contents)),
        Datatype::Uint8 => narrow::<_, u8>(&contents.uint_contents),
        Datatype::Uint16 => narrow::<_, u16>(&contents.uint_contents),
        Datatype::Uint32 => Ok(bytes_of(&contents.uint_contents)),
        Datatype::Uint64 => Ok(bytes_of(&contents.uint64_contents)),
        Datatype::Fp32 => Ok(bytes_of(&contents.fp32_contents)),
        Datatype::Fp64 => Ok(bytes_of(&contents.fp64_contents)),
        Datatype::Fp16 | Datatype::Bf16 => Ok(Vec::new()),
        Datatype::Bytes => Ok(length_prefixed(&contents.bytes_contents)),
    };
    narrowed.map_err(|(index, found)| {
        let problem = format!("element {index} is {found}, out of the range of {datatype}");
        (list, problem)
    })
}

fn bytes_of<T: Element>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(values));
    for value in values {
        value.append_to(&mut bytes);
    }
    bytes
}

/// Returns the bytes of narrower integers; the error is the first that is out of range, and its index.
fn narrow<W: Copy + Into<i64>, N: Element + TryFrom<W>>(
    wide: &[W],
) -> Result<Vec<u8>, (usize, i64)> {
    let mut bytes = Vec::with_capacity(wide.len() * size_of::<N>());
    for (index, value) in wide.iter().enumerate() {
        let narrow = N::try_from(*value).map_err(|_| (index, (*value).into()))?;
        narrow.append_to(&mut bytes);
    }
    Ok(bytes)
}

fn length_prefixed(elements: &[Bytes]) -> Vec<u8> {
    let bytes = elements.iter().map(|element| 4 + element.len());
    let mut packed = Vec::with_capacity(bytes.sum());
    for element in elements {
        // A message has less than 4 GiB.
        packed.extend_from_slice(&(element.len() as u32).to_le_bytes());
        packed.extend_from_slice(element);
    }
    packed
}

fn read_output(
    index: usize,
    output: InferRequestedOutputTensor,
    limits: &Limits,
) -> Result<OutputRequest, MessageError> {
    let place = format!("outputs[{index}].");
    check_length(&format!("{place}name"), &output.name, limits.name_bytes)?;
    let parameters = Parameters::new(&output.parameters, &place);
    let classes = parameters.unsigned("classification")?;
    let classes = classes.map(u32::try_from).transpose();
    let classes = classes.map_err(|e| parameters.error("classification", &e.to_string()))?;
    Ok(OutputRequest {
        // Clients write 0 for none.
        classes: classes.filter(|classes| *classes > 0),
        range: parameters.range(limits)?,
        name: output.name,
        form: None,
    })
}

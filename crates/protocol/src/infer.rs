//! Inference requests that are checked against their model. Every mistake of a request is found here; later code does not check again.

use std::time::Duration;

use packhorse_cluster::{Dim, Program, Shape, TensorSpec};

use crate::{
    ByteRope, Form, Limits, NoRegions, NonFinite, OutputRequest, RegionRange, Regions,
    RequestError, RequestMessage, Tensor,
};

/// A request that matches the signature of its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferRequest {
    /// The id that the response repeats; empty for none.
    pub id: String,
    /// The inputs, in the model's order.
    pub inputs: Vec<Tensor>,
    /// The outputs to return: the requested ones in the request's order, or all in the model's order.
    pub outputs: Vec<RequestedOutput>,
    /// The form of infinities and NaNs in JSON outputs.
    pub non_finite: NonFinite,
    /// The longest time that the client waits; none (sent as none or as 0) for the model's latency objective.
    pub timeout: Option<Duration>,
    /// The priority: 0 is the default, otherwise 1 is the most urgent.
    pub priority: u64,
    /// The number of rows: the first dimension of every input; 1 if the model has no batch dimension.
    pub rows: u32,
}

/// An output to return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedOutput {
    /// The index in the model's outputs.
    pub index: usize,
    /// The form in which it is sent; [`Form::Shared`] where `range` is given.
    pub form: Form,
    /// The place in shared memory into which it is written.
    pub range: Option<RegionRange>,
    /// The number of best classes of each row that are sent in its place.
    pub classes: Option<u32>,
}

impl InferRequest {
    /// Reads a request for a model. `header_length` is the value of the header `Inference-Header-Content-Length`, the size of the JSON
    /// part. If it is 0, the whole body is the only input of the model, as raw bytes, and outputs are returned in binary form. The
    /// input's shape is then derived from the length: the size of the batch dimension if only that is variable, else the size of the one
    /// other variable dimension with a batch of one.
    ///
    /// An output without a JSON form (`FP16`, `BF16`) is sent as binary data unless the request asks for JSON.
    ///
    /// # Errors
    /// Names the first mistake, its place, and what was expected.
    pub fn parse(
        body: ByteRope,
        header_length: Option<u64>,
        program: &Program,
        limits: &Limits,
    ) -> Result<Self, RequestError> {
        Self::parse_with(body, header_length, program, limits, &mut NoRegions)
    }

    /// Reads a request as [`InferRequest::parse`] does, with inputs in shared memory.
    ///
    /// # Errors
    /// As [`InferRequest::parse`], and where `regions` refuses a range.
    pub fn parse_with(
        body: ByteRope,
        header_length: Option<u64>,
        program: &Program,
        limits: &Limits,
        regions: &mut dyn Regions,
    ) -> Result<Self, RequestError> {
        let message = Self::read_message(body, header_length, program, limits, regions)?;
        Self::check(message, program)
    }

    /// Reads a request as [`InferRequest::parse_with`] does, but without the check against the signature of its model.
    ///
    /// # Errors
    /// As [`InferRequest::parse_with`].
    pub fn read_message(
        body: ByteRope,
        header_length: Option<u64>,
        program: &Program,
        limits: &Limits,
        regions: &mut dyn Regions,
    ) -> Result<RequestMessage, RequestError> {
        if header_length == Some(0) {
            return raw_request(body, program);
        }
        let message = RequestMessage::parse_with(body, header_length, limits, regions);
        Ok(message?)
    }

    /// Checks a request against the signature of its model.
    ///
    /// # Errors
    /// Names the first mismatch, and what was expected.
    pub fn check(message: RequestMessage, program: &Program) -> Result<Self, RequestError> {
        let outputs = check_outputs(&message.outputs, message.output_form, program)?;
        let inputs = check_inputs(message.inputs, program)?;
        let rows = count_rows(&inputs, program)?;
        let RequestMessage {
            id,
            non_finite,
            timeout,
            priority,
            ..
        } = message;
        Ok(Self {
            id,
            inputs,
            outputs,
            non_finite,
            timeout,
            priority,
            rows,
        })
    }
}

/// Returns the inputs in the model's order, each checked against its signature.
fn check_inputs(given: Vec<Tensor>, program: &Program) -> Result<Vec<Tensor>, RequestError> {
    let mut inputs = vec![None; program.inputs.len()];
    for tensor in given {
        let name = tensor.name().to_owned();
        let Some(index) = position(&program.inputs, &name) else {
            return Err(RequestError::UnknownInput {
                name,
                known: list_names(&program.inputs),
            });
        };
        check_signature(&tensor, &program.inputs[index], program.batches())?;
        if inputs[index].replace(tensor).is_some() {
            return Err(RequestError::DuplicateInput { name });
        }
    }
    let found = inputs.into_iter().zip(&program.inputs);
    let inputs: Vec<Tensor> = found
        .map(|(input, spec)| {
            input.ok_or_else(|| RequestError::MissingInput {
                name: spec.name.clone(),
            })
        })
        .collect::<Result<_, _>>()?;
    match program.unequal_dims(|input, axis| inputs[input].shape().dims()[axis]) {
        Some(unequal) => Err(RequestError::UnequalDims(unequal)),
        None => Ok(inputs),
    }
}

fn position(specs: &[TensorSpec], name: &str) -> Option<usize> {
    specs.iter().position(|spec| spec.name == name)
}

/// Returns the first few names, for an error.
fn list_names(specs: &[TensorSpec]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = specs
        .iter()
        .take(SHOWN)
        .map(|spec| format!("{:?}", spec.name))
        .collect();
    let more = if specs.len() > SHOWN { ", ..." } else { "" };
    format!("{}{more}", names.join(", "))
}

fn check_signature(tensor: &Tensor, spec: &TensorSpec, batches: bool) -> Result<(), RequestError> {
    let name = || tensor.name().to_owned();
    if tensor.datatype() != spec.datatype {
        let (given, expected) = (tensor.datatype(), spec.datatype);
        return Err(RequestError::Datatype {
            name: name(),
            given,
            expected,
        });
    }
    if !spec.accepts(tensor.shape()) {
        let (given, expected) = (tensor.shape().clone(), spec.shape_text());
        return Err(RequestError::Shape {
            name: name(),
            given,
            expected,
        });
    }
    if let Some(dim) = spec.undersized_dim(tensor.shape()) {
        return Err(RequestError::UndersizedDim { name: name(), dim });
    }
    match spec.oversized_dim(tensor.shape(), usize::from(batches)) {
        Some(dim) => Err(RequestError::OversizedDim { name: name(), dim }),
        None => Ok(()),
    }
}

/// Returns the number of rows, which must be the same in all inputs and within the model's limit.
fn count_rows(inputs: &[Tensor], program: &Program) -> Result<u32, RequestError> {
    if !program.batches() {
        return Ok(1);
    }
    let rows_of = |tensor: &Tensor| tensor.shape().dims().first().copied().unwrap_or_default();
    let Some(first) = inputs.first() else {
        return Ok(1);
    };
    let others = rows_of(first);
    if let Some(unequal) = inputs.iter().find(|input| rows_of(input) != others) {
        return Err(RequestError::UnequalRows {
            name: unequal.name().to_owned(),
            rows: rows_of(unequal),
            other: first.name().to_owned(),
            others,
        });
    }
    match u32::try_from(others) {
        Ok(rows) if (1..=program.max_batch_size).contains(&rows) => Ok(rows),
        _ => Err(RequestError::Rows {
            name: first.name().to_owned(),
            rows: others,
            limit: program.max_batch_size,
        }),
    }
}

fn check_outputs(
    requested: &[OutputRequest],
    default: Option<Form>,
    program: &Program,
) -> Result<Vec<RequestedOutput>, RequestError> {
    let output_of = |index: usize, asked: Option<&OutputRequest>| {
        let form = asked.and_then(|asked| asked.form);
        let range = asked.and_then(|asked| asked.range.clone());
        let classes = asked.and_then(|asked| asked.classes);
        let spec = &program.outputs[index];
        if classes.is_some() {
            check_classes(spec, range.as_ref())?;
        }
        // Classes are texts, which JSON has.
        let in_json = classes.is_some() || has_json_form(spec);
        let form = match (form.or(default), in_json) {
            _ if range.is_some() => Form::Shared,
            (Some(Form::Json), false) => {
                let name = spec.name.clone();
                return Err(RequestError::BinaryOnlyOutput {
                    name,
                    datatype: spec.datatype,
                });
            }
            (None, false) => Form::Binary,
            (form, _) => form.unwrap_or(Form::Json),
        };
        Ok(RequestedOutput {
            index,
            form,
            range,
            classes,
        })
    };
    if requested.is_empty() {
        return (0..program.outputs.len())
            .map(|index| output_of(index, None))
            .collect();
    }
    let mut outputs: Vec<RequestedOutput> = Vec::with_capacity(requested.len());
    for output in requested {
        let name = || output.name.clone();
        let Some(index) = position(&program.outputs, &output.name) else {
            return Err(RequestError::UnknownOutput {
                name: name(),
                known: list_names(&program.outputs),
            });
        };
        if outputs.iter().any(|other| other.index == index) {
            return Err(RequestError::DuplicateOutput { name: name() });
        }
        outputs.push(output_of(index, Some(output))?);
    }
    Ok(outputs)
}

/// Checks that an output has scores of classes.
fn check_classes(spec: &TensorSpec, range: Option<&RegionRange>) -> Result<(), RequestError> {
    let refused = |problem| {
        let name = spec.name.clone();
        Err(RequestError::NoClasses { name, problem })
    };
    if range.is_some() {
        return refused("it is written to shared memory, where names of classes do not go");
    }
    if !spec.datatype.is_float() || spec.shape.is_empty() {
        return refused("scores of classes are a list of FP16, BF16, FP32 or FP64");
    }
    Ok(())
}

fn has_json_form(spec: &TensorSpec) -> bool {
    !matches!(
        spec.datatype,
        packhorse_cluster::Datatype::Fp16 | packhorse_cluster::Datatype::Bf16
    )
}

/// Returns the request for a body without JSON, which is the raw data of the model's only input.
fn raw_request(body: ByteRope, program: &Program) -> Result<RequestMessage, RequestError> {
    let raw = |problem: String| Err(RequestError::Raw(problem));
    let [spec] = program.inputs.as_slice() else {
        return raw(format!(
            "the model has {} inputs, but this form requires exactly one",
            program.inputs.len()
        ));
    };
    let Some(width) = spec.datatype.width() else {
        return raw(format!("{} elements have no fixed size", spec.datatype));
    };
    let variable: Vec<usize> = spec
        .shape
        .iter()
        .enumerate()
        .filter(|(_, dim)| **dim == Dim::Any)
        .map(|(axis, _)| axis)
        .collect();
    let inferred = match variable.as_slice() {
        [] => None,
        [axis] => Some(*axis),
        [0, axis] if program.batches() => Some(*axis),
        _ => {
            return raw(format!(
                "shape {} has more than one variable dimension",
                spec.shape_text()
            ));
        }
    };
    let mut dims: Vec<i64> = spec
        .shape
        .iter()
        .map(|dim| if *dim == Dim::Any { 1 } else { (*dim).into() })
        .collect();
    let unit = Shape::new(&dims)
        .map_err(|e| RequestError::Raw(e.to_string()))?
        .elements()
        * width as u64;
    if let Some(axis) = inferred {
        let bytes = body.len() as u64;
        if unit == 0 || !bytes.is_multiple_of(unit) {
            return raw(format!(
                "{bytes} bytes are not a multiple of the {unit} bytes per step of dimension {axis} of {} {}",
                spec.datatype,
                spec.shape_text()
            ));
        }
        dims[axis] = (bytes / unit)
            .try_into()
            .expect("no allocation is larger than i64::MAX");
    }
    let shape = Shape::new(&dims).map_err(|e| RequestError::Raw(e.to_string()))?;
    let input = Tensor::new(spec.name.clone(), spec.datatype, shape, body)
        .map_err(|e| RequestError::Raw(e.to_string()))?;
    Ok(RequestMessage {
        inputs: vec![input],
        output_form: Some(Form::Binary),
        ..RequestMessage::default()
    })
}

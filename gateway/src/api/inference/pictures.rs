//! Pictures as inputs: from a request's `BYTES`, or from a body that is a picture, to the tensors of the model. It takes long, and runs on the pool.

use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use packhorse_cluster::{Datatype, Dim, ModelSpec, Preprocess, Processing, Shape, TensorSpec};
use packhorse_preprocess::{Head, PictureError, write_row};
use packhorse_protocol::{ByteRope, OutputRequest, RequestMessage, Tensor};

use super::error::InferenceError;
use crate::memory::Reservation;

/// Returns true if a request's body is a picture, as its headers say.
pub(in crate::api) fn is_picture(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.map(|kind| kind.as_bytes().get(..6).unwrap_or_default());
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(b"image/"))
}

/// Returns the request whose body is one picture: it asks for the best classes where the model declares any, else for all outputs.
pub(in crate::api) fn request_of(
    body: ByteRope,
    spec: &ModelSpec,
) -> Result<RequestMessage, InferenceError> {
    let Processing {
        preprocess,
        postprocess,
    } = &*spec.processing;
    let inputs = spec.program.inputs.as_slice();
    let [input] = inputs else {
        return Err(InferenceError::bad_request(format!(
            "a body that is a picture is the only input of a model, and this one has {}",
            inputs.len()
        )));
    };
    if !preprocess.contains_key(&input.name) {
        return Err(InferenceError::bad_request(format!(
            "the body is a picture (Content-Type), and the model does not declare how one becomes its input {:?} (preprocess)",
            input.name
        )));
    }
    let length = u32::try_from(body.len()).map_err(|e| bad(&input.name, &e))?;
    let mut data = ByteRope::from(Bytes::copy_from_slice(&length.to_le_bytes()));
    data.append(body);
    let shape = Shape::new(&[1]).map_err(|e| bad(&input.name, &e))?;
    let picture = Tensor::new(input.name.clone(), Datatype::Bytes, shape, data);
    let outputs = spec.program.outputs.iter().filter_map(|output| {
        Some(OutputRequest {
            classes: Some(postprocess.get(&output.name)?.top_k),
            name: output.name.clone(),
            form: None,
            range: None,
        })
    });
    Ok(RequestMessage {
        inputs: vec![picture.map_err(|e| bad(&input.name, &e))?],
        outputs: outputs.collect(),
        ..RequestMessage::default()
    })
}

/// Returns true if an input of a request is of pictures.
pub(in crate::api) fn has_pictures(message: &RequestMessage, spec: &ModelSpec) -> bool {
    let preprocess = &spec.processing.preprocess;
    let is_of_pictures = |input: &Tensor| {
        input.datatype() == Datatype::Bytes && preprocess.contains_key(input.name())
    };
    message.inputs.iter().any(is_of_pictures)
}

/// Makes tensors of the pictures of a request. What that takes is counted before the first of them is decoded.
pub(in crate::api) fn make_tensors(
    message: &mut RequestMessage,
    spec: &ModelSpec,
    memory: &mut Reservation,
    has_passed: impl Fn() -> bool,
) -> Result<(), InferenceError> {
    let mut seen = Vec::new();
    for input in &mut message.inputs {
        let declared = spec.processing.preprocess.get(input.name());
        let of_input = |tensor: &&TensorSpec| tensor.name == input.name();
        let (Some(declared), Some(tensor)) = (declared, spec.program.inputs.iter().find(of_input))
        else {
            continue;
        };
        // An input that is given twice is refused later, without having been decoded twice.
        if input.datatype() == Datatype::Bytes && !seen.contains(&tensor.name) {
            seen.push(tensor.name.clone());
            *input = rows(input, declared, tensor, spec, memory, &has_passed)?;
        }
    }
    Ok(())
}

/// Makes the rows of one input.
fn rows(
    input: &Tensor,
    Preprocess::Image(declared): &Preprocess,
    tensor: &TensorSpec,
    spec: &ModelSpec,
    memory: &mut Reservation,
    has_passed: impl Fn() -> bool,
) -> Result<Tensor, InferenceError> {
    let name = input.name();
    let (count, limit) = (input.shape().elements(), spec.program.rows_limit());
    if !matches!(input.shape().dims(), [_] | [_, 1]) || !(1..=u64::from(limit)).contains(&count) {
        let shape = input.shape();
        let message = format!(
            "input {name:?}: pictures of shape {shape}: expected 1 to {limit} in one dimension"
        );
        return Err(InferenceError::bad_request(message));
    }
    let pictures = input.byte_strings().unwrap_or_default();
    let wrong = |index: usize| {
        move |error: PictureError| {
            InferenceError::bad_request(format!("input {name:?}, picture {index}: {error}"))
        }
    };
    let heads = pictures.iter().enumerate();
    let heads = heads.map(|(index, picture)| Head::read(picture).map_err(wrong(index)));
    let heads: Vec<Head> = heads.collect::<Result<_, _>>()?;
    let row = declared.row_dims();
    let width = tensor.datatype.width().unwrap_or_default() as u64;
    let bytes = row.iter().product::<u64>() * width * count;
    // One picture is decoded after the other.
    let decoding = heads.iter().map(|head| head.memory(declared)).max();
    memory.grow(bytes + decoding.unwrap_or_default())?;
    let mut data = Vec::with_capacity(bytes as usize);
    for (index, (picture, head)) in pictures.iter().zip(&heads).enumerate() {
        if has_passed() {
            let message = format!("the deadline passed before picture {index} was decoded");
            return Err(InferenceError::new(StatusCode::GATEWAY_TIMEOUT, message));
        }
        write_row(picture, head, declared, tensor.datatype, &mut data).map_err(wrong(index))?;
    }
    let first = if spec.program.batches() {
        Some(count)
    } else {
        matches!(tensor.shape.as_slice(), [Dim::Fixed(1), _, _, _]).then_some(1)
    };
    let dims = first.into_iter().chain(row).map(u64::cast_signed);
    let shape = Shape::new(&dims.collect::<Vec<_>>()).map_err(|e| bad(name, &e))?;
    let made = Tensor::new(name.to_owned(), tensor.datatype, shape, data.into());
    made.map_err(|e| bad(name, &e))
}

fn bad(name: &str, error: &dyn std::fmt::Display) -> InferenceError {
    InferenceError::bad_request(format!("input {name:?}: {error}"))
}

//! Pictures as inputs: from a request's `BYTES`, or from a body that is a picture, to the tensors of the model.

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use packhorse_cluster::{Datatype, Dim, ImagePreprocess, ModelSpec, Processing, Shape};
use packhorse_preprocess::{Head, PictureError, write_row};
use packhorse_protocol::{ByteRope, OutputRequest, RequestMessage, Tensor};

use super::{
    error::InferenceError,
    raw_rows::{bad, check_rows, too_late},
};
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
            classes: Some(postprocess.get(&output.name)?.classes()?.top_k),
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

/// Makes the rows of an input that is pictures. What that takes is counted before the first of them is decoded.
pub(super) fn rows(
    input: &Tensor,
    declared: &ImagePreprocess,
    spec: &ModelSpec,
    memory: &mut Reservation,
    has_passed: impl Fn() -> bool,
) -> Result<Tensor, InferenceError> {
    let name = input.name();
    let mut inputs = spec.program.inputs.iter();
    let tensor = inputs.find(|tensor| tensor.name == name);
    let tensor = tensor.ok_or_else(|| bad(name, &"the model has none of this name"))?;
    let count = check_rows(input, &spec.program, "picture")?;
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
            return Err(too_late("picture", index));
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

//! The writing of an answer as a frame.

use std::sync::Arc;

use packhorse_grpc::{AnsweredTensor, ResponseHead, framed, write_response, write_stream_response};
use packhorse_protocol::{ByteRope, Form};

use super::{caller::Caller, unary::too_long};
use crate::{
    api::inference::{
        computation::{Answer, LARGE_TEXT, REQUEST_BYTES},
        error::InferenceError,
        work_pool::Party,
    },
    memory::Reservation,
};

/// The form of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerForm {
    /// True if it is one of a stream of answers.
    pub(super) is_of_stream: bool,
    /// True if it says that it is the last one of its request.
    pub(super) marks_final: bool,
}

/// Writes an answer as a frame; on the pool if that takes long. The second value is true if it is compressed.
pub(super) async fn write(
    caller: &Caller,
    party: Party,
    answer: Answer,
    mut memory: Reservation,
    form: AnswerForm,
) -> Result<(ByteRope, bool), InferenceError> {
    let Caller { grpc, head, .. } = caller;
    let compression = head.compression;
    let is_compressed = compression.compresses();
    let data = answer.answered.iter().map(|rows| rows.data.len() as u64);
    let compressed = if is_compressed { data.sum() } else { 0 };
    // The result has a reservation of its own by now; a message that does not become shorter has as many bytes again.
    memory.resize(REQUEST_BYTES + compressed)?;
    let looked_at = answer.touched() + compressed;
    let write = move || {
        let mut message = written(answer, form.marks_final)?;
        if form.is_of_stream {
            message = write_stream_response(Ok(message));
        }
        if is_compressed {
            message = compression.deflate(&message);
            memory.resize(REQUEST_BYTES + message.len() as u64)?;
        }
        let frame = framed(message, is_compressed).ok_or_else(too_long)?;
        let held = Arc::new(memory);
        Ok::<_, InferenceError>(frame.map_chunks(|chunk| held.hold(chunk)))
    };
    let frame = if looked_at < LARGE_TEXT {
        write()?
    } else {
        grpc.pool.format(party, write).await?
    };
    Ok((frame, is_compressed))
}

/// Writes a response.
fn written(answer: Answer, marks_final: bool) -> Result<ByteRope, InferenceError> {
    let tensors = answer.tensors()?;
    let Answer {
        model,
        family,
        id,
        requested,
        ..
    } = answer;
    let outputs = tensors.into_iter().zip(requested);
    let outputs = outputs.map(|(tensor, requested)| AnsweredTensor {
        name: tensor.name().to_owned(),
        datatype: tensor.datatype(),
        shape: tensor.shape().clone(),
        range: requested.range,
        data: if tensor.form() == Form::Shared {
            ByteRope::new()
        } else {
            tensor.into_data()
        },
    });
    let model = model.id();
    let head = ResponseHead {
        model_name: family.as_ref().unwrap_or(&model.name).to_string(),
        model_version: model.version.to_string(),
        id,
        variant: family.map(|_| model.name.to_string()),
        marks_final,
    };
    Ok(write_response(head, outputs.collect()))
}

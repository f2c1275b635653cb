//! Inputs that are not tensors yet: pictures and texts, which become the inputs that the model's registration declares. It takes long, and runs on the pool.

use std::time::Duration;

use packhorse_cluster::{Datatype, Preprocess};
use packhorse_protocol::{RequestMessage, Tensor};

use super::{error::InferenceError, pictures, texts};
use crate::{clock::Clock, driver::ServedModel, memory::Reservation, telemetry::RequestCourse};

/// The times in which the raw inputs of a request became tensors.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::api) struct RawInputTimes {
    /// The time of its pictures.
    pub(in crate::api) decode: Duration,
    /// The time of its texts.
    pub(in crate::api) tokenize: Duration,
}

impl RawInputTimes {
    /// Returns a course with the times of the raw inputs.
    pub(in crate::api) fn added_to(self, course: RequestCourse) -> RequestCourse {
        RequestCourse {
            decode: self.decode.into(),
            tokenize: self.tokenize.into(),
            ..course
        }
    }
}

/// Returns true if an input of a request is of pictures or texts.
pub(in crate::api) fn has_raw_inputs(message: &RequestMessage, model: &ServedModel) -> bool {
    let preprocess = &model.spec.processing.preprocess;
    let is_raw = |input: &Tensor| {
        input.datatype() == Datatype::Bytes && preprocess.contains_key(input.name())
    };
    message.inputs.iter().any(is_raw)
}

/// Makes tensors of the pictures and texts of a request, and returns the times of that. The memory that it takes is counted before.
pub(in crate::api) fn make_tensors(
    message: &mut RequestMessage,
    model: &ServedModel,
    memory: &mut Reservation,
    clock: Clock,
    has_passed: impl Fn() -> bool,
) -> Result<RawInputTimes, InferenceError> {
    let spec = &model.spec;
    let mut times = RawInputTimes::default();
    let mut seen: Vec<String> = Vec::new();
    let mut made = Vec::with_capacity(message.inputs.len());
    for input in std::mem::take(&mut message.inputs) {
        let declared = spec.processing.preprocess.get(input.name());
        let declared = declared.filter(|_| input.datatype() == Datatype::Bytes);
        // An input that is given twice is refused later, without having been looked at twice.
        let is_first = !seen.iter().any(|name| name == input.name());
        match declared.filter(|_| is_first) {
            None => made.push(input),
            Some(declared) => {
                seen.push(input.name().to_owned());
                let begun = clock.now();
                let took = match declared {
                    Preprocess::Image(declared) => {
                        made.push(pictures::rows(&input, declared, spec, memory, &has_passed)?);
                        &mut times.decode
                    }
                    Preprocess::Text(_) => {
                        made.extend(texts::tensors_of(&input, model, memory, &has_passed)?);
                        &mut times.tokenize
                    }
                };
                *took += clock.now().saturating_since(begun);
            }
        }
    }
    message.inputs = made;
    Ok(times)
}

//! Inputs that are not tensors yet: pictures and texts, which become the inputs that the model's registration declares. It takes long, and runs on the pool.

use packhorse_cluster::{Datatype, Preprocess};
use packhorse_protocol::{RequestMessage, Tensor};

use super::{error::InferenceError, pictures, texts};
use crate::{driver::ServedModel, memory::Reservation};

/// Returns true if an input of a request is of pictures or texts.
pub(in crate::api) fn has_raw_inputs(message: &RequestMessage, model: &ServedModel) -> bool {
    let preprocess = &model.spec.processing.preprocess;
    let is_raw = |input: &Tensor| {
        input.datatype() == Datatype::Bytes && preprocess.contains_key(input.name())
    };
    message.inputs.iter().any(is_raw)
}

/// Makes tensors of the pictures and texts of a request. What that takes is counted before.
pub(in crate::api) fn make_tensors(
    message: &mut RequestMessage,
    model: &ServedModel,
    memory: &mut Reservation,
    has_passed: impl Fn() -> bool,
) -> Result<(), InferenceError> {
    let spec = &model.spec;
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
                match declared {
                    Preprocess::Image(declared) => {
                        made.push(pictures::rows(&input, declared, spec, memory, &has_passed)?);
                    }
                    Preprocess::Text(_) => {
                        made.extend(texts::tensors_of(&input, model, memory, &has_passed)?);
                    }
                }
            }
        }
    }
    message.inputs = made;
    Ok(())
}

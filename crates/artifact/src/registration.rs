//! The registration that `packhorse.export` has put into a file, and whether the program in it agrees.

use std::fmt::Display;

use packhorse_cluster::{ArtifactDigest, Dim, ModelSpecError, Processing, Program, TensorSpec};
use serde::Deserialize;

use crate::signature::{Signature, Size, Tensor};

/// The largest registration in a file, in bytes.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// The registration that a file has in it: its signature, and the objective that its maker had.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct EmbeddedRegistration {
    /// The largest number of rows in a batch; 0 for a model without a batch dimension.
    pub max_batch_size: u32,
    /// The latency objective in milliseconds.
    #[serde(default)]
    pub slo_ms: Option<f64>,
    /// The inputs.
    pub inputs: Vec<TensorSpec>,
    /// The outputs.
    pub outputs: Vec<TensorSpec>,
    /// The ways from what clients have to the inputs, and from the outputs to what they want.
    #[serde(flatten)]
    pub processing: Processing,
}

/// A registration in a file that does not hold.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// It is too large.
    #[error("it has {bytes} bytes, over the limit of {MAX_BYTES}")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
    },
    /// It is not a registration.
    #[error("it is not a registration")]
    Json(#[from] serde_json::Error),
    /// A field is out of its limits.
    #[error(transparent)]
    Field(#[from] ModelSpecError),
    /// It says something else than the program beside it.
    #[error("{field} is {said} in it and {found} in the program of the same file")]
    Contradiction {
        /// The field.
        field: String,
        /// The value in the registration.
        said: String,
        /// The value in the program.
        found: String,
    },
}

impl EmbeddedRegistration {
    /// Reads a registration and checks its limits.
    pub(crate) fn read(text: &[u8]) -> Result<Self, RegistrationError> {
        if text.len() as u64 > MAX_BYTES {
            return Err(RegistrationError::TooLarge { bytes: text.len() });
        }
        let registration: Self = serde_json::from_slice(text)?;
        let program = Program {
            model: "embedded:1".parse().expect("a model's name and version"),
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size: registration.max_batch_size,
            inputs: registration.inputs,
            outputs: registration.outputs,
        };
        program.validate()?;
        registration.processing.validate(&program)?;
        let slo_ms = registration.slo_ms;
        Ok(Self {
            max_batch_size: program.max_batch_size,
            slo_ms: slo_ms.filter(|ms| ms.is_finite() && *ms > 0.0),
            inputs: program.inputs,
            outputs: program.outputs,
            processing: registration.processing,
        })
    }

    /// Checks that the program says nothing else, where it says anything.
    pub(crate) fn check(&self, program: &Signature) -> Result<(), RegistrationError> {
        self.check_side("inputs", &self.inputs, program.inputs.as_deref())?;
        self.check_side("outputs", &self.outputs, program.outputs.as_deref())
    }

    fn check_side(
        &self,
        side: &str,
        said: &[TensorSpec],
        found: Option<&[Tensor]>,
    ) -> Result<(), RegistrationError> {
        let Some(found) = found else {
            return Ok(());
        };
        if said.len() != found.len() {
            return Err(contradiction(
                format!("the number of {side}"),
                &said.len(),
                &found.len(),
            ));
        }
        for (i, (said, found)) in said.iter().zip(found).enumerate() {
            let of = |part: &str| format!("{side}[{i}].{part}");
            if let Some(datatype) = found.datatype
                && datatype != said.datatype
            {
                return Err(contradiction(of("datatype"), &said.datatype, &datatype));
            }
            let shape = found.shape.as_deref().unwrap_or_default();
            if found.shape.is_some() && shape.len() != said.shape.len() {
                return Err(contradiction(
                    of("shape"),
                    &format!("of {} dimensions", said.shape.len()),
                    &format!("of {}", shape.len()),
                ));
            }
            let first = usize::from(self.max_batch_size > 0);
            for (axis, (dim, known)) in said.shape.iter().zip(shape).enumerate().skip(first) {
                let (Dim::Fixed(dim), Size::Fixed(found) | Size::Example(found)) = (dim, known)
                else {
                    continue;
                };
                if dim != found {
                    return Err(contradiction(of(&format!("shape[{axis}]")), dim, found));
                }
            }
        }
        Ok(())
    }
}

fn contradiction(field: String, said: &dyn Display, found: &dyn Display) -> RegistrationError {
    RegistrationError::Contradiction {
        field,
        said: said.to_string(),
        found: found.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Datatype;

    use super::*;

    const TEXT: &str = r#"{"name": "m", "max_batch_size": 8, "slo_ms": 50,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}]}"#;

    fn program(datatype: Datatype, shape: Vec<Size>) -> Signature {
        Signature {
            inputs: Some(vec![Tensor {
                name: None,
                datatype: Some(datatype),
                shape: Some(shape),
                ..Tensor::default()
            }]),
            outputs: Some(vec![Tensor::default()]),
        }
    }

    #[test]
    fn a_registration_holds_where_the_program_agrees_or_says_nothing() {
        let registration = EmbeddedRegistration::read(TEXT.as_bytes()).unwrap();
        assert_eq!(registration.slo_ms, Some(50.0));
        registration.check(&Signature::default()).unwrap();
        let traced = vec![Size::Example(2), Size::Example(16)];
        registration
            .check(&program(Datatype::Fp32, traced))
            .unwrap();
    }

    #[test]
    fn a_contradiction_names_the_field_and_both() {
        let registration = EmbeddedRegistration::read(TEXT.as_bytes()).unwrap();
        let two = vec![Size::Example(2), Size::Example(16)];
        let mut none = program(Datatype::Fp32, two.clone());
        none.inputs = Some(Vec::new());
        for (program, expected) in [
            (
                program(Datatype::Int64, two.clone()),
                "inputs[0].datatype is FP32 in it and INT64 in the program",
            ),
            (
                program(Datatype::Fp32, vec![Size::Example(2), Size::Fixed(17)]),
                "inputs[0].shape[1] is 16 in it and 17 in the program",
            ),
            (
                program(Datatype::Fp32, vec![Size::Example(2)]),
                "inputs[0].shape is of 2 dimensions in it and of 1 in the program",
            ),
            (none, "the number of inputs is 1 in it and 0 in the program"),
        ] {
            let error = registration.check(&program).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn what_no_registration_may_have_is_refused_with_its_field() {
        for (from, to, expected) in [
            (
                "\"FP32\", \"shape\": [-1, 16]",
                "\"FP31\", \"shape\": [1]",
                "it is not a registration",
            ),
            (
                "[-1, 16]",
                "[4, 16]",
                "inputs[0].shape: with max_batch_size 8 the first dimension",
            ),
            (
                "\"max_batch_size\": 8",
                "\"max_batch_size\": 80000",
                "max_batch_size: 80000 is over the limit",
            ),
        ] {
            let error = EmbeddedRegistration::read(TEXT.replace(from, to).as_bytes());
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let large = format!("{TEXT}{}", " ".repeat(1 << 20));
        let error = EmbeddedRegistration::read(large.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("over the limit of 1048576"));
    }
}

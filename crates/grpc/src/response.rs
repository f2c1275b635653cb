//! Inference responses: tensors as raw contents, which are not copied.

use bytes::{BufMut as _, BytesMut};
use packhorse_cluster::{Datatype, Shape};
use packhorse_protocol::{ByteRope, RegionRange};
use prost::{Message as _, encoding::encode_varint, encoding::encoded_len_varint};

use crate::{
    messages::inference::{
        InferParameter, ModelInferResponse, ModelStreamInferResponse,
        infer_parameter::ParameterChoice, model_infer_response::InferOutputTensor,
    },
    parameters::{BYTES, OFFSET, REGION},
};

/// The tag of `raw_output_contents`: field 6, bytes.
const RAW: u8 = (6 << 3) | 2;
/// The tag of `infer_response` in an answer of a stream: field 2, bytes.
const INFER_RESPONSE: u8 = (2 << 3) | 2;

/// A response without its outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    /// The model or family that was requested.
    pub model_name: String,
    /// The version of the model that answered, as a decimal number.
    pub model_version: String,
    /// The request's id; empty if it had none.
    pub id: String,
    /// The variant that answered, if a family was requested.
    pub variant: Option<String>,
    /// True if the response says that it is the last to its request.
    pub marks_final: bool,
}

/// An output of a response.
#[derive(Clone, Debug)]
pub struct AnsweredTensor {
    /// The output's name.
    pub name: String,
    /// The element type.
    pub datatype: Datatype,
    /// The dimensions.
    pub shape: Shape,
    /// The bytes, as clients have them; none if they were written to shared memory.
    pub data: ByteRope,
    /// The place in shared memory where they are.
    pub range: Option<RegionRange>,
}

/// Writes a `ModelInferResponse`.
pub fn write_response(head: ResponseHead, outputs: Vec<AnsweredTensor>) -> ByteRope {
    let (mut raw, mut declared) = (Vec::new(), Vec::new());
    for output in outputs {
        raw.push(output.data);
        let dims = output.shape.dims().iter().copied();
        let range = output.range.into_iter().flat_map(range_parameters);
        declared.push(InferOutputTensor {
            name: output.name,
            datatype: output.datatype.to_string(),
            shape: dims.map(u64::cast_signed).collect(),
            parameters: range.collect(),
            contents: None,
        });
    }
    let variant = head.variant.map(ParameterChoice::StringParam);
    let variant = variant.map(|choice| ("variant", choice));
    let last = head.marks_final.then_some(ParameterChoice::BoolParam(true));
    let last = last.map(|choice| ("triton_final_response", choice));
    let message = ModelInferResponse {
        model_name: head.model_name,
        model_version: head.model_version,
        id: head.id,
        parameters: variant.into_iter().chain(last).map(parameter).collect(),
        outputs: declared,
        raw_output_contents: Vec::new(),
    };
    let mut written = ByteRope::from(message.encode_to_vec());
    for data in raw {
        let mut tag = BytesMut::with_capacity(1 + encoded_len_varint(data.len() as u64));
        tag.put_u8(RAW);
        encode_varint(data.len() as u64, &mut tag);
        written.push(tag.freeze());
        written.append(data);
    }
    written
}

/// Writes a `ModelStreamInferResponse`: a response of [`write_response`], or an error with the id of its request.
pub fn write_stream_response(answer: Result<ByteRope, (String, String)>) -> ByteRope {
    match answer {
        Ok(response) => {
            let length = response.len() as u64;
            let mut tag = BytesMut::with_capacity(1 + encoded_len_varint(length));
            tag.put_u8(INFER_RESPONSE);
            encode_varint(length, &mut tag);
            let mut written = ByteRope::from(tag.freeze());
            written.append(response);
            written
        }
        Err((id, error_message)) => {
            let infer_response = Some(ModelInferResponse {
                id,
                ..ModelInferResponse::default()
            });
            let message = ModelStreamInferResponse {
                error_message,
                infer_response,
            };
            message.encode_to_vec().into()
        }
    }
}

fn parameter((key, choice): (&str, ParameterChoice)) -> (String, InferParameter) {
    let parameter_choice = Some(choice);
    (key.to_owned(), InferParameter { parameter_choice })
}

fn range_parameters(range: RegionRange) -> [(String, InferParameter); 3] {
    let number = |number| ParameterChoice::Int64Param(i64::try_from(number).unwrap_or(i64::MAX));
    [
        (REGION, ParameterChoice::StringParam(range.region)),
        (OFFSET, number(range.offset)),
        (BYTES, number(range.bytes)),
    ]
    .map(parameter)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn output(name: &str, data: &Bytes) -> AnsweredTensor {
        AnsweredTensor {
            name: name.to_owned(),
            datatype: Datatype::Uint8,
            shape: Shape::new(&[data.len().try_into().unwrap()]).unwrap(),
            data: data.clone().into(),
            range: None,
        }
    }

    fn head() -> ResponseHead {
        ResponseHead {
            model_name: "m".to_owned(),
            model_version: "3".to_owned(),
            id: "i".to_owned(),
            variant: Some("small".to_owned()),
            marks_final: true,
        }
    }

    #[test]
    fn a_response_is_what_a_generated_client_reads_and_its_tensors_are_not_copied() {
        let (small, large) = (Bytes::from_static(b"small"), Bytes::from(vec![3; 9000]));
        let in_memory = AnsweredTensor {
            range: Some(RegionRange {
                region: "r".to_owned(),
                offset: 8,
                bytes: 16,
            }),
            ..output("shared", &Bytes::new())
        };
        let outputs = vec![output("a", &small), output("b", &large), in_memory];
        let written = write_response(head(), outputs);
        assert!(
            written
                .chunks()
                .any(|chunk| chunk.as_ptr() == large.as_ptr())
        );
        let read = ModelInferResponse::decode(written.to_bytes()).unwrap();
        assert_eq!(read.raw_output_contents, [small, large, Bytes::new()]);
        assert_eq!(read.outputs.len(), 3);
        assert_eq!(
            (&*read.model_name, &*read.model_version, &*read.id),
            ("m", "3", "i")
        );
        assert_eq!(read.outputs[1].shape, [9000]);
        assert_eq!(read.outputs[1].datatype, "UINT8");
        let value = |key: &str| read.parameters[key].parameter_choice.clone().unwrap();
        assert_eq!(
            value("variant"),
            ParameterChoice::StringParam("small".to_owned())
        );
        assert_eq!(
            value("triton_final_response"),
            ParameterChoice::BoolParam(true)
        );
        let of_output = &read.outputs[2].parameters;
        let offset = of_output[OFFSET].parameter_choice.clone().unwrap();
        assert_eq!(offset, ParameterChoice::Int64Param(8));
    }

    #[test]
    fn the_answers_of_a_stream_are_responses_or_errors() {
        let response = write_response(head(), vec![output("a", &Bytes::from_static(b"xyz"))]);
        let written = write_stream_response(Ok(response.clone()));
        let read = ModelStreamInferResponse::decode(written.to_bytes()).unwrap();
        let expected = ModelInferResponse::decode(response.to_bytes()).unwrap();
        assert_eq!(read.infer_response, Some(expected));
        assert_eq!(read.error_message, "");
        let failed = write_stream_response(Err(("4".to_owned(), "no such model".to_owned())));
        let read = ModelStreamInferResponse::decode(failed.to_bytes()).unwrap();
        assert_eq!(read.error_message, "no such model");
        assert_eq!(read.infer_response.unwrap().id, "4");
    }
}

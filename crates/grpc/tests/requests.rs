//! Requests of gRPC become those that HTTP's requests become, or are refused with the place of the mistake.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

use std::collections::BTreeMap;

use bytes::Bytes;
use packhorse_cluster::{Datatype, Shape};
use packhorse_grpc::{
    messages::inference::{
        InferParameter, InferTensorContents, ModelInferRequest,
        infer_parameter::ParameterChoice,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
    read_request,
};
use packhorse_protocol::{
    Element, Limits, NoRegions, RegionRange, Regions, RequestMessage, Tensor,
};
use prost::Message as _;

type Parameters = BTreeMap<String, InferParameter>;

fn parameters(all: &[(&str, ParameterChoice)]) -> Parameters {
    let parameter = |(key, choice): &(&str, ParameterChoice)| {
        let parameter_choice = Some(choice.clone());
        ((*key).to_owned(), InferParameter { parameter_choice })
    };
    all.iter().map(parameter).collect()
}

fn input(datatype: &str, shape: &[i64], contents: InferTensorContents) -> InferInputTensor {
    InferInputTensor {
        name: "x".to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        parameters: Parameters::new(),
        contents: Some(contents),
    }
}

fn request(inputs: Vec<InferInputTensor>) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "m".to_owned(),
        inputs,
        ..ModelInferRequest::default()
    }
}

fn read(request: &ModelInferRequest) -> Result<RequestMessage, String> {
    // As it comes: encoded.
    let request = ModelInferRequest::decode(request.encode_to_vec().as_slice()).unwrap();
    read_request(request, &Limits::default(), &mut NoRegions).map_err(|e| e.to_string())
}

fn none() -> InferTensorContents {
    InferTensorContents::default()
}

fn assert_read<T: Element>(contents: InferTensorContents, values: &[T]) {
    let count = i64::try_from(values.len()).unwrap();
    let shape = Shape::new(&[count]).unwrap();
    let expected = Tensor::from_values("x", shape, values).unwrap();
    let datatype = T::DATATYPE.to_string();
    let typed = read(&request(vec![input(&datatype, &[count], contents)])).unwrap();
    assert_eq!(typed.inputs, std::slice::from_ref(&expected));
    let mut raw = request(vec![input(&datatype, &[count], none())]);
    raw.raw_input_contents = vec![expected.data().to_bytes()];
    assert_eq!(read(&raw).unwrap().inputs, [expected]);
}

#[test]
fn typed_contents_of_every_datatype_are_the_bytes_that_raw_contents_are() {
    assert_read(
        InferTensorContents {
            bool_contents: vec![true, false],
            ..none()
        },
        &[true, false],
    );
    let wide = vec![-128, 127];
    assert_read(
        InferTensorContents {
            int_contents: wide.clone(),
            ..none()
        },
        &[-128_i8, 127],
    );
    assert_read(
        InferTensorContents {
            int_contents: wide.clone(),
            ..none()
        },
        &[-128_i16, 127],
    );
    assert_read(
        InferTensorContents {
            int_contents: wide,
            ..none()
        },
        &[-128_i32, 127],
    );
    assert_read(
        InferTensorContents {
            int64_contents: vec![i64::MIN],
            ..none()
        },
        &[i64::MIN],
    );
    let wide = vec![0, 255];
    assert_read(
        InferTensorContents {
            uint_contents: wide.clone(),
            ..none()
        },
        &[0_u8, 255],
    );
    assert_read(
        InferTensorContents {
            uint_contents: wide.clone(),
            ..none()
        },
        &[0_u16, 255],
    );
    assert_read(
        InferTensorContents {
            uint_contents: wide,
            ..none()
        },
        &[0_u32, 255],
    );
    assert_read(
        InferTensorContents {
            uint64_contents: vec![u64::MAX],
            ..none()
        },
        &[u64::MAX],
    );
    assert_read(
        InferTensorContents {
            fp32_contents: vec![1.5, -0.0],
            ..none()
        },
        &[1.5_f32, -0.0],
    );
    assert_read(
        InferTensorContents {
            fp64_contents: vec![f64::MAX],
            ..none()
        },
        &[f64::MAX],
    );
    assert_read::<f32>(none(), &[]);
    let strings = [&b"cat"[..], b"", b"\xff"];
    let bytes_contents = strings.map(Bytes::from_static).to_vec();
    let typed = input(
        "BYTES",
        &[3],
        InferTensorContents {
            bytes_contents,
            ..none()
        },
    );
    let [tensor] = &*read(&request(vec![typed])).unwrap().inputs else {
        panic!("one input")
    };
    assert_eq!(tensor.datatype(), Datatype::Bytes);
    assert_eq!(tensor.byte_strings().unwrap(), strings);
}

#[test]
fn half_precision_comes_raw() {
    let mut half = request(vec![input("FP16", &[1], none())]);
    assert_eq!(
        read(&half).unwrap_err(),
        "inputs[0].contents: FP16 has no list: send it in raw_input_contents"
    );
    half.raw_input_contents = vec![Bytes::from_static(&[0, 0x3c])];
    let read = read(&half).unwrap();
    assert_eq!(
        read.inputs[0].values::<half::f16>().unwrap(),
        [half::f16::from_f32(1.0)]
    );
}

#[test]
fn parameters_and_outputs_are_read() {
    let mut message = request(vec![]);
    message.id = "42".to_owned();
    message.parameters = parameters(&[
        ("timeout", ParameterChoice::Int64Param(2500)),
        ("priority", ParameterChoice::Uint64Param(3)),
        ("sequence_id", ParameterChoice::Int64Param(0)),
        ("of_the_client", ParameterChoice::DoubleParam(1.0)),
    ]);
    message.outputs = vec![InferRequestedOutputTensor {
        name: "y".to_owned(),
        parameters: parameters(&[
            (
                "shared_memory_region",
                ParameterChoice::StringParam("r".to_owned()),
            ),
            ("shared_memory_byte_size", ParameterChoice::Int64Param(64)),
        ]),
    }];
    let read = read(&message).unwrap();
    assert_eq!((&*read.id, read.priority), ("42", 3));
    assert_eq!(read.timeout, Some(std::time::Duration::from_micros(2500)));
    let [output] = &*read.outputs else {
        panic!("one output")
    };
    let range = output.range.as_ref().unwrap();
    assert_eq!((&*range.region, range.offset, range.bytes), ("r", 0, 64));
}

/// A region of eight bytes.
struct Eight;

impl Regions for Eight {
    fn read(&mut self, range: &RegionRange) -> Result<Bytes, String> {
        let bytes = Bytes::from_static(b"01234567");
        let (begin, length) = (range.offset as usize, range.bytes as usize);
        if begin + length > bytes.len() {
            return Err("too short".to_owned());
        }
        Ok(bytes.slice(begin..begin + length))
    }
}

#[test]
fn inputs_in_shared_memory_have_no_raw_contents() {
    let in_memory = |bytes| {
        let mut tensor = input("UINT8", &[4], none());
        tensor.parameters = parameters(&[
            (
                "shared_memory_region",
                ParameterChoice::StringParam("r".to_owned()),
            ),
            ("shared_memory_offset", ParameterChoice::Int64Param(2)),
            (
                "shared_memory_byte_size",
                ParameterChoice::Int64Param(bytes),
            ),
        ]);
        tensor
    };
    let mut message = request(vec![
        input("UINT8", &[2], none()),
        in_memory(4),
        input("UINT8", &[1], none()),
    ]);
    message.raw_input_contents = vec![Bytes::from_static(b"ab"), Bytes::from_static(b"c")];
    let read = read_request(message, &Limits::default(), &mut Eight).unwrap();
    let data: Vec<Bytes> = read
        .inputs
        .iter()
        .map(|input| input.data().to_bytes())
        .collect();
    assert_eq!(data, ["ab", "2345", "c"]);
    let long = read_request(request(vec![in_memory(40)]), &Limits::default(), &mut Eight);
    assert!(long.unwrap_err().to_string().contains("too short"));
}

#[test]
fn raw_contents_are_not_copied() {
    let large = Bytes::from(vec![1; 100_000]);
    let mut message = request(vec![input("UINT8", &[100_000], none())]);
    message.raw_input_contents = vec![large];
    let encoded = Bytes::from(message.encode_to_vec());
    let decoded = ModelInferRequest::decode(encoded.clone()).unwrap();
    let read = read_request(decoded, &Limits::default(), &mut NoRegions).unwrap();
    let at = read.inputs[0].data().to_bytes().as_ptr().addr();
    let message = encoded.as_ptr().addr()..encoded.as_ptr().addr() + encoded.len();
    assert!(message.contains(&at));
}

#[test]
fn mistakes_are_refused_with_their_place() {
    let numbers = |count: usize| InferTensorContents {
        fp32_contents: vec![1.0; count],
        ..none()
    };
    let fp32 = |shape: &[i64], count| request(vec![input("FP32", shape, numbers(count))]);
    let with_raw = |mut message: ModelInferRequest, raw: &[&'static [u8]]| {
        message.raw_input_contents = raw.iter().map(|bytes| Bytes::from_static(bytes)).collect();
        message
    };
    let with = |key, choice| ModelInferRequest {
        parameters: parameters(&[(key, choice)]),
        ..request(vec![])
    };
    let other_list = request(vec![input("INT64", &[1], numbers(1))]);
    let too_large = InferTensorContents {
        int_contents: vec![0, 128],
        ..none()
    };
    let long_id = ModelInferRequest {
        id: "x".repeat(257),
        ..request(vec![])
    };
    for (message, expected) in [
        (
            fp32(&[2], 3),
            "input \"x\": the data has 12 bytes, but FP32 [2] requires 8",
        ),
        (fp32(&[-1], 1), "input \"x\": shape: "),
        (fp32(&[1 << 62, 1 << 62], 1), "input \"x\": shape: "),
        (
            request(vec![input("FLOAT", &[1], numbers(1))]),
            "inputs[0].datatype: ",
        ),
        (
            other_list,
            "inputs[0].contents.fp32_contents: given for INT64, whose list is int64_contents",
        ),
        (
            request(vec![input("INT8", &[2], too_large)]),
            "inputs[0].contents.int_contents: element 1 is 128, out of the range of INT8",
        ),
        (
            with_raw(fp32(&[1], 1), &[b"1234"]),
            "inputs[0].contents: given, and raw_input_contents, too: expected one of them",
        ),
        (
            with_raw(
                request(vec![input("FP32", &[1], none())]),
                &[b"1234", b"1234"],
            ),
            "raw_input_contents: expected one for each input without shared memory, 1, found 2",
        ),
        (
            with_raw(
                request(vec![
                    input("UINT8", &[4], none()),
                    input("UINT8", &[4], none()),
                ]),
                &[b"1234"],
            ),
            "raw_input_contents for inputs[1]: there is none for this input",
        ),
        (
            with_raw(request(vec![input("FP32", &[1], none())]), &[b"12345"]),
            "input \"x\": the data has 5 bytes, but FP32 [1] requires 4",
        ),
        (long_id, "id: 257 bytes are over the limit of 256"),
        (
            with("timeout", ParameterChoice::Int64Param(-1)),
            "parameters.timeout: expected an int64_param or uint64_param of at least 0",
        ),
        (
            with("priority", ParameterChoice::StringParam("high".to_owned())),
            "parameters.priority: expected an int64_param or uint64_param of at least 0",
        ),
        (
            with("sequence_id", ParameterChoice::Int64Param(7)),
            "parameters.sequence_id: sequences are not supported: models keep no state between requests",
        ),
    ] {
        let error = read(&message).unwrap_err();
        assert!(error.starts_with(expected), "{error:?} is not {expected:?}");
    }
}

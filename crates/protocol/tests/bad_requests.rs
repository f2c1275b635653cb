//! What a client is told that sends something wrong: the exact words, for they are all it has to go by.

use packhorse_cluster::{ArtifactDigest, Datatype, Dim, Program, TensorSpec};
use packhorse_protocol::{InferRequest, Limits};

fn spec(name: &str, datatype: Datatype, dims: &[i64]) -> TensorSpec {
    let shape = dims
        .iter()
        .map(|dim| Dim::try_from(*dim).unwrap())
        .collect();
    TensorSpec {
        name: name.to_owned(),
        datatype,
        shape,
        pad: None,
    }
}

fn program(max_batch_size: u32, inputs: Vec<TensorSpec>) -> Program {
    Program {
        model: "m:1".parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size,
        inputs,
        outputs: vec![
            spec("y", Datatype::Fp32, &[-1, 2]),
            spec("h", Datatype::Fp16, &[-1, 4]),
        ],
    }
}

/// Two inputs with a batch dimension.
fn pair() -> Program {
    program(
        4,
        vec![
            spec("x", Datatype::Fp32, &[-1, 3]),
            spec("ids", Datatype::Int64, &[-1, -1]),
        ],
    )
}

/// One input of this type, without a batch dimension.
fn single(datatype: Datatype, dims: &[i64]) -> Program {
    program(0, vec![spec("x", datatype, dims)])
}

fn parse(
    body: &[u8],
    header_length: Option<u64>,
    program: &Program,
) -> Result<InferRequest, String> {
    InferRequest::parse(
        body.to_vec().into(),
        header_length,
        program,
        &Limits::default(),
    )
    .map_err(|e| e.to_string())
}

fn refused(body: &str, program: &Program, message: &str) {
    assert_eq!(
        parse(body.as_bytes(), None, program).unwrap_err(),
        message,
        "{body}"
    );
}

const X: &str = r#"{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}"#;
const IDS: &str = r#"{"name":"ids","shape":[1,2],"datatype":"INT64","data":[7,8]}"#;

fn with_inputs(inputs: &str) -> String {
    format!(r#"{{"inputs":[{inputs}]}}"#)
}

/// A request for one input of two numbers, except for this.
fn data_of(datatype: Datatype, dims: &str, data: &str) -> String {
    with_inputs(&format!(
        r#"{{"name":"x","shape":{dims},"datatype":"{datatype}","data":{data}}}"#
    ))
}

#[test]
fn the_right_request_is_accepted() {
    let request = parse(with_inputs(&format!("{IDS},{X}")).as_bytes(), None, &pair()).unwrap();
    assert_eq!(request.rows, 1);
    assert_eq!(
        request.inputs[0].values::<f32>().unwrap(),
        [1.0, 2.0, 3.0],
        "the model's order, not the request's"
    );
    assert_eq!(request.inputs[1].values::<i64>().unwrap(), [7, 8]);
}

#[test]
fn text_that_is_not_json_is_refused_with_its_place() {
    let pair = pair();
    refused(
        "",
        &pair,
        "invalid JSON: expected an object, found the end at byte 0",
    );
    refused(
        "[]",
        &pair,
        "invalid JSON: expected an object, found a list at byte 0",
    );
    refused(
        r#"{"inputs":[}"#,
        &pair,
        "inputs[0]: expected an object, found } at byte 11",
    );
    refused(
        r#"{"inputs":[],}"#,
        &pair,
        "invalid JSON: expected a string, found } at byte 13",
    );
    refused(
        r#"{"inputs":[]} x"#,
        &pair,
        "invalid JSON: expected the end, found x at byte 14",
    );
    refused(
        r#"{"id":1,"inputs":[]}"#,
        &pair,
        "id: expected a string, found 1 at byte 6",
    );
    refused(
        r#"{"id":nope,"inputs":[]}"#,
        &pair,
        "id: expected a string, found nope at byte 6",
    );
    assert_eq!(
        parse(b"{\"id\":\"\xff\"}", None, &pair).unwrap_err(),
        "invalid JSON: invalid UTF-8 at byte 7"
    );
}

#[test]
fn fields_out_of_place_are_refused_by_name() {
    let pair = pair();
    refused("{}", &pair, "inputs: missing");
    refused(
        r#"{"inputs":7}"#,
        &pair,
        "inputs: expected a list, found 7 at byte 10",
    );
    refused(
        r#"{"inputs":[7]}"#,
        &pair,
        "inputs[0]: expected an object, found 7 at byte 11",
    );
    refused(r#"{"inputs":[],"inputs":[]}"#, &pair, "inputs: given twice");
    refused(
        r#"{"inputs":[],"id":"a","id":"b"}"#,
        &pair,
        "id: given twice",
    );
    refused(
        &format!(r#"{{"id":"{}","inputs":[]}}"#, "i".repeat(257)),
        &pair,
        "id: 257 bytes are over the limit of 256",
    );
    refused(
        &with_inputs(&[X; 65].join(",")),
        &pair,
        "inputs: more than the limit of 64",
    );
    refused(&with_inputs("{}"), &pair, "inputs[0]: datatype is missing");
    refused(
        &with_inputs(&format!(r#"{{"name":"{}"}}"#, "n".repeat(257))),
        &pair,
        "inputs[0].name: 257 bytes are over the limit of 256",
    );
    refused(
        &with_inputs(r#"{"name":"x","datatype":"FP32"}"#),
        &pair,
        r#"input "x": shape is missing"#,
    );
    refused(
        &with_inputs(r#"{"datatype":"FP32","shape":[1],"data":[1]}"#),
        &pair,
        "inputs[0]: name is missing",
    );
    refused(
        &with_inputs(r#"{"name":"x","datatype":"FLOAT"}"#),
        &pair,
        "input \"x\": datatype: unknown datatype \"FLOAT\": expected one of BOOL, UINT8..64, INT8..64, FP16, BF16, FP32, FP64, BYTES",
    );
    refused(
        &with_inputs(r#"{"name":"x","shape":[1],"shape":[1]}"#),
        &pair,
        r#"input "x": shape: given twice"#,
    );
    refused(
        &with_inputs(r#"{"name":"x","shape":[1],"datatype":"FP32"}"#),
        &pair,
        r#"input "x": no data: expected "data" or parameters.binary_data_size (shared memory is not supported)"#,
    );
    refused(
        &with_inputs(
            r#"{"name":"x","shape":[1],"datatype":"FP32","data":[1],"parameters":{"binary_data_size":4}}"#,
        ),
        &pair,
        r#"input "x": expected either "data" or parameters.binary_data_size, not both"#,
    );
    refused(
        &with_inputs(r#"{"name":"x","data":[1],"shape":[1],"datatype":"FP32","data":[1]}"#),
        &pair,
        r#"input "x": data: given twice"#,
    );
    refused(
        &with_inputs(r#"{"name":"x","parameters":{"binary_data_size":-4}}"#),
        &pair,
        "input \"x\": parameters.binary_data_size: invalid value: integer `-4`, expected u64 at byte 56",
    );
}

#[test]
fn shapes_that_are_none_are_refused() {
    let pair = pair();
    let shaped = |shape: &str| {
        with_inputs(&format!(
            r#"{{"name":"x","shape":{shape},"datatype":"FP32","data":[]}}"#
        ))
    };
    refused(
        &shaped("3"),
        &pair,
        "input \"x\": shape: expected a list of integers, found 3 at byte 31",
    );
    refused(
        &shaped("[1.5]"),
        &pair,
        "input \"x\": shape: invalid type: floating point `1.5`, expected i64 at byte 32",
    );
    refused(
        &shaped("[1,-1]"),
        &pair,
        "input \"x\": shape: dimension 1 is -1",
    );
    refused(
        &shaped("[4294967296,4294967296]"),
        &pair,
        "input \"x\": shape: the product of the dimensions is over the limit of 1099511627776 elements",
    );
    refused(
        &shaped("[9223372036854775808]"),
        &pair,
        "input \"x\": shape: invalid value: integer `9223372036854775808`, expected i64 at byte 32",
    );
    refused(
        &shaped(&format!("[{}1]", "1,".repeat(16))),
        &pair,
        "input \"x\": shape: the rank is over the limit of 16",
    );
}

#[test]
fn tensors_that_do_not_suit_the_model_are_refused() {
    let pair = pair();
    refused(&with_inputs(X), &pair, r#"input "ids": missing"#);
    refused(
        &with_inputs(&format!("{X},{IDS},{X}")),
        &pair,
        r#"input "x": given twice"#,
    );
    refused(
        &with_inputs(r#"{"name":"z","shape":[1],"datatype":"FP32","data":[1]}"#),
        &pair,
        r#"input "z": the model has no such input, but "x", "ids""#,
    );
    refused(
        &with_inputs(r#"{"name":"x","shape":[1,3],"datatype":"FP64","data":[1,2,3]}"#),
        &pair,
        r#"input "x": datatype FP64, but the model wants FP32"#,
    );
    refused(
        &with_inputs(r#"{"name":"x","shape":[3],"datatype":"FP32","data":[1,2,3]}"#),
        &pair,
        r#"input "x": shape [3] does not fit [-1,3]"#,
    );
    refused(
        &with_inputs(r#"{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}"#),
        &pair,
        r#"input "x": shape [1,2] does not fit [-1,3]"#,
    );
    let ids = |rows: usize| {
        let data = vec!["1"; rows].join(",");
        format!(r#"{{"name":"ids","shape":[{rows},1],"datatype":"INT64","data":[{data}]}}"#)
    };
    refused(
        &with_inputs(&format!("{X},{}", ids(2))),
        &pair,
        r#"input "ids": 2 rows, but input "x" has 1"#,
    );
    let one = program(4, vec![spec("ids", Datatype::Int64, &[-1, -1])]);
    refused(
        &with_inputs(&ids(0)),
        &one,
        r#"input "ids": a batch of 0 rows, expected 1 to 4"#,
    );
    refused(
        &with_inputs(&ids(5)),
        &one,
        r#"input "ids": a batch of 5 rows, expected 1 to 4"#,
    );
    assert_eq!(
        parse(with_inputs(&ids(4)).as_bytes(), None, &one)
            .unwrap()
            .rows,
        4
    );
}

#[test]
fn json_data_that_does_not_suit_the_shape_is_refused() {
    let floats = |dims: &str, data: &str, message: &str| {
        refused(
            &data_of(Datatype::Fp32, dims, data),
            &single(Datatype::Fp32, &[-1, -1]),
            message,
        );
    };
    floats(
        "[2,2]",
        "[1,2,3]",
        r#"input "x": data: a list of 3, where shape [2,2] wants 4"#,
    );
    floats(
        "[2,2]",
        "[1,2,3,4,5]",
        r#"input "x": data: a list of more than 4, where shape [2,2] wants 4"#,
    );
    floats(
        "[2,2]",
        "[]",
        r#"input "x": data: a list of 0, where shape [2,2] wants 4"#,
    );
    floats(
        "[0,2]",
        "[1]",
        r#"input "x": data: a list of more than 0, where shape [0,2] wants 0"#,
    );
    floats(
        "[2,2]",
        "[[1,2],[3]]",
        r#"input "x": data: a list of 1, where shape [2,2] wants 2"#,
    );
    floats(
        "[2,2]",
        "[[1,2]]",
        r#"input "x": data: a list of 1, where shape [2,2] wants 2"#,
    );
    floats(
        "[2,2]",
        "[[1,2],[3,4],[5,6]]",
        r#"input "x": data: a list of more than 2, where shape [2,2] wants 2"#,
    );
    floats(
        "[2,2]",
        "[[1,2],3]",
        r#"input "x": data: expected a list at depth 2, found 3; nested lists must match shape [2,2]"#,
    );
    floats(
        "[2,2]",
        "[[[1,2],[3,4]]]",
        r#"input "x": data[0]: expected a number for FP32, found a list"#,
    );
    floats(
        "[2,2]",
        "[1,[2]]",
        r#"input "x": data[1]: expected a number for FP32, found a list"#,
    );
    floats(
        "[2,2]",
        "7",
        r#"input "x": data: expected a list at depth 1, found 7; nested lists must match shape [2,2]"#,
    );
    floats(
        "[2,2]",
        "[1 2]",
        "input \"x\": expected \",\" or \"]\", found 2 at byte 65",
    );
    floats(
        "[2,2]",
        "[1,2,3,4",
        "input \"x\": expected \",\" or \"]\", found } at byte 70",
    );
    floats(
        "[2,2]",
        "[1,2,3,4}",
        "input \"x\": expected \",\" or \"]\", found } at byte 70",
    );
    floats(
        "[2,2]",
        "[1,2,3,]",
        r#"input "x": data[3]: expected a number for FP32, found ]"#,
    );
    refused(
        &data_of(Datatype::Fp32, "[2]", "[[1],[2]]"),
        &single(Datatype::Fp32, &[-1]),
        r#"input "x": data[0]: expected a number for FP32, found a list"#,
    );
}

#[test]
fn a_nesting_bomb_is_refused_wherever_it_lies() {
    let bomb = "[".repeat(3_000_000);
    let model = single(Datatype::Fp32, &[2]);
    refused(
        &data_of(Datatype::Fp32, "[2]", &bomb),
        &model,
        r#"input "x": data[0]: expected a number for FP32, found a list"#,
    );
    for place in [
        format!(r#"{{"inputs":{bomb}"#),
        format!(r#"{{"else":{bomb}"#),
        format!(r#"{{"parameters":{{"custom":{bomb}"#),
        format!(r#"{{"inputs":[{{"data":{bomb}"#),
        format!(r#"{{"inputs":[{{"shape":{bomb}"#),
        "{\"a\":".repeat(1_000_000),
    ] {
        assert!(parse(place.as_bytes(), None, &model).is_err());
    }
}

#[test]
fn json_values_of_another_type_or_out_of_range_are_refused() {
    let value = |datatype: Datatype, value: &str, message: &str| {
        let body = data_of(datatype, "[2]", &format!("[0,{value}]"));
        refused(
            &body,
            &single(datatype, &[2]),
            &format!("input \"x\": {message}"),
        );
    };
    use Datatype::{
        Bf16, Bool, Bytes, Fp16, Fp32, Fp64, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32,
        Uint64,
    };
    value(Uint8, "256", "data[1]: 256 is out of the range of UINT8");
    value(Uint8, "-1", "data[1]: -1 is out of the range of UINT8");
    value(
        Uint16,
        "65536",
        "data[1]: 65536 is out of the range of UINT16",
    );
    value(
        Uint32,
        "4294967296",
        "data[1]: 4294967296 is out of the range of UINT32",
    );
    value(
        Uint64,
        "18446744073709551616",
        "data[1]: 18446744073709551616 is out of the range of UINT64",
    );
    value(Int8, "-129", "data[1]: -129 is out of the range of INT8");
    value(
        Int16,
        "32768",
        "data[1]: 32768 is out of the range of INT16",
    );
    value(
        Int32,
        "-2147483649",
        "data[1]: -2147483649 is out of the range of INT32",
    );
    value(
        Int64,
        "9223372036854775808",
        "data[1]: 9223372036854775808 is out of the range of INT64",
    );
    value(
        Int64,
        &"9".repeat(50),
        "data[1]: 999999999999999999999999 is out of the range of INT64",
    );
    value(Fp32, "1e39", "data[1]: 1e39 is out of the range of FP32");
    value(
        Fp64,
        "-1e309",
        "data[1]: -1e309 is out of the range of FP64",
    );
    value(
        Int32,
        "1.0",
        "data[1]: expected an integer for INT32, found 1.0",
    );
    value(
        Int32,
        "1e3",
        "data[1]: expected an integer for INT32, found 1e3",
    );
    value(
        Int32,
        "true",
        "data[1]: expected an integer for INT32, found true",
    );
    value(
        Fp32,
        "NaN",
        "data[1]: expected a number for FP32, found NaN",
    );
    value(
        Fp32,
        "Infinity",
        "data[1]: expected a number for FP32, found Infinity",
    );
    value(
        Fp32,
        "-Infinity",
        "data[1]: expected a number for FP32, found -Infinity",
    );
    value(
        Fp32,
        "null",
        "data[1]: expected a number for FP32, found null",
    );
    value(
        Fp64,
        "false",
        "data[1]: expected a number for FP64, found false",
    );
    value(
        Fp64,
        "\"1\"",
        "data[1]: expected a number for FP64, found a string",
    );
    value(
        Bool,
        "2",
        "data[1]: expected true, false, 0 or 1 for BOOL, found 2",
    );
    value(
        Bool,
        "1.0",
        "data[1]: expected true, false, 0 or 1 for BOOL, found 1.0",
    );
    value(
        Bool,
        "yes",
        "data[1]: expected true, false, 0 or 1 for BOOL, found yes",
    );
    value(Bytes, "1", "data[0]: expected a string for BYTES, found 0");
    value(Fp16, "1", "FP16 has no JSON form: send it as binary data");
    value(Bf16, "1", "BF16 has no JSON form: send it as binary data");
}

/// A request with one binary input of shape [1,3] and the bytes behind its JSON.
fn binary(size: u64, bytes: usize) -> (Vec<u8>, u64) {
    let mut body = with_inputs(&format!(
        r#"{{"name":"x","shape":[1,3],"datatype":"FP32","parameters":{{"binary_data_size":{size}}}}}"#
    ))
    .into_bytes();
    let header_length = body.len() as u64;
    body.extend(vec![0; bytes]);
    (body, header_length)
}

#[test]
fn binary_data_of_the_wrong_size_is_refused() {
    let model = program(4, vec![spec("x", Datatype::Fp32, &[-1, 3])]);
    let check = |size, bytes, message: &str| {
        let (body, header_length) = binary(size, bytes);
        assert_eq!(
            parse(&body, Some(header_length), &model).unwrap_err(),
            message
        );
    };
    check(
        12,
        8,
        r#"input "x": binary_data_size is 12, but only 8 bytes are left in the body"#,
    );
    check(
        u64::MAX,
        8,
        r#"input "x": binary_data_size is 18446744073709551615, but only 8 bytes are left in the body"#,
    );
    check(
        12,
        13,
        "1 bytes are left over behind the last binary tensor",
    );
    check(8, 8, r#"input "x": 8 bytes, but FP32 [1,3] takes 12"#);
    check(16, 16, r#"input "x": 16 bytes, but FP32 [1,3] takes 12"#);
    let (body, header_length) = binary(12, 12);
    assert_eq!(parse(&body, Some(header_length), &model).unwrap().rows, 1);
}

#[test]
fn a_wrong_header_length_is_refused() {
    let model = program(4, vec![spec("x", Datatype::Fp32, &[-1, 3])]);
    let (body, right) = binary(12, 12);
    let check = |header_length, message: &str| {
        assert_eq!(
            parse(&body, header_length, &model).unwrap_err(),
            message,
            "{header_length:?} instead of {right}"
        );
    };
    let long = u64::MAX;
    check(
        Some(long),
        &format!("Inference-Header-Content-Length is {long}, but the body has only 106 bytes"),
    );
    check(
        Some(right - 1),
        "invalid JSON in the 93 bytes that Inference-Header-Content-Length names: expected \",\" or \"}\", found the end at byte 93",
    );
    check(
        Some(right + 1),
        "invalid JSON in the 95 bytes that Inference-Header-Content-Length names: expected the end, found \\0 at byte 94",
    );
    check(None, "invalid JSON: expected the end, found \\0 at byte 94");
    let small = Limits {
        json_bytes: 90,
        ..Limits::default()
    };
    let error = InferRequest::parse(body.into(), Some(right), &model, &small).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the JSON part has 94 bytes, over the limit of 90"
    );
}

#[test]
fn a_header_length_on_pure_json_is_fine() {
    let body = with_inputs(&format!("{X},{IDS}"));
    assert!(parse(body.as_bytes(), Some(body.len() as u64), &pair()).is_ok());
}

#[test]
fn outputs_that_cannot_be_given_are_refused() {
    let asking = |outputs: &str, more: &str| {
        format!(r#"{{"inputs":[{X},{IDS}],"outputs":[{outputs}]{more}}}"#)
    };
    let pair = pair();
    let (none, h) = ("", r#"{"name":"h"}"#);
    refused(
        &asking(r#"{"name":"z"}"#, none),
        &pair,
        r#"output "z": the model has no such output, but "y", "h""#,
    );
    refused(
        &asking(&format!("{h},{h}"), none),
        &pair,
        r#"output "h": asked for twice"#,
    );
    refused(&asking("{}", none), &pair, "outputs[0]: name is missing");
    refused(
        &asking(r#"{"name":"h","parameters":{"binary_data":false}}"#, none),
        &pair,
        r#"output "h": FP16 has no JSON form: ask for binary_data"#,
    );
    refused(
        &asking(none, r#","parameters":{"binary_data_output":false}"#),
        &pair,
        r#"output "h": FP16 has no JSON form: ask for binary_data"#,
    );
    refused(
        &asking(r#"{"name":"y","parameters":{"classification":3}}"#, none),
        &pair,
        "outputs[0].parameters.classification: classification is not supported, ask for the output itself",
    );
    refused(
        &asking(r#"{"name":"y","parameters":{"binary_data":1}}"#, none),
        &pair,
        "outputs[0].parameters.binary_data: invalid type: integer `1`, expected a boolean at byte 184",
    );
}

#[test]
fn parameters_are_checked_where_we_know_them() {
    let with = |parameters: &str| format!(r#"{{"parameters":{parameters},"inputs":[{X},{IDS}]}}"#);
    let pair = pair();
    let stateless = "sequences are not supported, models keep no state between requests";
    refused(
        &with(r#"{"sequence_id":5}"#),
        &pair,
        &format!("parameters.sequence_id: {stateless}"),
    );
    refused(
        &with(r#"{"sequence_id":"s"}"#),
        &pair,
        &format!("parameters.sequence_id: {stateless}"),
    );
    refused(
        &with(r#"{"sequence_start":true}"#),
        &pair,
        &format!("parameters.sequence_start: {stateless}"),
    );
    refused(
        &with(r#"{"timeout":-1}"#),
        &pair,
        "parameters.timeout: invalid value: integer `-1`, expected u64 at byte 25",
    );
    refused(
        &with(r#"{"priority":"high"}"#),
        &pair,
        "parameters.priority: invalid type: string \"high\", expected u64 at byte 26",
    );
    refused(
        &with("7"),
        &pair,
        "parameters: expected an object, found 7 at byte 14",
    );
    let harmless = with(
        r#"{"sequence_id":0,"sequence_end":false,"custom":{"a":[1]},"headers":null,"timeout":0,"priority":2}"#,
    );
    let request = parse(harmless.as_bytes(), None, &pair).unwrap();
    assert_eq!((request.timeout, request.priority), (None, 2));
}

#[test]
fn a_raw_body_must_suit_a_single_input() {
    let raw = |bytes: usize, program: &Program| parse(&vec![0; bytes], Some(0), program);
    let message = |problem: &str| {
        format!("Inference-Header-Content-Length 0 announces one raw tensor: {problem}")
    };
    assert_eq!(
        raw(12, &pair()).unwrap_err(),
        message("the model has 2 inputs, not one")
    );
    assert_eq!(
        raw(12, &single(Datatype::Bytes, &[-1])).unwrap_err(),
        message("the size of BYTES elements is not known")
    );
    assert_eq!(
        raw(12, &single(Datatype::Fp32, &[-1, -1])).unwrap_err(),
        message("shape [-1,-1] has more than one variable dimension")
    );
    let batched = program(4, vec![spec("x", Datatype::Fp32, &[-1, 3])]);
    assert_eq!(
        raw(13, &batched).unwrap_err(),
        message(
            "13 bytes are no multiple of the 12 bytes that FP32 [-1,3] takes per step of dimension 0"
        )
    );
    assert_eq!(
        raw(60, &batched).unwrap_err(),
        r#"input "x": a batch of 5 rows, expected 1 to 4"#
    );
    assert_eq!(
        raw(0, &batched).unwrap_err(),
        r#"input "x": a batch of 0 rows, expected 1 to 4"#
    );
    let fixed = single(Datatype::Fp32, &[2, 3]);
    assert_eq!(
        raw(20, &fixed).unwrap_err(),
        message("20 bytes, but FP32 [2,3] takes 24")
    );
}

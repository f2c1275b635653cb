//! Errors for wrong requests, with their exact texts, as they are all that a client gets.

use packhorse_cluster::{Datatype, Dim, Program, TensorSpec};

use super::{data_of, parse, program, refused, single, spec, with_inputs};

const X: &str = r#"{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}"#;
const IDS: &str = r#"{"name":"ids","shape":[1,2],"datatype":"INT64","data":[7,8]}"#;

/// A model with two inputs and a batch dimension.
fn pair() -> Program {
    program(
        4,
        vec![
            spec("x", Datatype::Fp32, &[-1, 3]),
            spec("ids", Datatype::Int64, &[-1, -1]),
        ],
    )
}

#[test]
fn a_valid_request_is_accepted() {
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
fn text_that_is_not_json_is_refused_with_its_offset() {
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
        r#"input "x": no data: expected "data", parameters.binary_data_size or parameters.shared_memory_region"#,
    );
    refused(
        &with_inputs(
            r#"{"name":"x","shape":[1],"datatype":"FP32","data":[1],"parameters":{"binary_data_size":4}}"#,
        ),
        &pair,
        r#"input "x": expected one of "data", parameters.binary_data_size and parameters.shared_memory_region"#,
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
fn invalid_shapes_are_refused() {
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
fn sizes_that_do_not_belong_together_or_are_too_small_are_refused() {
    let named = |name: &str| TensorSpec {
        min_shape: Some(vec![Dim::Any, Dim::Fixed(2)]),
        dim_names: Some(vec![None, Some("length".to_owned())]),
        ..spec(name, Datatype::Int64, &[-1, -1])
    };
    let model = program(4, vec![named("ids"), named("mask")]);
    let tensor = |name: &str, length: usize| {
        let data = vec!["1"; length].join(",");
        format!(r#"{{"name":"{name}","shape":[1,{length}],"datatype":"INT64","data":[{data}]}}"#)
    };
    let body = |ids, mask| with_inputs(&format!("{},{}", tensor("mask", mask), tensor("ids", ids)));
    parse(body(3, 3).as_bytes(), None, &model).unwrap();
    refused(
        &body(5, 3),
        &model,
        r#"inputs: dimension 1 of "ids" is 5, and dimension 1 of "mask" is 3: both are "length" (dim_names), and must be equal"#,
    );
    refused(
        &body(1, 1),
        &model,
        r#"input "mask": dimension 1 is 1, below the limit of 2 that the model declares (min_shape)"#,
    );
}

#[test]
fn tensors_that_do_not_match_the_model_are_refused() {
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
        r#"input "z": the model has no such input, only "x", "ids""#,
    );
    refused(
        &with_inputs(r#"{"name":"x","shape":[1,3],"datatype":"FP64","data":[1,2,3]}"#),
        &pair,
        r#"input "x": datatype FP64, but the model requires FP32"#,
    );
    refused(
        &with_inputs(r#"{"name":"x","shape":[3],"datatype":"FP32","data":[1,2,3]}"#),
        &pair,
        r#"input "x": shape [3] does not match the model's [-1,3]"#,
    );
    refused(
        &with_inputs(r#"{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}"#),
        &pair,
        r#"input "x": shape [1,2] does not match the model's [-1,3]"#,
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
fn a_nesting_bomb_is_refused_everywhere() {
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
fn a_header_length_on_pure_json_is_fine() {
    let body = with_inputs(&format!("{X},{IDS}"));
    assert!(parse(body.as_bytes(), Some(body.len() as u64), &pair()).is_ok());
}

#[test]
fn outputs_that_cannot_be_returned_are_refused() {
    let asking = |outputs: &str, more: &str| {
        format!(r#"{{"inputs":[{X},{IDS}],"outputs":[{outputs}]{more}}}"#)
    };
    let pair = pair();
    let (none, h) = ("", r#"{"name":"h"}"#);
    refused(
        &asking(r#"{"name":"z"}"#, none),
        &pair,
        r#"output "z": the model has no such output, only "y", "h""#,
    );
    refused(
        &asking(&format!("{h},{h}"), none),
        &pair,
        r#"output "h": requested twice"#,
    );
    refused(&asking("{}", none), &pair, "outputs[0]: name is missing");
    refused(
        &asking(r#"{"name":"h","parameters":{"binary_data":false}}"#, none),
        &pair,
        r#"output "h": FP16 has no JSON form: request it with binary_data"#,
    );
    refused(
        &asking(none, r#","parameters":{"binary_data_output":false}"#),
        &pair,
        r#"output "h": FP16 has no JSON form: request it with binary_data"#,
    );
    refused(
        &asking(r#"{"name":"y","parameters":{"classification":-3}}"#, none),
        &pair,
        "outputs[0].parameters.classification: invalid value: integer `-3`, expected u32 at byte 187",
    );
    refused(
        &asking(r#"{"name":"y","parameters":{"binary_data":1}}"#, none),
        &pair,
        "outputs[0].parameters.binary_data: invalid type: integer `1`, expected a boolean at byte 184",
    );
}

#[test]
fn supported_parameters_are_checked() {
    let with = |parameters: &str| format!(r#"{{"parameters":{parameters},"inputs":[{X},{IDS}]}}"#);
    let pair = pair();
    let stateless = "sequences are not supported: models keep no state between requests";
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
fn a_dimension_over_its_limit_is_named_with_the_limit() {
    let limited = |max_shape: Option<[i64; 2]>| {
        let dims = |dims: [i64; 2]| dims.map(|dim| Dim::try_from(dim).unwrap()).to_vec();
        let input = TensorSpec {
            max_shape: max_shape.map(dims),
            ..spec("ids", Datatype::Uint8, &[-1, -1])
        };
        program(8, vec![input])
    };
    let sent = |program: &Program, columns: usize| {
        // Only the shape and the length of the data count, in either form.
        let head = format!(
            r#"{{"inputs":[{{"name":"ids","shape":[1,{columns}],"datatype":"UINT8","parameters":{{"binary_data_size":{columns}}}}}]}}"#
        );
        let length = head.len() as u64;
        let body = [head.into_bytes(), vec![0; columns]].concat();
        let raw = parse(&vec![0; columns], Some(0), program).map(|request| request.rows);
        let parsed = parse(&body, Some(length), program).map(|request| request.rows);
        assert_eq!(raw, parsed);
        parsed
    };
    let short = limited(Some([-1, 512]));
    assert_eq!(sent(&short, 512), Ok(1));
    let message = r#"input "ids": dimension 1 is 513, over the limit of 512 that the model declares (max_shape)"#;
    assert_eq!(sent(&short, 513), Err(message.to_owned()));
    let open = limited(None);
    assert_eq!(sent(&open, 4_194_304), Ok(1));
    let message = r#"input "ids": dimension 1 is 4194305, over the limit of 4194304: a row has at most 4194304 elements where the model declares no max_shape"#;
    assert_eq!(sent(&open, 4_194_305), Err(message.to_owned()));
    assert_eq!(sent(&limited(Some([-1, 5_000_000])), 4_194_305), Ok(1));
}

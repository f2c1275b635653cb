//! Errors for tensors with wrong data: in JSON, in the binary part, or as a raw body.

use packhorse_cluster::{Datatype, Program};

use super::{data_of, parse, program, refused, single, spec, with_inputs};
use crate::{InferRequest, Limits};

#[test]
fn json_data_that_does_not_match_the_shape_is_refused() {
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
        r#"input "x": data: a list of length 3, but shape [2,2] requires 4"#,
    );
    floats(
        "[2,2]",
        "[1,2,3,4,5]",
        r#"input "x": data: a list of length more than 4, but shape [2,2] requires 4"#,
    );
    floats(
        "[2,2]",
        "[]",
        r#"input "x": data: a list of length 0, but shape [2,2] requires 4"#,
    );
    floats(
        "[0,2]",
        "[1]",
        r#"input "x": data: a list of length more than 0, but shape [0,2] requires 0"#,
    );
    floats(
        "[2,2]",
        "[[1,2],[3]]",
        r#"input "x": data: a list of length 1, but shape [2,2] requires 2"#,
    );
    floats(
        "[2,2]",
        "[[1,2]]",
        r#"input "x": data: a list of length 1, but shape [2,2] requires 2"#,
    );
    floats(
        "[2,2]",
        "[[1,2],[3,4],[5,6]]",
        r#"input "x": data: a list of length more than 2, but shape [2,2] requires 2"#,
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
fn json_values_of_another_type_or_out_of_range_are_refused() {
    #[rustfmt::skip]
    let table = [
        (Datatype::Uint8, "256", "data[1]: 256 is out of the range of UINT8"),
        (Datatype::Uint8, "-1", "data[1]: -1 is out of the range of UINT8"),
        (Datatype::Uint16, "65536", "data[1]: 65536 is out of the range of UINT16"),
        (Datatype::Uint32, "4294967296", "data[1]: 4294967296 is out of the range of UINT32"),
        (Datatype::Uint64, "18446744073709551616", "data[1]: 18446744073709551616 is out of the range of UINT64"),
        (Datatype::Int8, "-129", "data[1]: -129 is out of the range of INT8"),
        (Datatype::Int16, "32768", "data[1]: 32768 is out of the range of INT16"),
        (Datatype::Int32, "-2147483649", "data[1]: -2147483649 is out of the range of INT32"),
        (Datatype::Int64, "9223372036854775808", "data[1]: 9223372036854775808 is out of the range of INT64"),
        (Datatype::Int64, "99999999999999999999999999999999999999999999999999", "data[1]: 999999999999999999999999 is out of the range of INT64"),
        (Datatype::Fp32, "1e39", "data[1]: 1e39 is out of the range of FP32"),
        (Datatype::Fp64, "-1e309", "data[1]: -1e309 is out of the range of FP64"),
        (Datatype::Int32, "1.0", "data[1]: expected an integer for INT32, found 1.0"),
        (Datatype::Int32, "1e3", "data[1]: expected an integer for INT32, found 1e3"),
        (Datatype::Int32, "true", "data[1]: expected an integer for INT32, found true"),
        (Datatype::Fp32, "NaN", "data[1]: expected a number for FP32, found NaN"),
        (Datatype::Fp32, "Infinity", "data[1]: expected a number for FP32, found Infinity"),
        (Datatype::Fp32, "-Infinity", "data[1]: expected a number for FP32, found -Infinity"),
        (Datatype::Fp32, "null", "data[1]: expected a number for FP32, found null"),
        (Datatype::Fp64, "false", "data[1]: expected a number for FP64, found false"),
        (Datatype::Fp64, "\"1\"", "data[1]: expected a number for FP64, found a string"),
        (Datatype::Bool, "2", "data[1]: expected true, false, 0 or 1 for BOOL, found 2"),
        (Datatype::Bool, "1.0", "data[1]: expected true, false, 0 or 1 for BOOL, found 1.0"),
        (Datatype::Bool, "yes", "data[1]: expected true, false, 0 or 1 for BOOL, found yes"),
        (Datatype::Bytes, "1", "data[0]: expected a string for BYTES, found 0"),
        (Datatype::Fp16, "1", "FP16 has no JSON form: send it as binary data"),
        (Datatype::Bf16, "1", "BF16 has no JSON form: send it as binary data"),
    ];
    for (datatype, value, message) in table {
        let body = data_of(datatype, "[2]", &format!("[0,{value}]"));
        refused(
            &body,
            &single(datatype, &[2]),
            &format!("input \"x\": {message}"),
        );
    }
}

/// A request with one binary input of shape [1,3], followed by `bytes` bytes.
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
        "expected no bytes after the last binary tensor, found 1",
    );
    check(
        8,
        8,
        r#"input "x": the data has 8 bytes, but FP32 [1,3] requires 12"#,
    );
    check(
        16,
        16,
        r#"input "x": the data has 16 bytes, but FP32 [1,3] requires 12"#,
    );
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
        "invalid JSON in the first 93 bytes, as given by Inference-Header-Content-Length: expected \",\" or \"}\", found the end at byte 93",
    );
    check(
        Some(right + 1),
        "invalid JSON in the first 95 bytes, as given by Inference-Header-Content-Length: expected the end, found \\0 at byte 94",
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
fn a_raw_body_must_match_the_only_input() {
    let raw = |bytes: usize, program: &Program| parse(&vec![0; bytes], Some(0), program);
    let message = |problem: &str| {
        format!("with Inference-Header-Content-Length 0 the body must be one raw tensor: {problem}")
    };
    assert_eq!(
        raw(
            12,
            &program(
                0,
                vec![
                    spec("a", Datatype::Fp32, &[1]),
                    spec("b", Datatype::Fp32, &[1])
                ]
            )
        )
        .unwrap_err(),
        message("the model has 2 inputs, but this form requires exactly one")
    );
    assert_eq!(
        raw(12, &single(Datatype::Bytes, &[-1])).unwrap_err(),
        message("BYTES elements have no fixed size")
    );
    assert_eq!(
        raw(12, &single(Datatype::Fp32, &[-1, -1])).unwrap_err(),
        message("shape [-1,-1] has more than one variable dimension")
    );
    let batched = program(4, vec![spec("x", Datatype::Fp32, &[-1, 3])]);
    assert_eq!(
        raw(13, &batched).unwrap_err(),
        message(
            "13 bytes are not a multiple of the 12 bytes per step of dimension 0 of FP32 [-1,3]"
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
        message("the data has 20 bytes, but FP32 [2,3] requires 24")
    );
}

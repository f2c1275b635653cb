//! Rows of version 1: what becomes of them, and what is refused.

use half::f16;
use packhorse_cluster::{Datatype, Processing, Program, TensorSpec};
use proptest::prelude::*;
use serde_json::json;

use super::{program, shape, spec};
use crate::{Element, NonFinite, RowWriter, Rows, Tensor, is_oip};

fn batched(inputs: Vec<TensorSpec>) -> Program {
    program(8, inputs)
}

/// A model of one input whose rows have this datatype and these dimensions.
fn rows_of(datatype: Datatype, dims: &[i64]) -> Program {
    let dims: Vec<i64> = [-1].iter().chain(dims).copied().collect();
    batched(vec![spec("x", datatype, &dims)])
}

fn parsed_by(body: &str, program: &Program, processing: &Processing) -> Result<Rows, String> {
    Rows::parse(body.as_bytes(), program, processing, 4).map_err(|e| e.to_string())
}

fn parsed(body: &str, program: &Program) -> Result<Rows, String> {
    parsed_by(body, program, &Processing::default())
}

fn inputs(body: &str, program: &Program) -> Vec<Tensor> {
    let rows = parsed(body, program).unwrap();
    rows.message(0..rows.count()).unwrap().inputs
}

fn values<T: Element>(body: &str, program: &Program) -> (String, Vec<T>) {
    let inputs = inputs(body, program);
    (inputs[0].shape().to_string(), inputs[0].values().unwrap())
}

fn refused(body: &str, program: &Program, message: &str) {
    assert_eq!(parsed(body, program).unwrap_err(), message, "{body}");
}

/// A model with a picture, and one with a text.
fn raw(kind: &str) -> (Program, Processing) {
    let picture = json!({"x": {"kind": "image", "resize": {"exact": [2, 2]}}});
    let digest = format!("sha256:{}", "0".repeat(64));
    let text = json!({"text": {"kind": "text", "tokenizer": digest, "max_length": 8, "inputs": {"x": "ids"}}});
    let preprocess = if kind == "text" { text } else { picture };
    let processing = serde_json::from_value(json!({"preprocess": preprocess})).unwrap();
    let program = match kind {
        "text" => rows_of(Datatype::Int64, &[-1]),
        _ => rows_of(Datatype::Fp32, &[3, 2, 2]),
    };
    (program, processing)
}

#[test]
fn rows_become_tensors_of_the_declared_datatype() {
    let pairs = rows_of(Datatype::Fp32, &[2]);
    let expected = ("[2,2]".to_owned(), vec![1.0, 2.5, -3e-3, 4.0]);
    for body in [
        r#"{"instances": [[1, 2.5], [-3e-3, 4.0]]}"#,
        r#"{"inputs": [[1, 2.5], [-3e-3, 4.0]]}"#,
        r#"{"inputs": {"x": [[1, 2.5], [-3e-3, 4.0]]}}"#,
        r#"{"signature_name": "s", "instances": [{"x": [1, 2.5]}, {"x": [-3e-3, 4.0]}], "parameters": null}"#,
    ] {
        assert_eq!(values::<f32>(body, &pairs), expected, "{body}");
    }
    let big = format!(r#"{{"instances": [{}, {}]}}"#, i64::MAX, i64::MIN);
    let numbers = rows_of(Datatype::Int64, &[]);
    assert_eq!(values::<i64>(&big, &numbers).1, [i64::MAX, i64::MIN]);
    let exact = r#"{"instances": [0.1, 1.7976931348623157e308]}"#;
    assert_eq!(
        values::<f64>(exact, &rows_of(Datatype::Fp64, &[])).1,
        [0.1, f64::MAX]
    );
    let flags = r#"{"instances": [[true, false], [1, 0]]}"#;
    assert_eq!(
        values::<bool>(flags, &rows_of(Datatype::Bool, &[2])).1,
        [true, false, true, false]
    );
    let halves = r#"{"instances": [[0.1, 65504]]}"#;
    let expected = [f16::from_f32(0.1), f16::MAX];
    assert_eq!(
        values::<f16>(halves, &rows_of(Datatype::Fp16, &[2])).1,
        expected
    );
    let strings = r#"{"instances": ["a\n", {"b64": "/wA="}]}"#;
    let strings = inputs(strings, &rows_of(Datatype::Bytes, &[]));
    assert_eq!(strings[0].byte_strings().unwrap(), [&b"a\n"[..], b"\xff\0"]);
}

#[test]
fn some_of_the_rows_are_a_request_of_their_own() {
    let rows = r#"{"instances": [["a", "bc"], ["", "d"], ["e", "f"]], "parameters": {"timeout": 5000, "priority": 2, "non_finite_as_null": true}}"#;
    let rows = parsed(rows, &rows_of(Datatype::Bytes, &[2])).unwrap();
    assert_eq!((rows.count(), rows.bytes()), (3, 6 * 4 + 6));
    let last = rows.message(1..3).unwrap();
    assert_eq!(last.inputs[0].shape(), &shape(&[2, 2]));
    assert_eq!(last.inputs[0].byte_strings().unwrap(), ["", "d", "e", "f"]);
    assert_eq!(last.timeout.unwrap().as_micros(), 5000);
    assert_eq!((last.priority, last.non_finite), (2, NonFinite::Null));
    // Without a batch dimension each row is a whole input.
    let whole = program(0, vec![spec("x", Datatype::Uint8, &[2])]);
    let rows = parsed(r#"{"instances": [[1, 2], [3, 4]]}"#, &whole).unwrap();
    let second = &rows.message(1..2).unwrap().inputs[0];
    assert_eq!(second.shape(), &shape(&[2]));
    assert_eq!(second.values::<u8>().unwrap(), [3, 4]);
    assert_eq!(
        parsed(r#"{"inputs": {"x": [1, 2]}}"#, &whole)
            .unwrap()
            .count(),
        1
    );
}

#[test]
fn several_inputs_are_named() {
    let two = batched(vec![
        spec("a", Datatype::Fp32, &[-1]),
        spec("b", Datatype::Int32, &[-1, 2]),
    ]);
    let by_row = r#"{"instances": [{"b": [1, 2], "a": 0.5}, {"a": 1.5, "b": [3, 4]}]}"#;
    let by_column = r#"{"inputs": {"b": [[1, 2], [3, 4]], "a": [0.5, 1.5]}}"#;
    assert_eq!(inputs(by_row, &two), inputs(by_column, &two));
    for (body, message) in [
        (
            r#"{"instances": [[1, 2]]}"#,
            "instances[0]: expected an object of values by the names of the inputs: a, b",
        ),
        (
            r#"{"instances": [{"a": 1, "b": [1, 2]}, {"a": 1}]}"#,
            "instances[1].b: in some rows and not in others",
        ),
        (
            r#"{"instances": [{"a": 1}, {"a": 1, "b": [1, 2]}]}"#,
            "instances[1].b: in some rows and not in others",
        ),
        (
            r#"{"instances": [{"a": 1, "a": 2}]}"#,
            "instances[0].a: given twice",
        ),
        (
            r#"{"instances": [{"c": 1}]}"#,
            r#"instances[0]: the model has no input "c", only a, b"#,
        ),
        (
            r#"{"instances": [{}]}"#,
            "instances[0]: an object without inputs",
        ),
        (
            r#"{"inputs": {"a": [1], "b": [[1, 2], [3, 4]]}}"#,
            "inputs.b: 2 rows, but another input has 1",
        ),
        (
            r#"{"inputs": {"a": [1], "a": [1]}}"#,
            "inputs.a: given twice",
        ),
        (r#"{"inputs": {}}"#, "inputs: no rows"),
        (
            r#"{"inputs": {"a": 1}}"#,
            "inputs.a: expected a list of rows, found 1 at byte 17",
        ),
    ] {
        refused(body, &two, message);
    }
}

#[test]
fn what_is_wrong_is_named_with_its_row() {
    let pairs = rows_of(Datatype::Fp32, &[2]);
    for (body, message) in [
        (
            "",
            "invalid JSON: expected an object, found the end at byte 0",
        ),
        (
            "{}",
            "instances: missing: expected a list of rows, or \"inputs\"",
        ),
        (
            r#"{"instances": 5}"#,
            "instances: expected a list of rows, found 5 at byte 14",
        ),
        (r#"{"instances": []}"#, "instances: an empty list"),
        (
            r#"{"instances": [[1, 2], [3]]}"#,
            "instances[1]: a list of length 1 where the lists before it have 2",
        ),
        (
            r#"{"instances": [[1, 2], 3]}"#,
            "instances[1]: expected lists nested 1 deep, found 3 at depth 0",
        ),
        (
            r#"{"instances": [[[1], [2]]]}"#,
            "instances[0]: expected a number for FP32, found a list",
        ),
        (
            r#"{"instances": [[NaN, 2]]}"#,
            "instances[0]: expected a number for FP32, found NaN",
        ),
        (
            r#"{"instances": [[1, null]]}"#,
            "instances[0]: expected a number for FP32, found null",
        ),
        (
            r#"{"instances": [[1, 4e38]]}"#,
            "instances[0]: 4e38 is out of the range of FP32",
        ),
        (
            r#"{"instances": ["a"]}"#,
            "instances[0]: expected lists nested 1 deep, found a string at depth 0",
        ),
        (
            r#"{"instances": [[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]]}"#,
            "instances: more rows than the limit of 4",
        ),
        (
            r#"{"instances": [[1, 2]], "inputs": [[1, 2]]}"#,
            "inputs: given beside other rows",
        ),
        (
            r#"{"instances": [[1, 2]]} x"#,
            "invalid JSON: expected the end, found x at byte 24",
        ),
        (
            r#"{"instances": [[1, 2]"#,
            "invalid JSON: expected \",\" or \"]\", found the end at byte 21",
        ),
    ] {
        refused(body, &pairs, message);
    }
    let integers = rows_of(Datatype::Int32, &[]);
    refused(
        r#"{"instances": [1, 2.0]}"#,
        &integers,
        "instances[1]: expected an integer for INT32, found 2.0",
    );
    refused(
        r#"{"instances": [70000]}"#,
        &rows_of(Datatype::Fp16, &[]),
        "instances[0]: 70000 is out of the range of FP16",
    );
    // What is nested more deeply than the model declares is not followed.
    let deep = format!(r#"{{"instances": {}"#, "[".repeat(1_000_000));
    refused(
        &deep,
        &pairs,
        "instances[0]: expected a number for FP32, found a list",
    );
    let name = format!(r#"{{"instances": [{{"{}": 1}}]}}"#, "n".repeat(100_000));
    assert!(parsed(&name, &pairs).unwrap_err().len() < 200);
}

#[test]
fn pictures_and_texts_are_what_the_model_declares() {
    let (program, processing) = raw("text");
    let rows = r#"{"instances": ["a b", "", {"b64": "YQ=="}]}"#;
    let rows = parsed_by(rows, &program, &processing).unwrap();
    let (name, texts) = rows.only_raw().unwrap();
    assert_eq!(name, "text");
    assert_eq!(texts.collect::<Vec<_>>(), [&b"a b"[..], b"", b"a"]);
    let message = rows.message(1..3).unwrap();
    assert_eq!(message.inputs[0].shape(), &shape(&[2]));
    let tokens = r#"{"instances": [[1, 2, 3]]}"#;
    let tokens = parsed_by(tokens, &program, &processing).unwrap();
    assert!(!tokens.has_raw() && tokens.only_raw().is_none());
    let named = r#"{"instances": [{"text": "a"}]}"#;
    assert!(parsed_by(named, &program, &processing).unwrap().has_raw());
    let numbers = parsed_by(r#"{"instances": [{"text": 5}]}"#, &program, &processing);
    assert_eq!(
        numbers.unwrap_err(),
        "instances[0].text: expected a text, found 5 at byte 24"
    );
    let (program, processing) = raw("image");
    let picture = r#"{"instances": [{"b64": "AAE="}, {"x": {"b64": "Ag=="}}]}"#;
    let pictures = parsed_by(picture, &program, &processing).unwrap();
    assert_eq!(
        pictures.only_raw().unwrap().1.collect::<Vec<_>>(),
        [&b"\0\x01"[..], b"\x02"]
    );
    for (body, message) in [
        (
            r#"{"instances": ["AAE="]}"#,
            r#"instances[0]: expected a list, or {"b64": "..."}, found a string at byte 15"#,
        ),
        (
            r#"{"instances": [{"b64": "A"}]}"#,
            "instances[0]: b64: Invalid input length: 1",
        ),
        (
            r#"{"instances": [{"b64": 5}]}"#,
            "instances[0]: expected a string, found 5 at byte 23",
        ),
        (
            r#"{"instances": [{"x": {}}]}"#,
            r#"instances[0].x: bytes are {"b64": "..."}"#,
        ),
        (
            r#"{"instances": [{"b64": "AAE="}, [[[1,1],[1,1]],[[1,1],[1,1]],[[1,1],[1,1]]]]}"#,
            "instances[1]: another kind of value than in the rows before",
        ),
    ] {
        let refused = parsed_by(body, &program, &processing).unwrap_err();
        assert_eq!(refused, message, "{body}");
    }
}

#[test]
fn requests_of_version_2_are_told_from_rows() {
    let tensor = r#"{"name": "x", "data": [1, 2], "shape": [2], "datatype": "FP32"}"#;
    assert!(is_oip(
        format!(r#"{{"id": "1", "inputs": [{tensor}]}}"#).as_bytes()
    ));
    for rows in [
        r#"{"instances": [[1]]}"#,
        r#"{"inputs": [[1]]}"#,
        r#"{"inputs": [{"x": 1, "shape": 2}]}"#,
        r#"{"inputs": {"datatype": [1], "shape": [1]}}"#,
        "[]",
        "",
        "\u{0}",
    ] {
        assert!(!is_oip(rows.as_bytes()), "{rows}");
    }
}

fn written(tensor: &Tensor, non_finite: NonFinite) -> Result<String, String> {
    let (rows, row) = tensor.shape().dims().split_first().unwrap();
    let data = tensor.data().to_bytes();
    let mut writer = RowWriter::new("y", tensor.datatype(), row, &data, non_finite);
    let mut out = Vec::new();
    for _ in 0..*rows {
        writer.write(&mut out).map_err(|e| e.to_string())?;
        out.push(b';');
    }
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn outputs_are_nested_like_their_shape() {
    let of = |dims: &[i64], values: &[f32]| {
        let tensor = Tensor::from_values("y", shape(dims), values).unwrap();
        written(&tensor, NonFinite::Error)
    };
    assert_eq!(of(&[2], &[1.0, 0.1]).unwrap(), "1.0;0.1;");
    assert_eq!(of(&[1, 2, 1], &[1.0, 2.0]).unwrap(), "[[1.0],[2.0]];");
    assert_eq!(of(&[2, 0], &[]).unwrap(), "[];[];");
    assert_eq!(
        of(&[1, 2], &[1.0, f32::NAN]).unwrap_err(),
        "\"y\": element 1 is NaN, which JSON cannot represent: request it with binary_data, or as null with parameters.non_finite_as_null"
    );
    let nan = Tensor::from_values("y", shape(&[1]), &[f16::NAN]).unwrap();
    assert_eq!(written(&nan, NonFinite::Null).unwrap(), "null;");
    let strings = [&b"a\""[..], b"\xff"];
    let strings = Tensor::from_byte_strings("y", shape(&[2, 1]), &strings).unwrap();
    assert_eq!(
        written(&strings, NonFinite::Error).unwrap(),
        r#"["a\""];[{"b64":"/w=="}];"#
    );
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(values in prop::collection::vec(any::<f64>(), 12), wide in any::<[i64; 4]>()) {
        let floats = Tensor::from_values("x", shape(&[2, 3, 2]), &values).unwrap();
        let text = written(&floats, NonFinite::Error).unwrap();
        let body = format!(r#"{{"instances":[{}]}}"#, text.trim_end_matches(';').replace(';', ","));
        prop_assert_eq!(&inputs(&body, &rows_of(Datatype::Fp64, &[3, 2]))[0], &floats);
        let integers = Tensor::from_values("x", shape(&[4]), &wide).unwrap();
        let text = written(&integers, NonFinite::Error).unwrap();
        let body = format!(r#"{{"instances":[{}]}}"#, text.trim_end_matches(';').replace(';', ","));
        prop_assert_eq!(&inputs(&body, &rows_of(Datatype::Int64, &[]))[0], &integers);
    }

    #[test]
    fn any_text_is_read_without_a_panic(text in r#"[\[\]{}:," \\ab64instances0-9.eE+-]{0,40}"#) {
        let (program, processing) = raw("image");
        let body = format!(r#"{{"instances":{text}}}"#);
        let _ = Rows::parse(body.as_bytes(), &program, &processing, 4);
        let _ = Rows::parse(text.as_bytes(), &program, &processing, 4);
        let _ = is_oip(text.as_bytes());
    }
}

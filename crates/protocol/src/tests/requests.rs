//! Requests as real clients write them.

use std::time::Duration;

use bytes::Bytes;
use packhorse_cluster::{Datatype, Program};

use super::{program, spec};
use crate::{ByteRope, Form, InferRequest, Limits, RequestedOutput, Tensor};

fn parse(body: &str, program: &Program) -> InferRequest {
    InferRequest::parse(
        body.as_bytes().to_vec().into(),
        None,
        program,
        &Limits::default(),
    )
    .unwrap()
}

fn forms(request: &InferRequest) -> Vec<(usize, Form)> {
    request
        .outputs
        .iter()
        .map(|RequestedOutput { index, form, .. }| (*index, *form))
        .collect()
}

#[test]
fn binary_tensors_are_not_copied() {
    let model = program(
        4,
        vec![
            spec("a", Datatype::Uint8, &[-1, 2000]),
            spec("b", Datatype::Int16, &[-1, 1000]),
        ],
    );
    let head = concat!(
        r#"{"id":"7","inputs":[{"name":"b","shape":[2,1000],"datatype":"INT16","parameters":{"binary_data_size":4000}},"#,
        r#"{"name":"a","shape":[2,2000],"datatype":"UINT8","parameters":{"binary_data_size":4000}}],"#,
        r#""parameters":{"binary_data_output":true,"timeout":1500,"priority":1}}"#
    );
    let mut body = head.as_bytes().to_vec();
    body.extend((0..8000).map(|i| (i % 251) as u8));
    let body = Bytes::from(body);
    let cuts = [0, 100, head.len() + 3000, head.len() + 6000, body.len()];
    let rope: ByteRope = cuts
        .windows(2)
        .map(|cut| body.slice(cut[0]..cut[1]))
        .collect();

    let request =
        InferRequest::parse(rope, Some(head.len() as u64), &model, &Limits::default()).unwrap();
    assert_eq!(request.rows, 2);
    assert_eq!(
        (request.timeout, request.priority),
        (Some(Duration::from_micros(1500)), 1)
    );
    assert_eq!(forms(&request), [(0, Form::Binary), (1, Form::Binary)]);
    let names: Vec<&str> = request.inputs.iter().map(Tensor::name).collect();
    assert_eq!(names, ["a", "b"], "the model's order");
    // Binary data is in the request's order: b's bytes come first.
    let mut at = head.len();
    for input in request.inputs.iter().rev() {
        for chunk in input.data().chunks() {
            assert_eq!(
                chunk.as_ptr(),
                body[at..].as_ptr(),
                "{} was copied",
                input.name()
            );
            at += chunk.len();
        }
    }
    assert_eq!(at, body.len());
}

#[test]
fn data_may_be_nested_or_flat_and_anywhere_in_its_object() {
    let model = program(0, vec![spec("x", Datatype::Int32, &[2, 3])]);
    let flat = parse(
        r#"{"inputs":[{"name":"x","shape":[2,3],"datatype":"INT32","data":[1,2,3,4,5,6]}]}"#,
        &model,
    );
    assert_eq!(flat.inputs[0].values::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(flat.inputs[0].form(), Form::Json);
    assert_eq!(flat.rows, 1);
    for same in [
        r#"{"inputs":[{"name":"x","shape":[2,3],"datatype":"INT32","data":[[1,2,3],[4,5,6]]}]}"#,
        r#"{"inputs":[{"data":[[1,2,3],[4,5,6]],"shape":[2,3],"datatype":"INT32","name":"x"}]}"#,
        " { \"inputs\" : [ { \"data\" : [ 1 , 2 , 3 , 4 , 5 , 6 ] ,\r\n\t\"datatype\" : \"INT32\" , \"name\" : \"x\" , \"shape\" : [ 2 , 3 ] } ] } ",
        r#"{"inputs":[{"name":"\u0078","shape":[2,3],"datatype":"INT32","x":{"y":[]},"data":[1,2,3,4,5,6]}],"else":[[]]}"#,
    ] {
        assert_eq!(parse(same, &model), flat, "{same}");
    }
}

#[test]
fn booleans_and_strings_have_a_json_form() {
    let model = program(
        0,
        vec![
            spec("x", Datatype::Bool, &[4]),
            spec("s", Datatype::Bytes, &[2, 1]),
        ],
    );
    let request = parse(
        r#"{"inputs":[{"name":"x","shape":[4],"datatype":"BOOL","data":[true,false,1,0]},
            {"name":"s","shape":[2,1],"datatype":"BYTES","data":[["a\nb"],["é"]]}]}"#,
        &model,
    );
    assert_eq!(
        request.inputs[0].values::<bool>().unwrap(),
        [true, false, true, false]
    );
    assert_eq!(request.inputs[1].byte_strings().unwrap(), ["a\nb", "é"]);
}

#[test]
fn outputs_have_the_requested_order_and_form() {
    let model = program(0, vec![spec("x", Datatype::Uint8, &[1])]);
    let request = |rest: &str| {
        let body = format!(
            r#"{{"inputs":[{{"name":"x","shape":[1],"datatype":"UINT8","data":[1]}}]{rest}}}"#
        );
        forms(&parse(&body, &model))
    };
    // Half precision has no JSON form and is therefore binary by default.
    assert_eq!(request(""), [(0, Form::Json), (1, Form::Binary)]);
    assert_eq!(
        request(r#","outputs":[]"#),
        [(0, Form::Json), (1, Form::Binary)]
    );
    assert_eq!(
        request(r#","outputs":[{"name":"h"},{"name":"y"}]"#),
        [(1, Form::Binary), (0, Form::Json)]
    );
    assert_eq!(
        request(
            r#","outputs":[{"name":"y","parameters":{"binary_data":true,"classification":0}}]"#
        ),
        [(0, Form::Binary)]
    );
    // An output's own form has precedence over the request's form for all outputs.
    assert_eq!(
        request(
            r#","parameters":{"binary_data_output":true},"outputs":[{"name":"y","parameters":{"binary_data":false}},{"name":"h"}]"#
        ),
        [(0, Form::Json), (1, Form::Binary)]
    );
}

#[test]
fn the_shape_of_a_raw_body_follows_from_its_length() {
    let shape = |max_batch_size, dims: &[i64], bytes: usize| {
        let model = program(max_batch_size, vec![spec("x", Datatype::Fp32, dims)]);
        let request =
            InferRequest::parse(vec![0; bytes].into(), Some(0), &model, &Limits::default())
                .unwrap();
        assert_eq!(forms(&request), [(0, Form::Binary), (1, Form::Binary)]);
        (request.inputs[0].shape().dims().to_vec(), request.rows)
    };
    assert_eq!(shape(0, &[2, 3], 24), (vec![2, 3], 1));
    assert_eq!(shape(0, &[], 4), (vec![], 1));
    assert_eq!(shape(0, &[3, -1], 24), (vec![3, 2], 1));
    assert_eq!(shape(8, &[-1, 3], 36), (vec![3, 3], 3));
    assert_eq!(shape(8, &[-1, -1, 3], 24), (vec![1, 2, 3], 1));
}

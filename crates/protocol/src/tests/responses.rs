//! Responses as real clients read them.

use crate::{
    ByteRope, Element, Form, InferResponse, Limits, ModelConfig, ModelMetadata, ModelStatistics,
    NonFinite, RepositoryEntry, RepositoryIndexRequest, RepositoryState, Statistics, Tensor,
    json_list_bound,
};
use packhorse_cluster::{Datatype, Processing, Program};
use serde_json::json;

use super::{shape, spec};

fn response(id: &str, outputs: Vec<Tensor>) -> InferResponse {
    InferResponse {
        model_name: "m".to_owned(),
        model_version: "3".to_owned(),
        id: id.to_owned(),
        variant: None,
        outputs,
    }
}

fn floats(values: &[f32], form: Form) -> Tensor {
    let shape = shape(&[1, i64::try_from(values.len()).unwrap()]);
    Tensor::from_values("y", shape, values)
        .unwrap()
        .in_form(form)
}

#[test]
fn a_json_output_has_no_parameters_and_the_message_no_header_length() {
    let message = response("", vec![floats(&[1.0, 0.1, -2.5e-8, 3.4e+38], Form::Json)])
        .encode()
        .unwrap();
    assert_eq!(
        message.head,
        concat!(
            r#"{"model_name":"m","model_version":"3","outputs":"#,
            r#"[{"name":"y","shape":[1,4],"datatype":"FP32","data":[1.0,0.1,-2.5e-8,3.4e+38]}]}"#
        )
    );
    assert_eq!(message.header_length(), None);
    assert_eq!(message.content_type(), "application/json");
    assert!(message.tensors.is_empty());
}

#[test]
fn a_binary_output_is_not_copied_and_the_message_has_a_header_length() {
    let y = Tensor::new(
        "y".to_owned(),
        Datatype::Uint8,
        shape(&[2000]),
        vec![7; 2000].into(),
    )
    .unwrap();
    let b = Tensor::from_values("b", shape(&[2]), &[true, false])
        .unwrap()
        .in_form(Form::Json);
    let bytes = y.data().to_bytes();
    let message = response("r1", vec![y, b]).encode().unwrap();
    assert_eq!(
        message.head,
        concat!(
            r#"{"model_name":"m","model_version":"3","id":"r1","outputs":["#,
            r#"{"name":"y","shape":[2000],"datatype":"UINT8","parameters":{"binary_data_size":2000}},"#,
            r#"{"name":"b","shape":[2],"datatype":"BOOL","data":[true,false]}]}"#
        )
    );
    assert_eq!(message.header_length(), Some(message.head.len() as u64));
    assert_eq!(message.content_type(), "application/octet-stream");
    assert_eq!(message.tensors.to_bytes().as_ptr(), bytes.as_ptr());
    let body = message.clone().into_body();
    assert_eq!(body.len(), message.head.len() + 2000);
}

#[test]
fn values_that_json_cannot_represent_are_refused() {
    let refused = |tensor: Tensor, message: &str| {
        let error = response("", vec![tensor.in_form(Form::Json)])
            .encode()
            .unwrap_err();
        assert_eq!(error.to_string(), message);
    };
    refused(
        floats(&[0.0, f32::NAN], Form::Json),
        r#""y": element 1 is NaN, which JSON cannot represent: request it with binary_data, or as null with parameters.non_finite_as_null"#,
    );
    refused(
        Tensor::from_values("y", shape(&[1]), &[f64::NEG_INFINITY]).unwrap(),
        r#""y": element 0 is -inf, which JSON cannot represent: request it with binary_data, or as null with parameters.non_finite_as_null"#,
    );
    refused(
        Tensor::from_values("y", shape(&[1]), &[half::f16::ONE]).unwrap(),
        r#""y": FP16 has no JSON form: request it with binary_data"#,
    );
    refused(
        Tensor::from_byte_strings("y", shape(&[2]), &[&b"ok"[..], b"\xff"]).unwrap(),
        r#""y": element 1 is not UTF-8, which JSON cannot represent: request it with binary_data"#,
    );
}

#[test]
fn infinities_and_nans_are_null_where_that_is_allowed() {
    let y = floats(&[0.5, f32::NAN, f32::NEG_INFINITY], Form::Json);
    let message = response("", vec![y]).encode_with(NonFinite::Null).unwrap();
    let text = String::from_utf8(message.head.to_vec()).unwrap();
    assert!(text.contains(r#""data":[0.5,null,null]"#), "{text}");
}

#[test]
fn no_list_is_longer_than_its_bound() {
    fn check<T: Element>(values: &[T]) {
        let count = i64::try_from(values.len()).unwrap();
        let tensor = Tensor::from_values("y", shape(&[count]), values).unwrap();
        check_tensor(&tensor);
    }
    fn check_tensor(tensor: &Tensor) {
        let empty = Tensor::new(
            "y".to_owned(),
            Datatype::Uint8,
            shape(&[0]),
            Vec::new().into(),
        );
        let length = |tensor: Tensor| {
            let message = response("", vec![tensor.in_form(Form::Json)]);
            message.encode_with(NonFinite::Null).unwrap().head.len() as u64
        };
        // Without the list, and with more digits in the shape and letters in the datatype.
        let rest = length(empty.unwrap()) - 2;
        let bound = json_list_bound(tensor.datatype(), tensor.data().len() as u64);
        assert!(length(tensor.clone()) <= rest + bound + 3, "{tensor:?}");
    }
    check(&[false; 100]);
    check(&[u8::MAX; 100]);
    check(&[i8::MIN; 100]);
    check(&[u16::MAX; 100]);
    check(&[i16::MIN; 100]);
    check(&[u32::MAX; 100]);
    check(&[i32::MIN; 100]);
    check(&[u64::MAX; 100]);
    check(&[i64::MIN; 100]);
    check(&[-f32::MIN_POSITIVE; 100]);
    check(&[f32::MIN; 100]);
    check(&[-1.234_567_9e-30_f32; 100]);
    check(&[f32::NAN; 100]);
    check(&[-f64::MIN_POSITIVE; 100]);
    check(&[f64::MIN; 100]);
    let strings = vec!["\u{1}\u{1f}"; 100];
    check_tensor(&Tensor::from_byte_strings("y", shape(&[100]), &strings).unwrap());
    check_tensor(&Tensor::from_byte_strings("y", shape(&[100]), &[""; 100]).unwrap());
}

#[test]
fn errors_name_the_problem_of_a_response() {
    let refused = |body: &str, header_length: Option<u64>, message: &str| {
        let body = ByteRope::from(body.as_bytes().to_vec());
        let error = InferResponse::parse(body, header_length, &Limits::default()).unwrap_err();
        assert_eq!(error.to_string(), message);
    };
    refused(
        "<html>",
        None,
        "invalid JSON: expected an object, found < at byte 0",
    );
    refused(r#"{"error":"no"}"#, None, "model_name: missing");
    refused(r#"{"model_name":"m"}"#, None, "outputs: missing");
    refused(
        r#"{"model_name":"m","outputs":[{"name":"y","shape":[2],"datatype":"INT8","data":[1,300]}]}"#,
        None,
        r#"output "y": data[1]: 300 is out of the range of INT8"#,
    );
    refused(
        r#"{"model_name":"m","outputs":[{"name":"y","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}]}"#,
        None,
        r#"output "y": binary_data_size is 2, but only 0 bytes are left in the body"#,
    );
}

fn program(max_batch_size: u32) -> Program {
    Program {
        model: "minilm:2".parse().unwrap(),
        outputs: vec![spec("embedding", Datatype::Fp32, &[-1, 384])],
        ..super::program(
            max_batch_size,
            vec![spec("ids", Datatype::Int64, &[-1, -1])],
        )
    }
}

#[test]
fn metadata_has_the_batch_dimension_and_the_configuration_has_not() {
    let processing = json!({
        "preprocess": {"text": {
            "kind": "text", "tokenizer": format!("sha256:{}", "0".repeat(64)), "max_length": 8, "inputs": {"ids": "ids"},
        }},
        "postprocess": {"embedding": {"top_k": 2}},
    });
    let processing: Processing = serde_json::from_value(processing).unwrap();
    assert_eq!(
        serde_json::to_value(ModelMetadata::new(
            &program(16),
            &processing,
            vec!["1".to_owned(), "2".to_owned()]
        ))
        .unwrap(),
        json!({
            "name": "minilm", "versions": ["1", "2"], "platform": "pytorch_libtorch",
            "inputs": [{"name": "ids", "datatype": "INT64", "shape": [-1, -1]}],
            "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, 384]}],
            "raw_inputs": [{"name": "text", "kind": "text"}], "classes": [{"output": "embedding", "top_k": 2}],
        })
    );
    assert_eq!(
        serde_json::to_value(ModelConfig::new(&program(16))).unwrap(),
        json!({
            "name": "minilm", "platform": "pytorch_libtorch", "max_batch_size": 16,
            "input": [{"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]}],
            "output": [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [384]}],
            "dynamic_batching": {},
        })
    );
    let unbatched = ModelConfig::new(&program(0));
    assert_eq!(unbatched.dynamic_batching, None);
    assert_eq!(unbatched.output[0].dims, [-1, 384]);
}

#[test]
fn statistics_are_spelt_as_load_generators_read_them() {
    let mut model = ModelStatistics {
        name: "m".to_owned(),
        version: "1".to_owned(),
        ..ModelStatistics::default()
    };
    model.inference_stats.success.count = 2;
    model.inference_stats.success.ns = 300;
    let none = json!({"count": 0, "ns": 0});
    assert_eq!(
        serde_json::to_value(Statistics {
            model_stats: vec![model]
        })
        .unwrap(),
        json!({"model_stats": [{
            "name": "m", "version": "1", "last_inference": 0, "inference_count": 0, "execution_count": 0,
            "inference_stats": {
                "success": {"count": 2, "ns": 300}, "fail": none, "queue": none, "compute_input": none,
                "compute_infer": none, "compute_output": none, "cache_hit": none, "cache_miss": none,
            },
            "batch_stats": [],
        }]})
    );
}

#[test]
fn the_repository_index_has_states_in_capitals_and_may_be_requested_without_a_body() {
    let entry = RepositoryEntry {
        name: "m".to_owned(),
        version: Some("1".to_owned()),
        state: RepositoryState::Unavailable,
        reason: None,
    };
    assert_eq!(
        serde_json::to_string(&entry).unwrap(),
        r#"{"name":"m","version":"1","state":"UNAVAILABLE"}"#
    );
    assert!(!RepositoryIndexRequest::parse(b"").unwrap().ready);
    assert!(!RepositoryIndexRequest::parse(b" {} ").unwrap().ready);
    assert!(
        RepositoryIndexRequest::parse(br#"{"ready":true}"#)
            .unwrap()
            .ready
    );
    assert!(RepositoryIndexRequest::parse(b"ready=true").is_err());
}

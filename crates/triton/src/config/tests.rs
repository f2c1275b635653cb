//! Tests of configurations as Triton's users write them.

use proptest::prelude::*;

use super::*;

/// A classifier with a batch, as most are written.
const CLASSIFIER: &str = r#"
name: "resnet50"
platform: "pytorch_libtorch"
max_batch_size: 32
input [
  {
    name: "INPUT__0"
    data_type: TYPE_FP32
    dims: [ 3, 224, 224 ]
  }
]
output [
  {
    name: "OUTPUT__0"
    data_type: TYPE_FP32
    dims: [ 1000 ]
    label_filename: "labels.txt"
  }
]
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  default_queue_policy { default_timeout_microseconds: 50000 }
}
version_policy: { specific { versions: [ 1, 3 ] } }
parameters: { key: "INFERENCE_MODE" value: { string_value: "true" } }
"#;

/// A model of the least text with a further line.
fn with(line: &str) -> String {
    format!(
        "backend: \"pytorch\"\ninput {{ name: \"x\" data_type: TYPE_FP32 dims: 3 }}\noutput {{ name: \"y\" data_type: TYPE_FP32 dims: 1 }}\n{line}"
    )
}

fn refusal(text: &str) -> String {
    read(text, "m").unwrap_err().to_string()
}

#[test]
fn a_configuration_becomes_a_registration() {
    let model = read(CLASSIFIER, "resnet50").unwrap();
    assert_eq!(
        Value::Object(model.registration),
        json!({
            "max_batch_size": 32, "slo_ms": 50.0,
            "inputs": [{"name": "INPUT__0", "datatype": "FP32", "shape": [-1, 3, 224, 224]}],
            "outputs": [{"name": "OUTPUT__0", "datatype": "FP32", "shape": [-1, 1000]}],
        })
    );
    assert_eq!(model.versions, Versions::Of(vec![1, 3]));
    assert_eq!(model.file_name, None);
    let left_out = [
        "instance_group",
        "INFERENCE_MODE",
        "labels.txt",
        "dynamic_batching",
    ];
    assert_eq!(model.notices.len(), left_out.len(), "{:?}", model.notices);
    for (notice, about) in model.notices.iter().zip(left_out) {
        assert!(notice.contains(about), "{notice}");
    }
}

#[test]
fn a_model_without_a_batch_has_the_shapes_as_they_are() {
    let model = read(
        &with("max_batch_size: 0\ndefault_model_filename: \"net.pt\""),
        "m",
    );
    let model = model.unwrap();
    assert_eq!(model.registration["inputs"][0]["shape"], json!([3]));
    assert_eq!(model.registration["max_batch_size"], 0);
    assert_eq!(model.file_name.as_deref(), Some("net.pt"));
    assert_eq!(model.versions, Versions::Latest(1));
    let notice = "slo_ms is 100: dynamic_batching has no default_queue_policy with default_timeout_microseconds";
    assert_eq!(model.notices, [notice]);
}

#[test]
fn tensors_that_are_named_by_position_are_in_that_order() {
    let text = "platform: 'torch_aoti' max_batch_size: 8
        input { name: 'INPUT__1' data_type: TYPE_INT64 dims: -1 } input { name: 'INPUT__0' data_type: TYPE_FP16 dims: [2] }
        output { name: 'b' data_type: TYPE_BOOL dims: 1 } output { name: 'a' data_type: TYPE_UINT8 dims: 1 }";
    let model = read(text, "m").unwrap();
    let names = |side: &str| -> Vec<String> {
        let tensors = model.registration[side].as_array().unwrap();
        let names = tensors
            .iter()
            .map(|tensor| tensor["name"].as_str().unwrap());
        names.map(ToOwned::to_owned).collect()
    };
    assert_eq!(names("inputs"), ["INPUT__0", "INPUT__1"]);
    assert_eq!(names("outputs"), ["b", "a"]);
}

#[test]
fn the_policy_chooses_versions() {
    let chosen = |line: &str| read(&with(line), "m").unwrap().versions.among(&[7, 1, 3]);
    assert_eq!(chosen(""), [7]);
    assert_eq!(chosen("version_policy: { all {} }"), [1, 3, 7]);
    assert_eq!(
        chosen("version_policy { latest { num_versions: 2 } }"),
        [3, 7]
    );
    assert_eq!(
        chosen("version_policy { latest { num_versions: 9 } }"),
        [1, 3, 7]
    );
    assert_eq!(
        chosen("version_policy { specific { versions: [3, 4] } }"),
        [3]
    );
}

#[test]
fn numbers_are_those_of_protobuf() {
    let size = |line: &str| {
        read(&with(line), "m").map(|model| model.registration["max_batch_size"].clone())
    };
    assert_eq!(size("max_batch_size: 010"), Ok(json!(8)));
    assert_eq!(size("max_batch_size: 0x1F"), Ok(json!(31)));
    for wrong in ["09", "0x", "+8", "-0x1", "1e3"] {
        assert!(
            size(&format!("max_batch_size: {wrong}")).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn a_reshape_that_changes_nothing_is_taken() {
    let same = with("").replace("dims: 3 }", "dims: 3 reshape { shape: [3] } }");
    assert_eq!(
        read(&same, "m").unwrap().registration["inputs"][0]["shape"],
        json!([3])
    );
}

#[test]
fn a_response_cache_is_the_models_cache() {
    for (line, cache) in [
        ("response_cache { enable: true }", json!(true)),
        ("response_cache { enable: false }", json!(false)),
        ("", Value::Null),
    ] {
        let model = read(&with(line), "m").unwrap();
        let registered = model.registration.get("cache").cloned();
        assert_eq!(registered.unwrap_or_default(), cache, "{line}");
        assert!(!model.notices.iter().any(|notice| notice.contains("cache")));
    }
    let wrong = refusal(&with("response_cache { enable: perhaps }"));
    assert!(
        wrong.contains("response_cache.enable: expected true or false"),
        "{wrong}"
    );
}

#[test]
fn what_is_not_served_is_refused_by_name_and_line() {
    for (line, expected) in [
        (
            "ensemble_scheduling { step [] }",
            "config.pbtxt, line 4: ensemble_scheduling: an ensemble of models is not served: ask its models one after the other",
        ),
        (
            "sequence_batching { max_sequence_idle_microseconds: 5 }",
            "line 4: sequence_batching: sequences are not batched",
        ),
        (
            "model_transaction_policy {\n decoupled: true\n}",
            "line 5: model_transaction_policy.decoupled: a request has one answer",
        ),
        (
            "platform: \"onnxruntime_onnx\"",
            "line 4: platform: \"onnxruntime_onnx\" is not served: programs of PyTorch are (pytorch_libtorch, ",
        ),
        (
            "name: \"other\"",
            "line 4: name: it is \"other\", but the folder is \"m\"",
        ),
        (
            "max_batch_size: 9999",
            "line 4: max_batch_size: expected 0 to 4096",
        ),
        (
            "max_batch_size: big",
            "line 4: max_batch_size: expected a whole number",
        ),
        (
            "max_batch_sizes: 8",
            "line 4: max_batch_sizes: there is no such field",
        ),
        ("backend: \"pytorch\"", "line 4: backend: is there twice"),
        (
            "dynamic_batching { delay: 1 }",
            "line 4: dynamic_batching.delay: there is no such field",
        ),
        (
            "dynamic_batching { default_queue_policy {\n default_timeout_microseconds: 60000001 } }",
            "line 5: default_timeout_microseconds: expected at most 60000000",
        ),
        (
            "default_model_filename: \"../x.pt\"",
            "line 4: default_model_filename: \"../x.pt\" is not the name of a file",
        ),
        (
            "version_policy { latest { num_versions: 0 } }",
            "line 4: version_policy.latest: num_versions: expected a number above 0",
        ),
        (
            "input { name: \"z\" data_type: TYPE_STRING dims: 1 }",
            "line 4: input.data_type: PyTorch has no tensors of TYPE_STRING",
        ),
        (
            "input { name: \"z\" data_type: TYPE_FP99 dims: 1 }",
            "line 4: input.data_type: there is no type TYPE_FP99: expected one such as TYPE_FP32",
        ),
        (
            "input { name: \"z\" data_type: TYPE_FP32 dims: 0 }",
            "line 4: input.dims: expected sizes from 1 on, or -1 for one that varies",
        ),
        (
            "input { name: \"z\" data_type: TYPE_FP32 }",
            "line 4: input.dims: it is missing",
        ),
        (
            "input { data_type: TYPE_FP32 dims: 1 }",
            "line 4: input: the name is missing",
        ),
        (
            "input { name: \"z\" data_type: TYPE_FP32 dims: 1 optional: true }",
            "line 4: input.optional: every input is required",
        ),
        (
            "input { name: \"z\" data_type: TYPE_FP32 dims: 1\nreshape { shape: [] } }",
            "line 5: input.reshape: tensors of [1] are not reshaped to []: export the model",
        ),
        ("input: 3", "line 4: input: expected a message in braces"),
    ] {
        let text = refusal(&with(line));
        assert!(text.contains(expected), "{line}: {text}");
    }
    assert_eq!(
        refusal("name: \"m\""),
        "config.pbtxt: it says neither platform nor backend: expected platform: \"pytorch_libtorch\""
    );
    assert_eq!(
        refusal("backend: \"pytorch\""),
        "config.pbtxt: there is no input"
    );
    let long = "#".repeat(CONFIG_LIMIT + 1);
    assert_eq!(refusal(&long), "config.pbtxt has more than 1048576 bytes");
}

proptest! {
    #[test]
    fn any_configuration_is_read_or_refused(
        lines in proptest::collection::vec("(input|output|dims|version_policy|dynamic_batching|name|reshape)[:]? ?[\\[{<\"]?(name|dims|[0-9-]{1,3}|TYPE_FP32|latest)?[\\]}>\"]?", 0..12)
    ) {
        let _ = read(&with(&lines.join("\n")), "m");
    }
}

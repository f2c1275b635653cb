//! `/v2/models/{model}/infer`.

use std::fs;

use packhorse_cluster::Shape;
use packhorse_protocol::{HEADER_LENGTH, InferResponse, Limits, RequestMessage, Tensor};
use serde_json::{Value, json};
use wiremock::{
    Mock, Request, ResponseTemplate,
    matchers::{body_string, method, path},
};

use packhorse_stand_in::Gateway;

/// Mounts a model with one input. It responds to a request with the tensor that `answer` returns for it.
async fn serves(
    gateway: &Gateway,
    input: &str,
    answer: impl Fn(&RequestMessage) -> Tensor + Send + Sync + 'static,
) {
    serves_as(gateway, input, json!({}), answer).await;
}

/// Mounts a model with one input, whose metadata has `declared`, too.
async fn serves_as(
    gateway: &Gateway,
    input: &str,
    mut declared: Value,
    answer: impl Fn(&RequestMessage) -> Tensor + Send + Sync + 'static,
) {
    let metadata = json!({
        "name": "m", "versions": ["1"], "platform": "pytorch_libtorch",
        "inputs": [{"name": input, "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}],
    });
    let declared = declared.as_object_mut().unwrap();
    declared.extend(metadata.as_object().unwrap().clone());
    let metadata = declared.clone();
    let described = ResponseTemplate::new(200).set_body_json(metadata);
    Mock::given(method("GET"))
        .and(path("/v2/models/m"))
        .respond_with(described)
        .mount(&gateway.server)
        .await;
    let respond = move |request: &Request| {
        let header_length = request
            .headers
            .get(HEADER_LENGTH)
            .map(|value| value.to_str().unwrap().parse().unwrap());
        let request = RequestMessage::parse(
            request.body.clone().into(),
            header_length,
            &Limits::default(),
        )
        .unwrap();
        let response = InferResponse {
            model_name: "m".to_owned(),
            model_version: "1".to_owned(),
            id: String::new(),
            variant: None,
            outputs: vec![answer(&request)],
        };
        let message = response.encode().unwrap();
        let length = message.header_length().unwrap().to_string();
        let body = message.into_body().to_bytes().to_vec();
        ResponseTemplate::new(200)
            .insert_header(HEADER_LENGTH, length)
            .set_body_raw(body, "application/octet-stream")
    };
    Mock::given(method("POST"))
        .and(path("/v2/models/m/infer"))
        .respond_with(respond)
        .mount(&gateway.server)
        .await;
}

/// Returns twice the input.
fn doubled(request: &RequestMessage) -> Tensor {
    let input = &request.inputs[0];
    let values: Vec<f32> = input
        .values::<f32>()
        .unwrap()
        .into_iter()
        .map(|value| 2.0 * value)
        .collect();
    Tensor::from_values("y", input.shape().clone(), &values).unwrap()
}

#[tokio::test]
async fn arrays_go_in_and_come_out() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    serves(&gateway, "x", doubled).await;
    let mut header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }".to_vec();
    header.push(b'\n');
    let values = [1.5_f32, -0.25].map(f32::to_le_bytes).concat();
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    gateway.file(
        "x.npy",
        [b"\x93NUMPY\x01\x00", &length[..], &header, &values].concat(),
    );

    let ran = gateway.run(&["infer", "m", "--input", "x=x.npy", "--output", "y=y.npy"]);
    assert!(
        ran.text().starts_with("m version 1 answered in "),
        "{ran:?}"
    );
    assert!(
        ran.stdout.contains("[1,2]") && ran.stdout.contains("3.0 -0.5"),
        "{ran:?}"
    );
    let saved = fs::read(gateway.path("y.npy")).unwrap();
    assert!(saved.ends_with(&[3.0_f32, -0.5].map(f32::to_le_bytes).concat()));
    assert!(saved.windows(16).any(|text| text == b"'shape': (1, 2),"));
}

#[tokio::test]
async fn json_goes_in_and_json_comes_out() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    serves(&gateway, "x", doubled).await;
    gateway.file("x.json", "[[0.1, 2]]");
    for input in ["x=[[0.1, 2]]", "x=@x.json"] {
        let json = gateway
            .run(&["infer", "m", "--input", input, "--json"])
            .json();
        assert_eq!(
            json["outputs"],
            json!([{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.2, 4.0]}])
        );
        assert_eq!(
            (&json["model_name"], &json["model_version"]),
            (&json!("m"), &json!("1"))
        );
        assert!(json["latency_ms"].as_f64().unwrap() > 0.0);
    }
    let unknown = gateway.run(&["infer", "m", "--input", "z=[1]"]);
    assert_eq!(
        unknown.error(),
        "error: input \"z\": the model has no such input; its inputs are x\n"
    );
    let no_output = gateway.run(&["infer", "m", "--input", "x=[1]", "--output", "z=z.npy"]);
    assert_eq!(
        no_output.error(),
        "error: the model has no output \"z\"; its outputs are y\n"
    );
}

#[tokio::test]
async fn deadline_and_priority_travel_as_parameters() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    serves(&gateway, "x", |request| {
        let told = [
            request.timeout.unwrap().as_secs_f32(),
            request.priority as f32,
        ];
        Tensor::from_values("y", Shape::new(&[2]).unwrap(), &told).unwrap()
    })
    .await;
    let json = gateway
        .run(&[
            "infer",
            "m",
            "--input",
            "x=[1]",
            "--timeout-ms",
            "1500",
            "--priority",
            "1",
            "--json",
        ])
        .json();
    assert_eq!(json["outputs"][0]["data"], json!([1.5, 1.0]));
}

#[tokio::test]
async fn a_protocol_request_is_sent_unchanged() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let request =
        r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]  }"#;
    let answer = r#"{"model_name":"m","model_version":"3","outputs":[]}"#;
    let posted = Mock::given(method("POST"))
        .and(path("/v2/models/m/versions/3/infer"))
        .and(body_string(request));
    let answered = ResponseTemplate::new(200).set_body_raw(answer, "application/json");
    posted.respond_with(answered).mount(&gateway.server).await;
    let file = gateway.file("request.json", request);
    let ran = gateway.run(&["infer", "m", "--version", "3", "--json-request", &file]);
    assert_eq!(ran.text(), format!("{answer}\n"));
}

#[tokio::test]
async fn a_busy_gateway_says_when_to_try_again() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let busy = ResponseTemplate::new(503)
        .insert_header("retry-after", "2")
        .set_body_json(json!({"error": "no replica is ready"}));
    Mock::given(method("POST"))
        .respond_with(busy)
        .mount(&gateway.server)
        .await;
    let file = gateway.file("request.json", "{}");
    let ran = gateway.run(&["infer", "m", "--json-request", &file]);
    assert_eq!(
        ran.error(),
        "error: no replica is ready\nhint: the gateway asks clients to retry after 2 s\n"
    );
}

#[tokio::test]
async fn pictures_and_texts_are_sent_as_they_are_and_classes_come_back() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let declared = json!({
        "raw_inputs": [{"name": "image", "kind": "image"}, {"name": "text", "kind": "text"}],
        "classes": [{"output": "y", "top_k": 2}],
    });
    // Answers the bytes of each row and the number of classes that was asked for.
    serves_as(&gateway, "image", declared, |request| {
        let rows = request.inputs[0].byte_strings().unwrap();
        let asked = request.outputs.first();
        let count = asked.map_or(0, |output| output.classes.unwrap());
        let name = request.inputs[0].name();
        let texts = rows.iter().map(|row| {
            let row = String::from_utf8_lossy(row);
            format!("0.5:{count}:{name} {row}")
        });
        let texts: Vec<String> = texts.collect();
        let shape = Shape::new(&[i64::try_from(texts.len()).unwrap(), 1]).unwrap();
        Tensor::from_byte_strings("y", shape, &texts).unwrap()
    })
    .await;
    gateway.file("cat.jpg", "meow");
    gateway.file("dog.png", "woof");

    let ran = gateway.run(&["infer", "m", "--image", "cat.jpg", "--image", "dog.png"]);
    let lines: Vec<&str> = ran.text().lines().map(str::trim_end).collect();
    let rows = [
        "row 0:",
        "0.5000  image meow",
        "row 1:",
        "0.5000  image woof",
    ];
    assert_eq!(lines[1..], rows, "{ran:?}");
    let ran = gateway.run(&["infer", "m", "--text", "Hello: you", "--top", "7", "--json"]);
    let class = json!({"index": 7, "label": "text Hello: you", "score": 0.5});
    assert_eq!(ran.json()["classes"], json!([[class]]));
    let ran = gateway.run(&["infer", "m", "--text", "a", "--input-name", "image"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let ran = gateway.run(&["infer", "m", "--image", "cat.jpg", "--input-name", "text"]);
    assert_eq!(
        ran.error(),
        "error: input \"text\" takes no pictures; those that do are image\n"
    );
}

#[tokio::test]
async fn a_model_that_declares_no_picture_is_named() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    serves(&gateway, "x", doubled).await;
    gateway.file("cat.jpg", "meow");
    for (flags, what) in [
        (["--image", "cat.jpg"], "a picture becomes its input"),
        (["--text", "meow"], "a text becomes its inputs"),
    ] {
        let ran = gateway.run(&[&["infer", "m"][..], &flags].concat());
        let wanted = format!(
            "error: model \"m\" does not declare how {what} (`preprocess` in its registration)\n"
        );
        assert_eq!(ran.error(), wanted);
    }
}

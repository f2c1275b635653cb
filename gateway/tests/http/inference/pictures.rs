//! Pictures in place of tensors, and classes in place of scores.

use packhorse_cluster::{Datatype, ModelSpec};
use packhorse_grpc::messages::inference::{ModelInferRequest, ModelInferResponse};
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::{
    answer::Answer,
    grpc::{GrpcClient, INFER, INVALID_ARGUMENT, frame, infer_request},
    inference_gateway::{InferenceGateway, model, tensor},
    worker::{Batch, output},
};

/// One pixel of red 1, green 200 and blue 77.
pub(super) const PICTURE: &[u8] =
    include_bytes!("../../../../crates/preprocess/tests/pictures/one.png");
pub(super) const CMYK: &[u8] =
    include_bytes!("../../../../crates/preprocess/tests/pictures/cmyk.jpg");

/// A model whose scores are the means of the channels of its pictures.
pub(super) fn means_model() -> ModelSpec {
    let input = tensor("x", Datatype::Fp32, &[-1, 3, 4, 4], None);
    let scores = tensor("y", Datatype::Fp32, &[-1, 3], None);
    let mut spec = model("means:1", 4, input, scores);
    let processing = json!({
        "preprocess": {"x": {"kind": "image", "resize": {"exact": [4, 4]}}},
        "postprocess": {"y": {"top_k": 2, "labels": ["red", "green", "blue"]}},
    });
    spec.processing = serde_json::from_value::<packhorse_cluster::Processing>(processing)
        .unwrap()
        .into();
    spec.validate().unwrap();
    spec
}

pub(super) fn means(batch: &Batch) -> Vec<(packhorse_wire::TensorHeader, Vec<u8>)> {
    let pixels = batch.input::<f32>(0);
    let channels: Vec<f32> = { pixels.chunks_exact(16) }
        .map(|channel| channel.iter().sum::<f32>() / 16.0)
        .collect();
    let rows = i64::try_from(channels.len() / 3).unwrap();
    vec![output(&[rows, 3], &channels)]
}

async fn gateway() -> InferenceGateway {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(means_model());
    let worker = gateway.add_worker("means:1", 0).await;
    worker.answer_all(means);
    gateway
}

/// Sends a picture as it is.
async fn send(gateway: &InferenceGateway, model: &str, picture: &'static [u8]) -> Answer {
    let url = gateway.url(&format!("/v2/models/{model}/infer"));
    let request = gateway.client.post(url).body(picture);
    let request = request.header("content-type", "image/png");
    Answer::read(request.send().await.unwrap()).await
}

fn strings(pictures: &[&[u8]]) -> Vec<u8> {
    let length = |picture: &[u8]| u32::try_from(picture.len()).unwrap().to_le_bytes();
    let parts = pictures
        .iter()
        .flat_map(|picture| [length(picture).to_vec(), picture.to_vec()]);
    parts.flatten().collect()
}

/// Sends pictures as a tensor of BYTES.
async fn send_strings(gateway: &InferenceGateway, pictures: &[&[u8]], outputs: Value) -> Answer {
    let data = strings(pictures);
    let head = json!({
        "inputs": [{"name": "x", "datatype": "BYTES", "shape": [pictures.len()], "parameters": {"binary_data_size": data.len()}}],
        "outputs": outputs,
    });
    let head = head.to_string();
    let url = gateway.url("/v2/models/means/infer");
    let request = gateway
        .client
        .post(url)
        .body([head.as_bytes(), &data].concat());
    let request = request.header("Inference-Header-Content-Length", head.len());
    Answer::read(
        request
            .header("x-packhorse-stages", "1")
            .send()
            .await
            .unwrap(),
    )
    .await
}

#[tokio::test]
async fn a_picture_as_it_is_is_answered_its_best_classes() {
    let gateway = gateway().await;
    let answer = send(&gateway, "means", PICTURE).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let expected = json!([{
        "name": "y", "datatype": "BYTES", "shape": [1, 2], "data": ["200.000000:1:green", "77.000000:2:blue"],
    }]);
    assert_eq!(answer.json()["outputs"], expected);
}

#[tokio::test]
async fn several_pictures_are_the_rows_of_a_tensor_and_their_decoding_is_a_stage() {
    let gateway = gateway().await;
    let answer = send_strings(&gateway, &[PICTURE, PICTURE], json!([])).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        answer.json()["outputs"][0]["data"],
        json!([1.0, 200.0, 77.0, 1.0, 200.0, 77.0])
    );
    let timing = answer.headers["server-timing"].to_str().unwrap().to_owned();
    let timing: packhorse_api::ServerTiming = timing.parse().unwrap();
    assert!(
        timing.stages.decode > 0.0 && timing.stages.decode < timing.total,
        "{timing}"
    );
    let asked = json!([{"name": "y", "parameters": {"classification": 1}}]);
    let answer = send_strings(&gateway, &[PICTURE], asked).await;
    assert_eq!(
        answer.json()["outputs"][0]["data"],
        json!(["200.000000:1:green"])
    );
}

#[tokio::test]
async fn tensors_are_taken_as_ever() {
    let gateway = gateway().await;
    let request = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3, 4, 4], "data": vec![2.0; 48]}]});
    let answer = gateway
        .post("/v2/models/means/infer", request.to_string())
        .await;
    assert_eq!(answer.json()["outputs"][0]["data"], json!([2.0, 2.0, 2.0]));
}

#[tokio::test]
async fn bad_pictures_say_what_and_where() {
    let mut gateway = gateway().await;
    let refused = [
        (
            send_strings(&gateway, &[PICTURE, b"GIF89a", PICTURE], json!([])).await,
            "input \"x\", picture 1: not a picture of JPEG, PNG or WebP: it begins with 47 49 46 38 39 61",
        ),
        (
            send_strings(&gateway, &[CMYK], json!([])).await,
            "input \"x\", picture 0: the JPEG is not supported: CMYK; convert it to RGB",
        ),
        (
            send_strings(&gateway, &[PICTURE; 5], json!([])).await,
            "input \"x\": pictures of shape [5]: expected 1 to 4 in one dimension",
        ),
        (
            send(&gateway, "means", &PICTURE[..60]).await,
            "input \"x\", picture 0: the PNG is damaged: ",
        ),
        (
            send(&gateway, "means", b"").await,
            "input \"x\", picture 0: the picture is empty",
        ),
    ];
    for (answer, expected) in refused {
        let message = answer.error(400);
        assert!(message.starts_with(expected), "{message}");
    }
    let input = tensor("x", Datatype::Fp32, &[-1, 2], None);
    gateway.add_model(model("plain:1", 4, input.clone(), input));
    let _worker = gateway.add_worker("plain:1", 1).await;
    assert_eq!(
        send(&gateway, "plain", PICTURE).await.error(400),
        "the body is a picture (Content-Type), and the model does not declare how one becomes its input \"x\" (preprocess)"
    );
}

#[tokio::test]
async fn pictures_come_over_grpc_too() {
    let gateway = gateway().await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    let request = |picture: &[u8]| {
        let mut request = infer_request("means", [1, 1], 0.0);
        request.inputs[0].datatype = "BYTES".to_owned();
        request.raw_input_contents = vec![strings(&[picture]).into()];
        request
    };
    let mut call = client.begin(INFER, &[]);
    call.send(&frame(
        0,
        &ModelInferRequest::encode_to_vec(&request(PICTURE)),
    ));
    call.finish();
    let answer = ModelInferResponse::decode(call.next().await.unwrap()).unwrap();
    let scores: Vec<u8> = [1.0_f32, 200.0, 77.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert_eq!(answer.raw_output_contents[0], scores);
    let bad = request(CMYK).encode_to_vec();
    assert_eq!(client.code(INFER, &[], &bad).await, INVALID_ARGUMENT);
}

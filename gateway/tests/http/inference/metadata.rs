//! Metadata of server and models.

use packhorse_control::LinkState;
use serde_json::{Value, json};

use crate::support::{
    inference_gateway::{InferenceGateway, double_model},
    worker::double,
};

#[tokio::test]
async fn the_server_says_what_it_is() {
    let gateway = InferenceGateway::start().await;
    for path in ["/v2", "/v2/"] {
        let metadata = gateway.get(path).await;
        assert_eq!(metadata.status, 200);
        assert_eq!(metadata.json()["name"], "packhorse");
        assert!(
            metadata.json()["extensions"]
                .as_array()
                .unwrap()
                .contains(&json!("binary_tensor_data"))
        );
    }
    assert_eq!(gateway.get("/v2/health/live").await.status, 200);
}

#[tokio::test]
async fn the_server_is_ready_once_it_knows_what_to_serve() {
    let mut gateway = InferenceGateway::start().await;
    gateway.get("/v2/health/ready").await.error(503);
    gateway.add_model(double_model());
    gateway.wait_for_model("double:1").await;
    assert_eq!(gateway.get("/v2/health/ready").await.status, 200);
}

#[tokio::test]
async fn a_model_says_what_it_takes() {
    let gateway = InferenceGateway::with_computing_double().await;
    let tensor = |name| json!({"name": name, "datatype": "FP32", "shape": [-1, 2]});
    let expected = json!({
        "name": "double", "versions": ["1"], "platform": "pytorch_libtorch", "inputs": [tensor("x")], "outputs": [tensor("y")],
    });
    for path in ["/v2/models/double", "/v2/models/double/versions/1"] {
        assert_eq!(gateway.get(path).await.json(), expected);
    }
    for path in [
        "/v2/models/double/config",
        "/v2/models/double/versions/1/config",
    ] {
        let config = gateway.get(path).await.json();
        assert_eq!(config["max_batch_size"], 8);
        assert_eq!(
            config["input"],
            json!([{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}])
        );
        assert_eq!(config["dynamic_batching"], json!({}));
    }
}

#[tokio::test]
async fn readiness_follows_the_replicas() {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(double_model());
    gateway.wait_for_model("double:1").await;
    let index = async |gateway: &InferenceGateway, body: &'static str| {
        gateway.post("/v2/repository/index", body).await.json()
    };
    gateway.get("/v2/models/double/ready").await.error(503);
    assert_eq!(index(&gateway, "").await[0]["state"], "UNAVAILABLE");
    assert_eq!(index(&gateway, r#"{"ready": true}"#).await, json!([]));

    let worker = gateway.add_worker("double:1", 0).await;
    assert_eq!(gateway.get("/v2/models/double/ready").await.status, 200);
    assert_eq!(
        gateway
            .get("/v2/models/double/versions/1/ready")
            .await
            .status,
        200
    );
    assert_eq!(
        index(&gateway, r#"{"ready": true}"#).await,
        json!([{"name": "double", "version": "1", "state": "READY"}])
    );

    worker.kill();
    gateway
        .wait_for_link(0, |state| *state != LinkState::Serving)
        .await;
    gateway.get("/v2/models/double/ready").await.error(503);
    assert_eq!(index(&gateway, "{}").await[0]["state"], "LOADING");
}

#[tokio::test]
async fn without_a_version_the_newest_that_is_ready_answers() {
    let gateway = &mut InferenceGateway::with_computing_double().await;
    let mut second = double_model();
    second.program.model = "double:2".parse().unwrap();
    gateway.add_model(second);
    gateway.wait_for_model("double:2").await;
    assert_eq!(gateway.double(1, 1.0).await.json()["model_version"], "1");
    gateway.add_worker("double:2", 1).await.answer_all(double);
    assert_eq!(gateway.double(1, 1.0).await.json()["model_version"], "2");
    let versions: Value = gateway.get("/v2/models/double").await.json()["versions"].clone();
    assert_eq!(versions, json!(["1", "2"]));
}

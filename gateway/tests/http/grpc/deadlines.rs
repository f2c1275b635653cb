//! The time of a call, which is also its request's deadline.

use prost::Message as _;

use crate::support::{
    grpc::{DEADLINE_EXCEEDED, GrpcClient, INFER, STREAM, frame, infer_request},
    inference_gateway::InferenceGateway,
    until,
};

fn has(gateway: &InferenceGateway, line: &str) -> bool {
    gateway.metrics().lines().any(|present| present == line)
}

const EXPIRED: &str =
    "packhorse_slo_missed_total{model=\"double\",version=\"1\",cause=\"expired\"} ";
const CANCELED: &str =
    "nv_inference_request_failure{model=\"double\",version=\"1\",reason=\"CANCELED\"} ";

#[tokio::test]
async fn a_call_whose_time_ends_while_its_model_computes_is_a_missed_request() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    let message = frame(0, &infer_request("double", [1, 2], 1.0).encode_to_vec());
    for (number, path) in [INFER, STREAM].into_iter().enumerate() {
        let call = client.begin(path, &[("grpc-timeout", "300m")]);
        call.send(&message);
        let _computing = worker.batch().await;
        let mut call = call;
        assert_eq!(call.code().await, DEADLINE_EXCEEDED);
        let line = format!("{EXPIRED}{}", number + 1);
        until("the count", || has(&gateway, &line)).await;
    }
    assert!(!gateway.metrics().contains(CANCELED) || has(&gateway, &format!("{CANCELED}0")));
}

#[tokio::test]
async fn a_call_that_is_reset_long_before_its_time_is_cancelled() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    let call = client.begin(INFER, &[("grpc-timeout", "60S")]);
    call.send(&frame(
        0,
        &infer_request("double", [1, 2], 1.0).encode_to_vec(),
    ));
    let _computing = worker.batch().await;
    call.reset();
    let line = format!("{CANCELED}1");
    until("the cancellation", || has(&gateway, &line)).await;
    assert!(!has(&gateway, &format!("{EXPIRED}1")));
}

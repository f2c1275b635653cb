//! Requests of one stream, each of which is a request of its own.

use packhorse_grpc::messages::inference::ModelInferRequest;
use prost::Message as _;

use crate::support::{
    agent::Agent,
    gateway::Gateway,
    grpc::{GrpcClient, OK, STREAM, frame, infer_request},
    inference_gateway::InferenceGateway,
    until,
    worker::double,
};

#[tokio::test]
async fn each_request_of_a_stream_has_its_own_id() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    agent.computes = Some(double);
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    let client = GrpcClient::connect(gateway.app.grpc_address().unwrap()).await;
    let mut call = client.begin(STREAM, &[("x-request-id", "stream")]);
    for id in ["", "order-7", "has a space"] {
        let request = ModelInferRequest {
            id: id.to_owned(),
            ..infer_request("m", [1, 4], 1.0)
        };
        call.send(&frame(0, &request.encode_to_vec()));
        let answer = call.next_answer().await;
        assert_eq!(answer.error_message, "");
    }
    call.finish();
    assert_eq!(call.head_value("x-request-id").as_deref(), Some("stream"));
    assert_eq!(call.code().await, OK);
    let listed = gateway.get("/v1/requests").await.ok(200);
    let ids = listed.as_array().unwrap().iter();
    let mut ids: Vec<_> = ids
        .map(|view| view["request_id"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, ["order-7", "stream-1", "stream-3"]);
}

#[tokio::test]
async fn a_stream_is_counted_by_the_outcome_of_its_requests() {
    let gateway = InferenceGateway::with_computing_double().await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    let count = |code: u16, count: usize| {
        let labels = format!(
            "{{http_request_method=\"POST\",http_route=\"{STREAM}\",http_response_status_code=\"{code}\"}}"
        );
        let line = format!("http_server_request_duration_seconds_count{labels} {count}");
        gateway.metrics().lines().any(|present| present == line)
    };
    let mut call = client.begin(STREAM, &[]);
    let good = infer_request("double", [1, 2], 1.0).encode_to_vec();
    let misshapen = infer_request("double", [1, 3], 1.0).encode_to_vec();
    let unknown = infer_request("unknown", [1, 2], 1.0).encode_to_vec();
    for message in [&good, &misshapen, &unknown, &good] {
        call.send(&frame(0, message));
        call.next_answer().await;
    }
    call.finish();
    assert_eq!(call.code().await, OK);
    assert!(
        count(200, 2) && count(400, 1) && count(404, 1),
        "{}",
        gateway.metrics()
    );
    // One that ends by a mistake of its own is counted for that.
    let mut broken = client.begin(STREAM, &[]);
    broken.send(b"\x07bad!");
    assert_ne!(broken.code().await, OK);
    until("the count", || count(400, 2)).await;
    assert!(count(200, 2));
}

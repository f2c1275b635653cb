//! Windows that the gateway closes by itself.

use std::time::Duration;

use futures_util::future::join_all;
use packhorse_gateway::{api::inference::InferenceLimits, driver::DataPlaneConfig};
use packhorse_grpc::messages::inference::ModelInferRequest;
use prost::Message as _;
use tokio::time::sleep;

use crate::support::{
    grpc::{Call, GrpcClient, INFER, OK, STREAM, UNAVAILABLE, frame, infer_request},
    inference_gateway::{InferenceGateway, double_model},
    until,
    worker::double,
};

/// The longest pause of a client in a message.
const PAUSE: Duration = Duration::from_millis(300);
/// The requests of a stream that are computed or wait for their turn.
const IN_FLIGHT: usize = 64;
/// More streams than it takes to close the window of their connection.
const STREAMS: usize = 10;
/// The bytes that each of them sends: more than its window.
const BYTES: usize = 400 << 10;

fn pending(gateway: &InferenceGateway) -> usize {
    let metrics = gateway.metrics();
    let line = "nv_inference_pending_request_count{model=\"double\",version=\"1\"} ";
    let count = metrics.lines().find_map(|text| text.strip_prefix(line));
    count
        .and_then(|count| count.parse().ok())
        .unwrap_or_default()
}

#[tokio::test]
async fn a_client_that_waits_for_the_gateway_is_not_cut_for_it() {
    let limits = InferenceLimits {
        body_timeout: PAUSE,
        ..InferenceLimits::default()
    };
    let mut gateway = InferenceGateway::start_with(DataPlaneConfig::default(), limits).await;
    let mut model = double_model();
    model.slo = Duration::from_secs(30);
    gateway.add_model(model);
    let worker = gateway.add_worker("double:1", 0).await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    // Long ids fill the windows by fewer requests.
    let request = ModelInferRequest {
        id: "x".repeat(250),
        ..infer_request("double", [1, 2], 1.0)
    };
    let message = frame(0, &request.encode_to_vec());
    let many = message.repeat(BYTES / message.len());
    let mut streams: Vec<_> = (0..STREAMS).map(|_| client.begin(STREAM, &[])).collect();
    for stream in &mut streams {
        stream.send(&many);
        stream.finish();
    }
    let computed = 2 * 8;
    until("all streams to be full", || {
        pending(&gateway) >= STREAMS * IN_FLIGHT - computed
    })
    .await;
    // What a window has room for comes at once.
    sleep(PAUSE).await;
    let mut waiting = client.begin(INFER, &[]);
    waiting.send(&message);
    waiting.finish();
    // The time in which a gateway that counts it would cut the call.
    sleep(4 * PAUSE).await;
    worker.answer_all(double);
    let ends = streams.iter_mut().map(Call::code);
    let (codes, code) = tokio::join!(join_all(ends), waiting.code());
    assert_eq!(code, OK);
    assert!(codes.iter().all(|code| code == OK), "{codes:?}");
}

#[tokio::test]
async fn a_stream_takes_memory_for_what_it_may_send_unread() {
    let config = DataPlaneConfig {
        memory_budget_bytes: 2 << 20,
        ..DataPlaneConfig::default()
    };
    let gateway = InferenceGateway::start_with(config, InferenceLimits::default()).await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    // Half of the budget is one client's.
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = client.begin(STREAM, &[]);
        stream.read_head().await;
        streams.push(stream);
    }
    let used = |gateway: &InferenceGateway| {
        let metrics = gateway.metrics();
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("packhorse_memory_used_bytes "));
        line.and_then(|used| used.parse().ok()).unwrap_or(0_u64)
    };
    assert_eq!(used(&gateway), 4 * (256 << 10));
    assert_eq!(client.begin(STREAM, &[]).code().await, UNAVAILABLE);
    for stream in &mut streams {
        stream.finish();
        assert_eq!(stream.code().await, OK);
    }
    until("the release", || used(&gateway) == 0).await;
}

//! More than the gateway can answer: refusals before the body is read, and memory within the budget.

use std::time::Duration;

use packhorse_cluster::{Datatype, ModelSpec};
use packhorse_gateway::{api::inference::InferenceLimits, driver::DataPlaneConfig};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{
    inference_gateway::{
        InferenceGateway, double_head, double_model, double_request, model, tensor,
    },
    until, within,
    worker::{double, output},
};

/// The bytes that requests hold, by the metrics.
fn memory_used(gateway: &InferenceGateway) -> u64 {
    let metrics = gateway.metrics();
    let mut lines = metrics.lines();
    let line = lines.find_map(|line| line.strip_prefix("packhorse_memory_used_bytes "));
    line.unwrap().parse().unwrap()
}

async fn with_budget(memory_budget_bytes: u64) -> InferenceGateway {
    let config = DataPlaneConfig {
        memory_budget_bytes,
        ..DataPlaneConfig::default()
    };
    InferenceGateway::start_with(config, InferenceLimits::default()).await
}

async fn answer_of(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    within("the answer", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    answer
}

/// Begins a request whose body of 10 MB does not come, and returns the answer's beginning.
async fn announce_large_body(gateway: &InferenceGateway) -> String {
    let mut stream = gateway.connect().await;
    let head = double_head("Content-Length: 10000000\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 256];
    let read = within("the answer", stream.read(&mut answer))
        .await
        .unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test]
async fn a_model_without_a_replica_refuses_before_the_body_comes() {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(double_model());
    gateway.wait_for_model("double:1").await;
    let answer = announce_large_body(&gateway).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("retry-after: 5\r\n"), "{answer}");
}

#[tokio::test]
async fn a_full_queue_refuses_before_the_body_comes_and_says_when_to_retry() {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(ModelSpec {
        queue_limit: Some(4),
        slo: Duration::from_mins(1),
        ..double_model()
    });
    let worker = gateway.add_worker("double:1", 0).await;
    let mut requests: Vec<_> = (0..2).map(|_| gateway.begin_double(1, 1.0)).collect();
    let busy = [worker.batch().await, worker.batch().await];
    requests.extend((0..4).map(|_| gateway.begin_double(1, 1.0)));
    gateway.wait_for_queued(4).await;
    // As long as nothing is known about the queue, the shortest time.
    let answer = announce_large_body(&gateway).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    // It does not drain for a while: the time is the longest.
    let refused = async {
        while !announce_large_body(&gateway)
            .await
            .contains("retry-after: 60\r\n")
        {}
    };
    within("another time", refused).await;
    for batch in &busy {
        batch.answer(double(batch)).await;
    }
    worker.answer_all(double);
    for request in requests {
        assert_eq!(request.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_the_body() {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(double_model());
    gateway.wait_for_model("double:1").await;
    // The client keeps the connection and sends on; the next request on it is answered as well.
    let mut stream = gateway.connect().await;
    let head = "POST /v2/models/double/infer HTTP/1.1\r\nHost: g\r\nContent-Length: 100000\r\n\r\n";
    for _ in 0..3 {
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\"}") {
            answer.push(within("a refusal", stream.read_u8()).await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 503 "));
        stream.write_all(&vec![b' '; 100_000]).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_keeps_its_memory_until_its_bytes_have_left_also_when_the_client_hangs_up() {
    let mut gateway = with_budget(10 << 20).await;
    let spec = |name| tensor(name, Datatype::Uint8, &[-1, -1], None);
    gateway.add_model(model("double:1", 8, spec("x"), spec("y")));
    let worker = gateway.add_worker("double:1", 0).await;
    let raw = |bytes: usize| {
        let head = format!("Inference-Header-Content-Length: 0\r\nContent-Length: {bytes}\r\n");
        [double_head(&head).into_bytes(), vec![7; bytes]].concat()
    };
    let mut gone = gateway.connect().await;
    gone.write_all(&raw(1_000_000)).await.unwrap();
    let batch = worker.batch().await;
    let used = memory_used(&gateway);
    assert!((1_000_000..1_100_000).contains(&used), "{used}");
    drop(gone);
    let cancelled = "reason=\"CANCELED\"} 1\n";
    until("the cancellation", || gateway.metrics().contains(cancelled)).await;
    // The batch that the worker computes has left, so that nothing is held for it.
    until("the release", || memory_used(&gateway) == 0).await;
    batch
        .answer(vec![output(&[1, 1_000_000], &vec![0_u8; 1_000_000])])
        .await;
    until("the release", || memory_used(&gateway) == 0).await;
}

#[tokio::test]
async fn an_answer_that_is_not_read_is_in_the_budget_and_the_model_alone_pays_for_it() {
    const LARGE: u32 = 16 << 20;
    let mut gateway = with_budget(64 << 20).await;
    let wide = |name| tensor(name, Datatype::Uint8, &[-1, -1], None);
    gateway.add_model(model("wide:1", 8, wide("x"), wide("y")));
    gateway.add_model(double_model());
    gateway.add_worker("wide:1", 0).await.answer_all(|batch| {
        let rows = i64::from(batch.header.rows);
        let bytes = vec![0_u8; LARGE as usize * batch.header.rows as usize];
        vec![output(&[rows, LARGE.into()], &bytes)]
    });
    gateway.add_worker("double:1", 1).await.answer_all(double);
    let request = json!({
        "inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 1], "data": [1]}],
        "parameters": {"binary_data_output": true},
    })
    .to_string();
    let head = format!(
        "POST /v2/models/wide/infer HTTP/1.1\r\nHost: g\r\nContent-Length: {}\r\n\r\n",
        request.len()
    );
    let mut silent = Vec::new();
    let mut refused = None;
    for _ in 0..20 {
        let mut stream = gateway.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut beginning = [0; 12];
        within("the beginning", stream.read_exact(&mut beginning))
            .await
            .unwrap();
        if &beginning == b"HTTP/1.1 503" {
            refused = Some(stream);
            break;
        }
        assert_eq!(&beginning, b"HTTP/1.1 200");
        silent.push(stream);
    }
    assert!(
        refused.is_some(),
        "clients that do not read take any amount of memory"
    );
    let used = memory_used(&gateway);
    assert!(used >= u64::from(LARGE), "{used}");
    assert!(used <= (64 << 20) + u64::from(LARGE), "{used}");
    // Another model is not affected.
    assert_eq!(gateway.double(1, 1.0).await.status, 200);
    drop(silent);
    until("the release", || memory_used(&gateway) == 0).await;
}

#[tokio::test]
async fn what_json_becomes_in_memory_is_reserved_before_it_is_parsed() {
    let mut gateway = with_budget(4 << 20).await;
    let spec = |name| tensor(name, Datatype::Int64, &[-1, -1], None);
    gateway.add_model(model("double:1", 8, spec("x"), spec("y")));
    let _worker = gateway.add_worker("double:1", 0).await;
    // 1 MB of text would become 4 MB of numbers.
    let zeros = vec![0; 500_000];
    let body = json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 500_000], "data": zeros}]});
    let refused = gateway
        .post("/v2/models/double/infer", body.to_string())
        .await;
    assert!(refused.error(503).contains("memory"));
    assert_eq!(memory_used(&gateway), 0);
}

#[tokio::test]
async fn large_json_is_parsed_and_formatted_like_small_json() {
    let gateway = InferenceGateway::with_computing_double().await;
    for rows in [1, 8] {
        let mut request = double_request(rows, 1.5);
        // Whitespace makes it large.
        request["filler"] = json!("x".repeat(200_000));
        let answer = gateway
            .post("/v2/models/double/infer", request.to_string())
            .await;
        assert_eq!(
            answer.ok(200)["outputs"][0]["data"],
            json!(vec![3.0; 2 * rows])
        );
    }
    let mut stream = gateway.connect().await;
    let body = format!("{}{{", " ".repeat(100_000));
    let head = double_head(&format!("Content-Length: {}\r\n", body.len()));
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    assert!(answer_of(&mut stream).await.starts_with("HTTP/1.1 400 "));
    until("the release", || memory_used(&gateway) == 0).await;
}

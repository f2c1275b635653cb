//! Two keys on one gateway: the greedy one takes what it can get, and the quiet one is served beside it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use packhorse_wire::TensorHeader;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::shared_memory::Object;
use crate::support::{
    agent::Agent,
    answer::Answer,
    gateway::{Gateway, digest_of, registration},
    until, within,
    worker::{Batch, double, output},
};

/// The bytes of an answer that is more than the buffers of a socket on both sides hold.
const WIDE: u32 = 16 << 20;

/// A gateway with two keys, of which the first one is limited to one request at a time on the model `wide`.
struct TwoKeys {
    gateway: Gateway,
    greedy: String,
    quiet: String,
    _agent: Agent,
}

impl TwoKeys {
    async fn start(flags: &[&str]) -> Self {
        let flags = [&["--inference-keys=required"], flags].concat();
        let gateway = Gateway::with_flags(&flags).await;
        let mut agent = Agent::new("n");
        agent.computes = Some(double);
        gateway.register("m").await;
        agent.work_until_ready(&gateway, "m").await;
        let limits = json!([{"model": "wide", "max_in_flight": 1}]);
        let [greedy, quiet] = [("greedy", limits), ("quiet", json!([]))].map(
            |(name, limits)| json!({"name": name, "scopes": ["infer:*"], "model_limits": limits}),
        );
        let greedy = create(&gateway, &greedy).await;
        let quiet = create(&gateway, &quiet).await;
        Self {
            gateway,
            greedy,
            quiet,
            _agent: agent,
        }
    }

    async fn post(&self, key: &str, path: &str, body: &[u8]) -> Answer {
        let address = self.gateway.app.inference_address();
        let sent = self
            .gateway
            .send(address, Method::POST, path, Some(key), body.to_vec());
        sent.await
    }

    async fn infer(&self, key: &str) -> Answer {
        let body = request("FP32").to_string();
        self.post(key, "/v2/models/m/infer", body.as_bytes()).await
    }

    /// Opens a connection and sends the head of a request with a body of this length.
    async fn begin(&self, key: &str, model: &str, length: usize) -> TcpStream {
        let address = self.gateway.app.inference_address();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /v2/models/{model}/infer HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }
}

async fn create(gateway: &Gateway, key: &Value) -> String {
    let created = gateway.post("/v1/keys", key).await.ok(201);
    created["key"].as_str().unwrap().to_owned()
}

fn request(datatype: &str) -> Value {
    json!({"inputs": [{"name": "x", "datatype": datatype, "shape": [1, 4], "data": [1, 2, 3, 4]}]})
}

/// Waits for an answer, of which the beginning is returned.
async fn beginning(stream: &mut TcpStream) -> String {
    let mut answer = [0; 12];
    within("an answer", stream.read_exact(&mut answer))
        .await
        .unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn large_json_of_one_key_does_not_keep_that_of_another_waiting() {
    const MANY: usize = 60;
    let keys = Arc::new(TwoKeys::start(&[]).await);
    // The mistake is at the end, so that nothing but the parsing takes time.
    let large = |bytes: usize| {
        let numbers = "0.123456,".repeat(bytes / 9);
        format!(r#"{{"inputs": [{{"name": "x", "data": [{numbers}!"#)
    };
    let body: Arc<str> = large(2_000_000).into();
    let answered = Arc::new(AtomicUsize::new(0));
    let greedy: Vec<_> = (0..MANY)
        .map(|_| {
            let (keys, body, answered) = (keys.clone(), body.clone(), answered.clone());
            tokio::spawn(async move {
                let path = "/v2/models/m/infer";
                let answer = keys.post(&keys.greedy, path, body.as_bytes()).await;
                answered.fetch_add(1, SeqCst);
                answer.status
            })
        })
        .collect();
    until("the first answers", || answered.load(SeqCst) >= 3).await;
    let body = large(100_000);
    let answer = keys.post(&keys.quiet, "/v2/models/m/infer", body.as_bytes());
    assert_eq!(answer.await.status, 400);
    let before = answered.load(SeqCst);
    assert!(before < MANY * 3 / 4, "{before} were answered before");
    for status in greedy {
        assert_eq!(status.await.unwrap(), 400);
    }
}

#[tokio::test]
async fn memory_of_one_key_leaves_room_for_small_requests_of_another() {
    let keys = TwoKeys::start(&["--payload-budget-bytes=1048576"]).await;
    let mut held = Vec::new();
    // Each takes 8 KiB when it begins; half of the budget is 64 of them.
    loop {
        let mut stream = keys.begin(&keys.greedy, "m", 1000).await;
        stream.write_all(b" ").await.unwrap();
        let mut status = [0; 12];
        let is_held = async {
            // The bytes of the bodies are counted, too.
            let at_least: usize = (held.len() + 1) * (8192 + 1);
            loop {
                let metrics = keys.gateway.get("/metrics").await.text();
                let mut lines = metrics.lines();
                let line = lines.find_map(|l| l.strip_prefix("packhorse_memory_used_bytes "));
                if line.is_some_and(|bytes| bytes.parse::<usize>().unwrap() >= at_least) {
                    return;
                }
            }
        };
        tokio::select! {
            read = stream.read_exact(&mut status) => {
                read.unwrap();
                assert_eq!(&status, b"HTTP/1.1 503");
                break;
            }
            () = within("the reservation", is_held) => held.push(stream),
        }
    }
    assert!((60..=64).contains(&held.len()), "{}", held.len());
    for _ in 0..20 {
        assert_eq!(keys.infer(&keys.quiet).await.status, 200);
    }
    let refused = keys.infer(&keys.greedy).await;
    let message = refused.error(503);
    assert!(message.contains("of this client"));
    let path = "/v1/requests?outcome=refused&limit=1";
    let listed = keys.gateway.get(path).await.ok(200);
    assert_eq!(listed[0]["reason"], message);
    assert!(listed[0]["slo_ms"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn regions_of_one_key_leave_places_for_another() {
    let keys = TwoKeys::start(&["--system-shared-memory"]).await;
    let object = Object::create("two-keys", 64);
    let region = json!({"key": object.key, "byte_size": 64}).to_string();
    let register = async |key: &str, number: usize| {
        let path = format!("/v2/systemsharedmemory/region/{number}/register");
        keys.post(key, &path, region.as_bytes()).await
    };
    let mut registered = 0;
    let refused = loop {
        let answer = register(&keys.greedy, registered).await;
        if answer.status != 200 {
            break answer;
        }
        registered += 1;
    };
    assert_eq!(registered, 128);
    assert!(refused.error(400).contains("no more than are free"));
    for number in 0..40 {
        assert_eq!(register(&keys.quiet, number).await.status, 200);
    }
}

/// Computes an output that is more than sockets hold.
fn wide(batch: &Batch) -> Vec<(TensorHeader, Vec<u8>)> {
    let rows = batch.header.rows;
    let bytes = vec![0_u8; WIDE as usize * rows as usize];
    vec![output(&[rows.into(), WIDE.into()], &bytes)]
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_answer_has_left_or_its_connection_has_ended() {
    let keys = TwoKeys::start(&[]).await;
    let file = b"the file of wide";
    keys.gateway.upload(file).await;
    let mut registration = registration("wide", digest_of(file));
    registration["outputs"] = json!([{"name": "y", "datatype": "UINT8", "shape": [-1, WIDE]}]);
    keys.gateway.post("/v1/models", &registration).await.ok(201);
    let mut agent = Agent::new("other");
    agent.computes = Some(wide);
    agent.work_until_ready(&keys.gateway, "wide").await;

    let mut body = request("FP32");
    body["parameters"] = json!({"binary_data_output": true});
    let body = body.to_string();
    let mut unread = keys.begin(&keys.greedy, "wide", body.len()).await;
    unread.write_all(body.as_bytes()).await.unwrap();
    assert_eq!(beginning(&mut unread).await, "HTTP/1.1 200");
    let infer = async |key: &str| {
        let path = "/v2/models/wide/infer";
        keys.post(key, path, body.as_bytes()).await
    };
    let refused = infer(&keys.greedy).await.error(429);
    assert!(refused.contains("has 1 requests in flight"), "{refused}");
    assert_eq!(infer(&keys.quiet).await.status, 200);
    // The rest is read: the answer has left.
    let mut left = vec![0; WIDE as usize];
    within("the answer", unread.read_exact(&mut left))
        .await
        .unwrap();
    assert_eq!(infer(&keys.greedy).await.status, 200);

    let mut unread = keys.begin(&keys.greedy, "wide", body.len()).await;
    unread.write_all(body.as_bytes()).await.unwrap();
    assert_eq!(beginning(&mut unread).await, "HTTP/1.1 200");
    assert_eq!(infer(&keys.greedy).await.status, 429);
    drop(unread);
    let answered = async {
        while infer(&keys.greedy).await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    within("the end of the connection", answered).await;
}

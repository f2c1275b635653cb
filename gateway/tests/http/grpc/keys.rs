//! Keys hold from the first byte of a message, in whatever form it comes.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use packhorse_grpc::messages::inference::ModelInferRequest;
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::{
    agent::Agent,
    gateway::Gateway,
    grpc::{
        GrpcClient, INFER, OK, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAVAILABLE, frame,
        infer_request, name_last,
    },
    worker::double,
};

/// A gateway that requires keys, with two models.
struct Locked {
    gateway: Gateway,
    client: GrpcClient,
    _agent: Agent,
}

impl Locked {
    async fn start(flags: &[&str]) -> Self {
        let flags = [&["--inference-keys=required"], flags].concat();
        let gateway = Gateway::with_flags(&flags).await;
        let mut agent = Agent::new("n");
        agent.computes = Some(double);
        gateway.register("mine").await;
        agent.work_until_ready(&gateway, "mine").await;
        let client = GrpcClient::connect(gateway.app.grpc_address().unwrap()).await;
        Self {
            gateway,
            client,
            _agent: agent,
        }
    }

    /// Makes a key, and returns it as metadata has it.
    async fn key(&self, limits: &Value) -> String {
        let mut key = json!({"name": "k", "scopes": ["infer:mine"]});
        for (name, value) in limits.as_object().unwrap() {
            key[name] = value.clone();
        }
        let created = self.gateway.post("/v1/keys", &key).await.ok(201);
        format!("Bearer {}", created["key"].as_str().unwrap())
    }
}

/// A request to a model that has a part of 100 KB before its name.
fn large(model: &str) -> ModelInferRequest {
    infer_request(model, [6_000, 4], 1.0)
}

fn small(model: &str) -> ModelInferRequest {
    infer_request(model, [1, 4], 1.0)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn a_key_above_its_rate_is_refused_before_a_message_whose_model_comes_last_is_there() {
    let locked = Locked::start(&[]).await;
    let key = locked.key(&json!({"rate_rps": 0.01})).await;
    let metadata = [("authorization", &*key)];
    let first = name_last(&small("mine"));
    assert_eq!(locked.client.code(INFER, &metadata, &first).await, OK);
    let mut second = locked.client.begin(INFER, &metadata);
    // The rest never comes.
    second.send(&frame(0, &name_last(&large("mine")))[..50_000]);
    assert_eq!(second.code().await, RESOURCE_EXHAUSTED);
}

#[tokio::test]
async fn a_compressed_message_is_refused_by_scope_and_rate_before_it_is_there() {
    let locked = Locked::start(&[]).await;
    let key = locked.key(&json!({"rate_rps": 0.01})).await;
    let metadata = [("authorization", &*key), ("grpc-encoding", "gzip")];
    let begin = |model| {
        let call = locked.client.begin(INFER, &metadata);
        call.send(&frame(1, &gzip(&large(model).encode_to_vec()))[..50_000]);
        call
    };
    // What the scope refuses does not count for the rate.
    assert_eq!(begin("yours").code().await, PERMISSION_DENIED);
    let mut whole = locked.client.begin(INFER, &metadata);
    whole.send(&frame(1, &gzip(&small("mine").encode_to_vec())));
    whole.finish();
    assert_eq!(whole.code().await, OK);
    assert_eq!(begin("mine").code().await, RESOURCE_EXHAUSTED);
    // Where the name comes last, the rate is the one that is known.
    let mut last = locked.client.begin(INFER, &metadata);
    last.send(&frame(1, &gzip(&name_last(&large("mine"))))[..50_000]);
    assert_eq!(last.code().await, RESOURCE_EXHAUSTED);
}

#[tokio::test]
async fn scope_and_limits_for_a_model_hold_once_its_name_is_there() {
    let locked = Locked::start(&[]).await;
    let limits = json!({"model_limits": [{"model": "mine", "rate_rps": 0.01}]});
    let key = locked.key(&limits).await;
    let metadata = [("authorization", &*key)];
    let code = async |message: &[u8]| locked.client.code(INFER, &metadata, message).await;
    assert_eq!(code(&name_last(&small("yours"))).await, PERMISSION_DENIED);
    assert_eq!(code(&name_last(&small("mine"))).await, OK);
    assert_eq!(code(&name_last(&small("mine"))).await, RESOURCE_EXHAUSTED);
    assert_eq!(
        code(&small("mine").encode_to_vec()).await,
        RESOURCE_EXHAUSTED
    );
}

#[tokio::test]
async fn messages_whose_model_is_not_known_count_for_the_tenant_of_their_key() {
    let locked = Locked::start(&["--payload-budget-bytes=1048576"]).await;
    let [greedy, quiet] = [locked.key(&json!({})).await, locked.key(&json!({})).await];
    let begin = |key: &str| {
        let call = locked.client.begin(INFER, &[("authorization", key)]);
        // More than the gateway looks for a name in.
        call.send(&frame(0, &name_last(&large("mine")))[..1_100]);
        call
    };
    // Each takes 8 KiB and what has come, until one is refused: then there is no room for another of the same tenant.
    let mut held: Vec<_> = (0..80).map(|_| begin(&greedy)).collect();
    let refused = held.iter_mut().map(|call| Box::pin(call.code()));
    let (code, ..) = futures_util::future::select_all(refused).await;
    assert_eq!(code, UNAVAILABLE);
    let metadata = [("authorization", &*quiet)];
    // Another connection, whose window is its own.
    let other = GrpcClient::connect(locked.gateway.app.grpc_address().unwrap()).await;
    let message = name_last(&small("mine"));
    assert_eq!(other.code(INFER, &metadata, &message).await, OK);
}

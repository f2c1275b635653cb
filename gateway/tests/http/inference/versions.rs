//! The choice of a version for requests that name none.

use std::{collections::BTreeMap, sync::Arc};

use packhorse_cluster::{ModelVersion, Sticky};
use packhorse_control::{LinkState, ServeChange, VersionShares};
use serde_json::Value;

use crate::support::{
    inference_gateway::{InferenceGateway, double_model, double_request},
    until,
    worker::{Worker, double},
};

/// A gateway with two versions of `double` that compute, of which the second has 20 % of the requests. The workers end with the handle.
async fn with_two_versions(sticky: Sticky) -> (InferenceGateway, Vec<Arc<Worker>>) {
    let mut gateway = InferenceGateway::start().await;
    let mut workers = Vec::new();
    for (number, version) in [(0, "double:1"), (1, "double:2")] {
        let mut model = double_model();
        model.program.model = version.parse().unwrap();
        gateway.add_model(model);
        let worker = gateway.add_worker(version, number).await;
        worker.answer_all(double);
        workers.push(worker);
    }
    let version = |number| ModelVersion::new(number).unwrap();
    let shares = VersionShares {
        shares: BTreeMap::from([(version(1), 80), (version(2), 20)]),
        sticky,
        former: None,
    };
    let name = "double".parse().unwrap();
    gateway
        .data_plane
        .serve(vec![ServeChange::Split(name, shares)]);
    // Without a split the second version, which is the newest, has all requests.
    let mut first = 0;
    while first == 0 {
        first += u32::from(version_of(&gateway, None).await == "1");
    }
    (gateway, workers)
}

/// The version that answers a request with this id.
async fn version_of(gateway: &InferenceGateway, id: Option<&str>) -> String {
    let url = gateway.url("/v2/models/double/infer");
    let mut request = gateway.client.post(url);
    if let Some(id) = id {
        request = request.header("x-request-id", id);
    }
    let body = double_request(1, 1.0).to_string();
    let answer = request.body(body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    answer["model_version"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn requests_are_split_by_the_shares_and_a_named_version_is_meant() {
    let (gateway, _workers) = with_two_versions(Sticky::None).await;
    let mut second = 0;
    for _ in 0..100 {
        second += u32::from(version_of(&gateway, None).await == "2");
    }
    assert_eq!(second, 20);
    let named = gateway
        .post(
            "/v2/models/double/versions/2/infer",
            double_request(1, 1.0).to_string(),
        )
        .await;
    assert_eq!(named.ok(200)["model_version"], "2");
}

#[tokio::test]
async fn a_request_id_stays_with_its_version() {
    let (gateway, _workers) = with_two_versions(Sticky::RequestId).await;
    let mut second = 0;
    for number in 0..40 {
        let id = format!("user-{number}");
        let version = version_of(&gateway, Some(&id)).await;
        assert_eq!(version_of(&gateway, Some(&id)).await, version);
        second += u32::from(version == "2");
    }
    assert!((1..20).contains(&second), "{second} of 40 have 20 %");
}

#[tokio::test]
async fn a_version_without_a_ready_replica_refuses_nothing_that_another_can_answer() {
    let (gateway, workers) = with_two_versions(Sticky::None).await;
    workers[0].kill();
    gateway
        .wait_for_link(0, |state| *state != LinkState::Serving)
        .await;
    for _ in 0..20 {
        assert_eq!(version_of(&gateway, None).await, "2");
    }
}

/// The second version has all requests, and is on trial.
#[tokio::test]
async fn what_a_version_on_trial_refuses_is_answered_by_the_one_before_it() {
    let mut gateway = InferenceGateway::start().await;
    let version = |number| ModelVersion::new(number).unwrap();
    let mut workers = Vec::new();
    for (number, id) in [(0, "double:1"), (1, "double:2")] {
        let mut model = double_model();
        model.program.model = id.parse().unwrap();
        model.queue_limit = Some(1);
        gateway.add_model(model);
        workers.push(gateway.add_worker(id, number).await);
    }
    workers[0].answer_all(double);
    let split = |former| {
        let shares = VersionShares {
            shares: BTreeMap::from([(version(2), 100)]),
            sticky: Sticky::None,
            former,
        };
        ServeChange::Split("double".parse().unwrap(), shares)
    };
    gateway.data_plane.serve(vec![split(Some(version(1)))]);
    // Two batches are under way, and a request waits: the queue is full.
    let under_way = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let batches = [workers[1].batch().await, workers[1].batch().await];
    let waiting = gateway.begin_double(1, 1.0);
    let pending = "nv_inference_pending_request_count{model=\"double\",version=\"2\"} 1\n";
    until("the queue's length", || gateway.metrics().contains(pending)).await;
    for _ in 0..5 {
        assert_eq!(version_of(&gateway, None).await, "1");
    }
    let named = gateway
        .post(
            "/v2/models/double/versions/2/infer",
            double_request(1, 1.0).to_string(),
        )
        .await;
    assert!(named.error(503).contains("queue is full"));
    // The trial is over.
    gateway.data_plane.serve(vec![split(None)]);
    assert!(
        gateway
            .double(1, 1.0)
            .await
            .error(503)
            .contains("queue is full")
    );
    for batch in batches {
        batch.answer(double(&batch)).await;
    }
    workers[1].answer_all(double);
    for request in under_way.into_iter().chain([waiting]) {
        assert_eq!(request.await.unwrap().ok(200)["model_version"], "2");
    }
}

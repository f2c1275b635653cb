//! Requests that are accepted, or not, and get no answer from the model.

use std::time::Duration;

use packhorse_control::LinkState;
use packhorse_gateway::{api::inference::InferenceLimits, driver::DataPlaneConfig};
use packhorse_wire::FailureKind;
use serde_json::json;

use crate::support::{
    answer::Answer,
    inference_gateway::{ADDRESS, InferenceGateway, double_model, double_request, numbers},
    within,
    worker::{double, output},
};

#[tokio::test]
async fn a_worker_dies_mid_batch_and_its_requests_are_answered_by_another() {
    let (mut gateway, first) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(2, 1.0);
    first.batch().await;
    let second = gateway.add_worker("double:1", 1).await;
    first.kill();
    second.answer_all(double);
    assert_eq!(numbers(&request.await.unwrap()), [2.0; 4]);
    let lost = gateway
        .wait_for_link(0, |state| {
            matches!(state, LinkState::Connecting { reason: Some(_) })
        })
        .await;
    assert_ne!(lost, LinkState::Serving);
}

#[tokio::test]
async fn a_request_whose_worker_is_lost_for_good_is_refused_by_its_deadline() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let mut request = double_request(1, 1.0);
    request["parameters"] = json!({"timeout": 300_000});
    let request = gateway.begin("/v2/models/double/infer", &request);
    worker.batch().await;
    worker.kill();
    let answer = within("an answer", request).await.unwrap();
    assert!([503, 504].contains(&answer.status), "{answer:?}");
    answer.error(answer.status);
    // Nobody is there to serve the next one.
    let refused = gateway.double(1, 1.0).await;
    assert!(refused.error(503).contains("no replica"));
    assert_eq!(refused.headers["retry-after"], "1");
}

#[tokio::test]
async fn a_worker_that_comes_back_is_connected_to_again() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(1, 3.0);
    let batch = worker.batch().await;
    // The answer to a batch that was never sent ends the connection.
    batch
        .answer_as(packhorse_wire::BatchId(999), double(&batch))
        .await;
    let state = gateway
        .wait_for_link(0, |state| {
            matches!(state, LinkState::Connecting { reason: Some(_) })
        })
        .await;
    assert!(format!("{state:?}").contains("batch 999"), "{state:?}");
    let again = worker.batch().await;
    again.answer(double(&again)).await;
    assert_eq!(numbers(&request.await.unwrap()), [6.0, 6.0]);
    assert_eq!(worker.connections(), 2);
}

#[tokio::test]
async fn a_request_that_expires_in_the_queue_is_a_504() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let _blockers = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let _busy = [worker.batch().await, worker.batch().await];
    let mut request = double_request(1, 1.0);
    request["parameters"] = json!({"timeout": 100_000});
    let answer = gateway
        .post("/v2/models/double/infer", request.to_string())
        .await;
    answer.error(504);
}

#[tokio::test]
async fn a_hopeless_request_is_refused_at_once() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let mut request = double_request(1, 1.0);
    request["parameters"] = json!({"timeout": 1});
    let answer = gateway
        .post("/v2/models/double/infer", request.to_string())
        .await;
    assert!(answer.error(503).contains("deadline"));
    assert_eq!(answer.headers["retry-after"], "1");
    assert!(!worker.has_batch().await);
}

#[tokio::test]
async fn a_full_queue_refuses() {
    let config = DataPlaneConfig {
        queue_limit: 1,
        ..DataPlaneConfig::default()
    };
    let mut gateway = InferenceGateway::start_with(config, InferenceLimits::default()).await;
    gateway.add_model(double_model());
    let worker = gateway.add_worker("double:1", 0).await;
    let _blockers = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let _busy = [worker.batch().await, worker.batch().await];
    let _queued = gateway.begin_double(1, 1.0);
    gateway.wait_for_queued(1).await;
    let answer = gateway.double(1, 1.0).await;
    assert!(answer.error(503).contains("queue_limit is 1 requests"));
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_model_may_have_a_queue_limit_of_its_own_that_changes_while_it_is_served() {
    let mut gateway = InferenceGateway::start().await;
    let mut spec = double_model();
    spec.queue_limit = Some(1);
    gateway.add_model(spec.clone());
    let worker = gateway.add_worker("double:1", 0).await;
    let _blockers = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let _busy = [worker.batch().await, worker.batch().await];
    let _queued = gateway.begin_double(1, 1.0);
    gateway.wait_for_queued(1).await;
    let refused = gateway.double(1, 1.0).await.error(503);
    assert!(refused.contains("queue_limit is 1 requests"), "{refused}");

    spec.queue_limit = Some(2);
    gateway.add_model(spec.clone());
    gateway.settled().await;
    let _queued_too = gateway.begin_double(1, 1.0);
    gateway.wait_for_queued(2).await;
    let refused = gateway.double(1, 1.0).await.error(503);
    assert!(refused.contains("queue_limit is 2 requests"), "{refused}");

    // Without one, it has the gateway's. What it had before goes on waiting.
    spec.queue_limit = None;
    gateway.add_model(spec);
    gateway.settled().await;
    let _queued_at_last = gateway.begin_double(1, 1.0);
    gateway.wait_for_queued(3).await;
}

#[tokio::test]
async fn as_many_requests_as_the_limit_are_under_way_at_a_time() {
    let config = DataPlaneConfig {
        request_limit: 1,
        ..DataPlaneConfig::default()
    };
    let mut gateway = InferenceGateway::start_with(config, InferenceLimits::default()).await;
    gateway.add_model(double_model());
    let worker = gateway.add_worker("double:1", 0).await;
    let first = gateway.begin_double(1, 1.0);
    let batch = worker.batch().await;
    assert!(
        gateway
            .double(1, 1.0)
            .await
            .error(503)
            .contains("limit of 1 concurrent requests")
    );
    batch.answer(double(&batch)).await;
    assert_eq!(first.await.unwrap().status, 200);
    worker.answer_all(double);
    assert_eq!(gateway.double(1, 1.0).await.status, 200);
}

#[tokio::test]
async fn a_model_without_a_worker_is_not_ready() {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(double_model());
    gateway.wait_for_model("double:1").await;
    assert!(
        gateway
            .double(1, 1.0)
            .await
            .error(503)
            .contains("no replica of the model is ready")
    );
}

#[tokio::test]
async fn a_module_that_throws_on_the_only_replica_is_a_500() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(1, 1.0);
    worker
        .batch()
        .await
        .fail(FailureKind::ModuleThrew, "division by zero")
        .await;
    assert!(
        request
            .await
            .unwrap()
            .error(500)
            .contains("division by zero")
    );
    worker.answer_all(double);
    assert_eq!(gateway.double(1, 1.0).await.status, 200);
}

#[tokio::test]
async fn an_output_that_was_not_declared_is_a_500() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let outputs = [
        vec![],
        vec![output(&[1, 3], &[1.0_f32; 3])],
        vec![output(&[1, 2], &[1.0_f64; 2])],
        vec![output(&[2, 2], &[1.0_f32; 4])],
    ];
    for outputs in outputs {
        let request = gateway.begin_double(1, 1.0);
        worker.batch().await.answer(outputs).await;
        assert!(
            request
                .await
                .unwrap()
                .error(500)
                .contains("the model answered")
        );
    }
}

#[tokio::test]
async fn an_answer_that_json_cannot_say_is_a_500_or_null_where_the_client_asks_for_it() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    worker.answer_all(|_| vec![output(&[1, 2], &[f32::NAN, 1.0])]);
    let failed = gateway.double(1, 1.0).await;
    assert!(failed.error(500).contains("binary_data"));
    let mut request = double_request(1, 1.0);
    request["parameters"] = json!({"non_finite_as_null": true});
    let answer = gateway
        .post("/v2/models/double/infer", request.to_string())
        .await;
    assert_eq!(answer.ok(200)["outputs"][0]["data"], json!([null, 1.0]));
}

#[tokio::test]
async fn a_worker_that_never_answers_is_given_up() {
    let config = DataPlaneConfig {
        batch_time: Duration::from_millis(200),
        ..DataPlaneConfig::default()
    };
    let mut gateway = InferenceGateway::start_with(config, InferenceLimits::default()).await;
    gateway.add_model(double_model());
    let worker = gateway.add_worker("double:1", 0).await;
    let request = gateway.begin_double(1, 1.0);
    let stuck = worker.batch().await;
    gateway
        .wait_for_link(0, |state| {
            matches!(state, LinkState::Connecting { reason: Some(_) })
        })
        .await;
    let again = worker.batch().await;
    assert_eq!(again.payload, stuck.payload);
    again.answer(double(&again)).await;
    assert_eq!(request.await.unwrap().status, 200);
}

#[tokio::test]
async fn what_is_under_way_is_answered_before_the_data_plane_ends() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(1, 1.0);
    let batch = worker.batch().await;
    let data_plane = gateway.data_plane.clone();
    let ending = tokio::spawn(async move { data_plane.shutdown(Duration::from_secs(10)).await });
    within("not being ready", async {
        while gateway.get("/v2/health/ready").await.status == 200 {}
    })
    .await;
    assert!(
        gateway
            .double(1, 1.0)
            .await
            .error(503)
            .contains("shutting down")
    );
    batch.answer(double(&batch)).await;
    assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
    within("the end", ending).await.unwrap();
    within(
        "the end of the connections",
        gateway
            .server
            .shutdown(tokio::time::Instant::now() + Duration::from_secs(10)),
    )
    .await;
}

#[tokio::test]
async fn what_is_not_answered_within_the_grace_is_refused() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(1, 1.0);
    let _batch = worker.batch().await;
    within(
        "the end",
        gateway.data_plane.shutdown(Duration::from_millis(50)),
    )
    .await;
    request.await.unwrap().error(503);
}

/// A replica whose batches fail at once is always idle, and would get nearly all of them.
#[tokio::test]
async fn a_replica_that_fails_every_batch_is_ejected_and_its_requests_are_answered_elsewhere() {
    let (mut gateway, broken) = InferenceGateway::with_double().await;
    let healthy = gateway.add_worker("double:1", 1).await;
    healthy.answer_all(double);
    let failing = tokio::spawn(async move {
        loop {
            let batch = broken.batch().await;
            batch
                .fail(FailureKind::ModuleThrew, "no kernel image")
                .await;
        }
    });
    let ejected = |state: &LinkState| matches!(state, LinkState::Ejected { .. });
    for _ in 0..60 {
        let requests: Vec<_> = (0..4).map(|_| gateway.begin_double(1, 1.0)).collect();
        for request in requests {
            assert_eq!(numbers(&request.await.unwrap()), [2.0; 2]);
        }
    }
    let state = gateway.wait_for_link(0, ejected).await;
    let reason = "no kernel image".to_owned();
    assert_eq!(state, LinkState::Ejected { reason });
    let ejections = "packhorse_replica_ejections_total{model=\"double\",version=\"1\"} 1\n";
    assert!(
        gateway.metrics().contains(ejections),
        "{}",
        gateway.metrics()
    );
    assert!(!failing.is_finished());
    failing.abort();
}

#[tokio::test]
async fn an_error_of_the_request_itself_is_a_500_on_the_second_replica_and_fails_nobody_else() {
    let (mut gateway, first) = InferenceGateway::with_double().await;
    let second = gateway.add_worker("double:1", 1).await;
    for worker in [first, second] {
        tokio::spawn(async move {
            loop {
                let batch = worker.batch().await;
                if batch.input::<f32>(0).contains(&13.0) {
                    batch.fail(FailureKind::ModuleThrew, "unlucky").await;
                } else {
                    batch.answer(double(&batch)).await;
                }
            }
        });
    }
    // More than the retries that a model has within ten seconds.
    for _ in 0..30 {
        let innocent: Vec<_> = (0..6).map(|_| gateway.begin_double(1, 1.0)).collect();
        let unlucky = gateway.begin_double(1, 13.0);
        let later: Vec<_> = (0..6).map(|_| gateway.begin_double(1, 1.0)).collect();
        for request in innocent.into_iter().chain(later) {
            assert_eq!(numbers(&request.await.unwrap()), [2.0; 2]);
        }
        assert!(unlucky.await.unwrap().error(500).contains("unlucky"));
    }
}

#[tokio::test]
async fn nobody_reads_the_error_of_a_neighbour_in_the_same_batch() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let blockers = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let busy = [worker.batch().await, worker.batch().await];
    let values = [1.0, 13.0, 2.0, 3.0];
    let requests = values.map(|value| gateway.begin_double(1, value));
    gateway.wait_for_queued(4).await;
    for batch in busy {
        batch.answer(double(&batch)).await;
    }
    for blocker in blockers {
        assert_eq!(blocker.await.unwrap().status, 200);
    }
    let answering = tokio::spawn(async move {
        loop {
            let batch = worker.batch().await;
            if batch.input::<f32>(0).contains(&13.0) {
                batch.fail(FailureKind::ModuleThrew, "unlucky: 13").await;
            } else {
                batch.answer(double(&batch)).await;
            }
        }
    });
    for (value, request) in values.into_iter().zip(requests) {
        let answer = request.await.unwrap();
        if value.to_bits() == 13.0_f64.to_bits() {
            assert!(answer.error(500).contains("unlucky: 13"));
        } else {
            assert_eq!(numbers(&answer), [2.0 * value; 2]);
        }
    }
    answering.abort();
}

/// Each connection is a new one for the engine, and each handshake succeeds.
#[tokio::test]
async fn a_worker_that_ends_its_connection_at_every_batch_is_ejected() {
    let (mut gateway, broken) = InferenceGateway::with_double().await;
    let healthy = gateway.add_worker("double:1", 1).await;
    healthy.answer_all(double);
    let ending = tokio::spawn(async move {
        loop {
            let batch = broken.batch().await;
            let unknown = packhorse_wire::BatchId(999_999);
            batch.answer_as(unknown, double(&batch)).await;
        }
    });
    let ejected = |state: &LinkState| matches!(state, LinkState::Ejected { .. });
    let serving = async {
        while !gateway.links.borrow().values().any(ejected) {
            let requests: Vec<_> = (0..4).map(|_| gateway.begin_double(1, 1.0)).collect();
            for request in requests {
                assert_eq!(numbers(&request.await.unwrap()), [2.0; 2]);
            }
        }
    };
    within("the ejection", serving).await;
    let state = format!("{:?}", gateway.wait_for_link(0, ejected).await);
    // The answer to a second batch may come in the middle of the next handshake.
    let reasons = ["batch 999999", "not the Packhorse worker protocol"];
    assert!(
        reasons.iter().any(|reason| state.contains(reason)),
        "{state}"
    );
    assert!(!ending.is_finished());
    ending.abort();
}

#[tokio::test]
async fn requests_behind_a_hung_batch_are_answered_by_another_worker() {
    let (mut gateway, hung) = InferenceGateway::with_double().await;
    let first = gateway.begin_double(8, 1.0);
    let running = hung.batch().await;
    let second = gateway.begin_double(8, 1.0);
    let behind = hung.batch().await;
    let other = gateway.add_worker("double:1", 1).await;
    running.fail(FailureKind::TimedOut, "a batch of 8").await;
    behind.fail(FailureKind::NotBegun, "behind it").await;
    hung.kill();
    other.answer_all(double);
    for request in [first, second] {
        assert_eq!(numbers(&request.await.unwrap()), [2.0; 16]);
    }
}

/// The address of the client whose request ends two workers, and of another one.
#[tokio::test]
async fn a_client_whose_request_ended_two_workers_is_refused_for_a_while_and_others_are_not() {
    let (mut gateway, first) = InferenceGateway::with_double().await;
    let begin = |gateway: &InferenceGateway, address: &str, value: f64| {
        let request = gateway.client.post(gateway.url("/v2/models/double/infer"));
        let request = request.header(ADDRESS, address);
        let request = request.body(double_request(1, value).to_string());
        tokio::spawn(async move { Answer::read(request.send().await.unwrap()).await })
    };
    let (good, bad) = ("10.0.0.1:1000", "10.0.0.2:1000");
    let innocent = begin(&gateway, good, 1.0);
    // A batch that is kept would keep its connection open.
    {
        let batch = first.batch().await;
        batch.answer(double(&batch)).await;
    }
    assert_eq!(innocent.await.unwrap().status, 200);

    let second = gateway.add_worker("double:1", 1).await;
    let poison = begin(&gateway, bad, 13.0);
    let other = tokio::select! {
        _ = first.batch() => {
            first.kill();
            second
        }
        _ = second.batch() => {
            second.kill();
            first
        }
    };
    other.batch().await;
    other.kill();
    assert!(poison.await.unwrap().error(503).contains("lost"));

    let third = gateway.add_worker("double:1", 2).await;
    third.answer_all(double);
    let refused = begin(&gateway, bad, 1.0).await.unwrap();
    assert_eq!(refused.headers["retry-after"], "5");
    assert!(
        refused
            .error(429)
            .contains("requests of this client ended workers")
    );
    assert_eq!(
        numbers(&begin(&gateway, good, 1.0).await.unwrap()),
        [2.0; 2]
    );
    let pauses = "packhorse_tenant_pauses_total{model=\"double\",version=\"1\",tenant=\"address 10.0.0.2\"} 1\n";
    assert!(gateway.metrics().contains(pauses), "{}", gateway.metrics());
}

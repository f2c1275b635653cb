//! Changes of the target, and the links that follow it.

use std::{collections::BTreeMap, sync::Arc};

use packhorse_cluster::{Capacity, Profile};
use packhorse_control::LinkState;
use packhorse_gateway::{api::inference::InferenceLimits, driver::DataPlaneConfig};
use packhorse_wire::{FailureKind, LinkSecret};

use crate::support::{
    inference_gateway::{InferenceGateway, double_model, numbers, replica_id},
    until,
    worker::{STAGES, Worker, double},
};

#[tokio::test]
async fn what_is_equal_in_both_targets_is_not_touched() {
    let (mut gateway, worker) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(1, 1.0);
    let batch = worker.batch().await;
    // A new objective, a new profile, and another replica; the first stays as it is.
    let mut model = double_model();
    model.slo *= 2;
    gateway.add_model(model);
    let replica = gateway.replica(0);
    let mut rows = replica.profile.rows().to_vec();
    rows[0].latency *= 2;
    replica.profile = Arc::new(Profile::new(rows).unwrap());
    gateway.add_worker("double:1", 1).await;
    batch.answer(double(&batch)).await;
    assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
    assert_eq!(worker.connections(), 1);
}

#[tokio::test]
async fn a_draining_replica_answers_what_it_has_and_gets_nothing_more() {
    let (mut gateway, worker) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(1, 1.0);
    let batch = worker.batch().await;
    let other = gateway.add_worker("double:1", 1).await;
    gateway.drain(0);
    gateway
        .wait_for_link(0, |state| *state == LinkState::Draining)
        .await;

    let next = gateway.begin_double(1, 2.0);
    let elsewhere = other.batch().await;
    elsewhere.answer(double(&elsewhere)).await;
    assert_eq!(numbers(&next.await.unwrap()), [4.0, 4.0]);
    batch.answer(double(&batch)).await;
    assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
    gateway
        .wait_for_link(0, |state| *state == LinkState::Drained)
        .await;
    assert!(!worker.has_batch().await);
}

#[tokio::test]
async fn an_idle_replica_is_drained_at_once() {
    let (mut gateway, _worker) = InferenceGateway::with_double().await;
    gateway.drain(0);
    gateway
        .wait_for_link(0, |state| *state == LinkState::Drained)
        .await;
}

#[tokio::test]
async fn a_worker_that_says_it_is_draining_gets_nothing_more() {
    let (mut gateway, worker) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(1, 1.0);
    let batch = worker.batch().await;
    let other = gateway.add_worker("double:1", 1).await;
    batch.drain().await;
    gateway
        .wait_for_link(0, |state| *state == LinkState::Draining)
        .await;
    other.answer_all(double);
    assert_eq!(gateway.double(1, 2.0).await.status, 200);
    assert!(!worker.has_batch().await);
    batch.answer(double(&batch)).await;
    assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
}

#[tokio::test]
async fn a_removed_model_answers_what_is_computed_and_refuses_what_waits() {
    let (mut gateway, worker) = InferenceGateway::with_double().await;
    let computed = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let batches = [worker.batch().await, worker.batch().await];
    let waiting = gateway.begin_double(1, 1.0);
    gateway.wait_for_queued(1).await;
    gateway.target.models.clear();
    gateway.target.replicas.clear();
    gateway.apply();
    waiting.await.unwrap().error(503);
    for batch in &batches {
        batch.answer(double(batch)).await;
    }
    for request in computed {
        assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
    }
    let mut links = gateway.links.clone();
    crate::support::within("the end of the link", links.wait_for(BTreeMap::is_empty))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_worker_gets_no_more_rows_and_batches_than_it_is_capable_of() {
    let (mut gateway, _former) = InferenceGateway::with_double().await;
    let worker = Worker::start(gateway.identity("double:1", 0), LinkSecret::none()).await;
    let replica = gateway.replica(0);
    replica.address = worker.address;
    replica.capacity = Some(Capacity {
        batch_size: 2,
        in_flight: 1,
        multiprocessors: None,
    });
    gateway.apply();
    until("the new link", || worker.connections() == 1).await;
    gateway
        .wait_for_link(0, |state| *state == LinkState::Serving)
        .await;
    let mut requests = vec![gateway.begin_double(1, 1.0)];
    let mut batches = vec![worker.batch().await];
    requests.extend((0..5).map(|_| gateway.begin_double(1, 1.0)));
    gateway.wait_for_queued(5).await;
    assert!(!worker.has_batch().await, "there is one credit");
    let mut rows = Vec::new();
    while !batches.is_empty() {
        let batch = batches.remove(0);
        batch.answer(double(&batch)).await;
        if rows.iter().sum::<u32>() < 5 {
            let next = worker.batch().await;
            rows.push(next.header.rows);
            batches.push(next);
        }
    }
    assert_eq!(rows, [2, 2, 1]);
    for request in requests {
        assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
    }
}

#[tokio::test]
async fn what_was_in_a_batch_that_was_too_large_is_answered_from_smaller_ones() {
    let (mut gateway, worker) = InferenceGateway::with_double().await;
    // Both credits are taken while four more requests come.
    let mut requests = Vec::new();
    let mut held = Vec::new();
    for _ in 0..2 {
        requests.push(gateway.begin_double(1, 1.0));
        held.push(worker.batch().await);
    }
    requests.extend((0..4).map(|_| gateway.begin_double(1, 1.0)));
    gateway.wait_for_queued(4).await;
    held[0].answer(double(&held[0])).await;
    let too_large = worker.batch().await;
    assert_eq!(too_large.header.rows, 4);
    too_large
        .fail(FailureKind::OutOfMemory, "out of memory: 1 PiB")
        .await;
    let smaller = worker.batch().await;
    assert_eq!(smaller.header.rows, 2);
    // Meanwhile the worker has found out that not even those fit.
    for batch_size in [4, 1] {
        let replica = gateway.replica(0);
        replica.capacity = Some(Capacity {
            batch_size,
            in_flight: 2,
            multiprocessors: None,
        });
        gateway.apply();
        // The driver handles targets in order: once this worker is connected, the capacity is known.
        let mut other = double_model();
        other.program.model = format!("other{batch_size}:1").parse().unwrap();
        let name = other.program.model.to_string();
        gateway.add_model(other);
        gateway.add_worker(&name, batch_size).await;
    }
    smaller.fail(FailureKind::OutOfMemory, "not even so").await;
    held[1].answer(double(&held[1])).await;
    for _ in 0..4 {
        let single = worker.batch().await;
        assert_eq!(single.header.rows, 1);
        single.answer(double(&single)).await;
    }
    for request in requests {
        assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
    }
    assert_eq!(worker.connections(), 1);
}

#[tokio::test]
async fn a_request_for_which_there_is_no_memory_is_told_so() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(4, 1.0);
    let batch = worker.batch().await;
    batch
        .fail(FailureKind::OutOfMemory, "out of memory: 1 PiB")
        .await;
    let error = request.await.unwrap().error(500);
    assert!(error.contains("out of memory: 1 PiB"), "{error}");
}

#[tokio::test]
async fn a_worker_elsewhere_under_the_same_identity_replaces_the_former() {
    let (mut gateway, former) = InferenceGateway::with_double().await;
    let request = gateway.begin_double(1, 1.0);
    former.batch().await;
    let later = Arc::new(Worker::start(gateway.identity("double:1", 0), LinkSecret::none()).await);
    later.answer_all(double);
    gateway.add_replica("double:1", 0, later.address);
    assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
    assert_eq!(later.connections(), 1);
}

#[tokio::test]
async fn only_the_right_worker_with_the_right_secret_gets_batches() {
    let config = DataPlaneConfig {
        link_secret: LinkSecret::from_file_content(b"ours"),
        ..DataPlaneConfig::default()
    };
    let mut gateway = InferenceGateway::start_with(config, InferenceLimits::default()).await;
    gateway.add_model(double_model());
    let identity = gateway.identity("double:1", 0);
    let stranger = Worker::start(identity, LinkSecret::from_file_content(b"theirs")).await;
    gateway.add_replica("double:1", 0, stranger.address);
    let state = gateway
        .wait_for_link(0, |state| {
            matches!(state, LinkState::Connecting { reason: Some(_) })
        })
        .await;
    assert!(format!("{state:?}").contains("secret"), "{state:?}");

    let other = Worker::start(
        gateway.identity("double:1", 7),
        LinkSecret::from_file_content(b"ours"),
    )
    .await;
    gateway.add_replica("double:1", 1, other.address);
    let state = gateway
        .wait_for_link(1, |state| {
            matches!(state, LinkState::Connecting { reason: Some(_) })
        })
        .await;
    assert!(format!("{state:?}").contains("1-7"), "{state:?}");

    let right = Worker::start(
        gateway.identity("double:1", 2),
        LinkSecret::from_file_content(b"ours"),
    )
    .await;
    gateway.add_replica("double:1", 2, right.address);
    gateway
        .wait_for_link(2, |state| *state == LinkState::Serving)
        .await;
    assert!(!stranger.has_batch().await && !other.has_batch().await);
    until("connecting again", || stranger.connections() > 1).await;
}

#[tokio::test]
async fn a_worker_on_another_machine_gets_nothing_without_a_link_secret() {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(double_model());
    gateway.add_replica("double:1", 0, "192.0.2.7:9000".parse().unwrap());
    let state = gateway
        .wait_for_link(0, |state| {
            matches!(state, LinkState::Connecting { reason: Some(_) })
        })
        .await;
    let text = format!("{state:?}");
    assert!(
        text.contains("is on another machine") && text.contains("--link-secret-file"),
        "{text}"
    );
}

#[tokio::test]
async fn what_a_replica_computes_is_counted_beside_what_its_profile_says() {
    let (mut gateway, worker) = InferenceGateway::with_double().await;
    worker.answer_all(double);
    for rows in [1, 2, 3] {
        assert_eq!(gateway.double(rows, 1.0).await.status, 200);
    }
    let work = gateway.data_plane.work().await[&replica_id(0)];
    assert_eq!((work.batches, work.rows), (3, 6));
    // The worker says a millisecond each, and so does the profile.
    assert_eq!(work.compute, 3 * STAGES.compute);
    assert_eq!(work.alone, 3 * STAGES.compute);
    gateway.target.replicas.clear();
    gateway.apply();
    assert!(gateway.data_plane.work().await.is_empty());
}

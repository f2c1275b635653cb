//! Clients that go away.

use tokio::io::AsyncWriteExt;

use crate::support::{
    inference_gateway::{InferenceGateway, double_head, double_request, numbers},
    until,
    worker::double,
};

fn cancelled(gateway: &InferenceGateway) -> bool {
    gateway.metrics().contains(
        "nv_inference_request_failure{model=\"double\",version=\"1\",reason=\"CANCELED\"} 1\n",
    )
}

#[tokio::test]
async fn a_request_whose_client_is_gone_is_never_dispatched() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let blockers = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let busy = [worker.batch().await, worker.batch().await];
    let body = double_request(1, 666.0).to_string();
    let mut client = gateway.connect().await;
    let request = format!(
        "{}{body}",
        double_head(&format!("Content-Length: {}\r\n", body.len()))
    );
    client.write_all(request.as_bytes()).await.unwrap();
    gateway.wait_for_queued(1).await;
    drop(client);
    gateway.wait_for_queued(0).await;
    assert!(cancelled(&gateway));

    let next = gateway.begin_double(1, 5.0);
    gateway.wait_for_queued(1).await;
    for batch in &busy {
        batch.answer(double(batch)).await;
    }
    let batch = worker.batch().await;
    assert_eq!(batch.input::<f32>(0), [5.0, 5.0]);
    batch.answer(double(&batch)).await;
    assert_eq!(numbers(&next.await.unwrap()), [10.0, 10.0]);
    for blocker in blockers {
        assert_eq!(blocker.await.unwrap().status, 200);
    }
    assert!(!worker.has_batch().await);
}

#[tokio::test]
async fn the_rows_of_a_client_that_is_gone_are_thrown_away_and_the_others_keep_theirs() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let _blockers = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let busy = [worker.batch().await, worker.batch().await];
    let gone = gateway.begin_double(2, 666.0);
    gateway.wait_for_queued(1).await;
    let stays = gateway.begin_double(1, 5.0);
    gateway.wait_for_queued(2).await;
    busy[0].answer(double(&busy[0])).await;
    let shared = worker.batch().await;
    assert_eq!(shared.header.rows, 3);
    gone.abort();
    until("the cancellation", || cancelled(&gateway)).await;
    shared.answer(double(&shared)).await;
    assert_eq!(numbers(&stays.await.unwrap()), [10.0, 10.0]);
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing_behind() {
    let gateway = InferenceGateway::with_computing_double().await;
    for _ in 0..10 {
        let mut client = gateway.connect().await;
        client
            .write_all(double_head("Content-Length: 1000\r\n").as_bytes())
            .await
            .unwrap();
        client.write_all(b"{\"inputs\": [").await.unwrap();
    }
    assert_eq!(gateway.double(1, 1.0).await.status, 200);
}

//! Requests that share a batch.

use std::time::Duration;

use packhorse_cluster::{Datatype, Discipline, Padding};
use serde_json::json;

use crate::support::{
    answer::Answer,
    client,
    inference_gateway::{InferenceGateway, double_request, model, numbers, tensor},
    until,
    worker::{Batch, double, output},
};

#[tokio::test]
async fn requests_that_wait_share_a_batch_and_each_gets_its_own_rows() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    // Two batches take both credits of the replica.
    let blockers = [
        gateway.begin_double(1, 100.0),
        gateway.begin_double(1, 100.0),
    ];
    let busy = [worker.batch().await, worker.batch().await];
    let waiting = [
        gateway.begin_double(1, 1.0),
        gateway.begin_double(3, 2.0),
        gateway.begin_double(2, 3.0),
    ];
    gateway.wait_for_queued(3).await;

    busy[0].answer(double(&busy[0])).await;
    let shared = worker.batch().await;
    assert_eq!(shared.header.rows, 6);
    assert_eq!(shared.header.inputs[0].shape().dims(), [6, 2]);
    shared.answer(double(&shared)).await;
    busy[1].answer(double(&busy[1])).await;
    for (request, expected) in waiting
        .into_iter()
        .zip([vec![2.0; 2], vec![4.0; 6], vec![6.0; 4]])
    {
        assert_eq!(numbers(&request.await.unwrap()), expected);
    }
    for request in blockers {
        assert_eq!(numbers(&request.await.unwrap()), [200.0, 200.0]);
    }
}

#[tokio::test]
async fn requests_of_different_length_share_a_batch_where_the_model_says_how_to_fill_them_up() {
    let mut gateway = InferenceGateway::start().await;
    let padding = Some(Padding {
        axis: 1,
        value: -1.0,
    });
    let ids = tensor("ids", Datatype::Int64, &[-1, -1], padding);
    gateway.add_model(model(
        "double:1",
        8,
        ids,
        tensor("sum", Datatype::Int64, &[-1, 1], None),
    ));
    let worker = gateway.add_worker("double:1", 0).await;
    let request = |ids: &[i64]| json!({"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, ids.len()], "data": ids}]});
    let begin = |ids: &[i64]| gateway.begin("/v2/models/double/infer", &request(ids));
    let _blockers = [begin(&[1]), begin(&[1])];
    let busy = [worker.batch().await, worker.batch().await];
    let (short, long) = (begin(&[5]), begin(&[6, 7, 8]));
    gateway.wait_for_queued(2).await;
    busy[0].answer(vec![output(&[1, 1], &[0_i64])]).await;

    let shared = worker.batch().await;
    assert_eq!(shared.header.inputs[0].shape().dims(), [2, 3]);
    let mut rows: Vec<Vec<i64>> = shared
        .input::<i64>(0)
        .chunks(3)
        .map(<[i64]>::to_vec)
        .collect();
    let sums: Vec<i64> = rows
        .iter()
        .map(|row| row.iter().filter(|id| **id >= 0).sum())
        .collect();
    shared.answer(vec![output(&[2, 1], &sums)]).await;
    rows.sort();
    assert_eq!(rows, [[5, -1, -1], [6, 7, 8]]);
    assert_eq!(numbers(&short.await.unwrap()), [5.0]);
    assert_eq!(numbers(&long.await.unwrap()), [21.0]);
}

#[tokio::test]
async fn a_long_request_travels_without_short_ones_which_are_not_padded_to_its_length() {
    let mut gateway = InferenceGateway::start().await;
    let padding = Some(Padding {
        axis: 1,
        value: 0.0,
    });
    let ids = tensor("ids", Datatype::Int64, &[-1, -1], padding);
    let sum = tensor("sum", Datatype::Int64, &[-1, 1], None);
    gateway.add_model(model("double:1", 8, ids, sum));
    let worker = gateway.add_worker("double:1", 0).await;
    let begin = |length: usize| {
        let ids = vec![1; length];
        let input = json!({"name": "ids", "datatype": "INT64", "shape": [1, length], "data": ids});
        gateway.begin("/v2/models/double/infer", &json!({"inputs": [input]}))
    };
    let blockers = [begin(1), begin(1)];
    let busy = [worker.batch().await, worker.batch().await];
    let waiting = [begin(3), begin(10_000), begin(5)];
    gateway.wait_for_queued(3).await;
    let answer = |batch: &Batch| {
        let rows = i64::from(batch.header.rows);
        output(&[rows, 1], &vec![0_i64; batch.header.rows as usize])
    };
    for batch in &busy {
        batch.answer(vec![answer(batch)]).await;
    }
    let mut shapes = Vec::new();
    for batch in [worker.batch().await, worker.batch().await] {
        shapes.push(batch.header.inputs[0].shape().dims().to_vec());
        batch.answer(vec![answer(&batch)]).await;
    }
    shapes.sort();
    assert_eq!(shapes, [[1, 10_000], [2, 5]]);
    for request in waiting.into_iter().chain(blockers) {
        assert_eq!(numbers(&request.await.unwrap()), [0.0]);
    }
}

#[tokio::test]
async fn requests_of_different_length_do_not_share_a_batch_otherwise() {
    let mut gateway = InferenceGateway::start().await;
    let spec = |name| tensor(name, Datatype::Fp32, &[-1, -1], None);
    gateway.add_model(model("double:1", 8, spec("x"), spec("y")));
    let worker = gateway.add_worker("double:1", 0).await;
    let begin = |length: usize| {
        let input = json!({"name": "x", "datatype": "FP32", "shape": [1, length], "data": vec![1.0; length]});
        gateway.begin("/v2/models/double/infer", &json!({"inputs": [input]}))
    };
    let blockers = [begin(9), begin(9)];
    let busy = [worker.batch().await, worker.batch().await];
    let waiting = [begin(2), begin(3), begin(2)];
    gateway.wait_for_queued(3).await;
    for batch in &busy {
        batch.answer(double(batch)).await;
    }
    let batches = [worker.batch().await, worker.batch().await];
    let mut shapes: Vec<_> = batches
        .iter()
        .map(|batch| batch.header.inputs[0].shape().dims().to_vec())
        .collect();
    shapes.sort();
    assert_eq!(shapes, [vec![1, 3], vec![2, 2]]);
    for batch in &batches {
        batch.answer(double(batch)).await;
    }
    for request in waiting.into_iter().chain(blockers) {
        assert_eq!(request.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn replicas_that_share_a_device_in_time_take_turns_and_hold_nobody_up_when_they_are_lost() {
    let mut gateway = InferenceGateway::start().await;
    let mut workers = Vec::new();
    for (number, id) in ["double:1", "double:2", "double:3"].into_iter().enumerate() {
        let number = u32::try_from(number).unwrap();
        let spec = |name| tensor(name, Datatype::Fp32, &[-1, 2], None);
        gateway.add_model(model(id, 8, spec("x"), spec("y")));
        workers.push(gateway.add_worker(id, number).await);
    }
    // The third has the device beside them.
    for number in 0..2 {
        let cycle = Some(Duration::from_millis(10));
        gateway.replica(number).replica.spec.duty_cycle = cycle;
    }
    gateway.apply();
    let ask = |version: u32| {
        let path = format!("/v2/models/double/versions/{version}/infer");
        gateway.begin(&path, &double_request(1, 1.0))
    };
    let first = ask(1);
    let in_turn = workers[0].batch().await;
    let second = ask(2);
    let beside = ask(3);
    let unheld = workers[2].batch().await;
    let waits = "nv_inference_pending_request_count{model=\"double\",version=\"2\"} 1\n";
    until("the queue's length", || gateway.metrics().contains(waits)).await;
    assert!(!workers[1].has_batch().await, "it is not its turn");
    unheld.answer(double(&unheld)).await;
    in_turn.answer(double(&in_turn)).await;
    let next = workers[1].batch().await;
    let third = ask(1);
    assert!(!workers[0].has_batch().await, "it is not its turn");
    // The one whose turn it is goes away.
    workers[1].kill();
    drop(next);
    let last = workers[0].batch().await;
    last.answer(double(&last)).await;
    for request in [first, beside, third] {
        assert_eq!(numbers(&request.await.unwrap()), [2.0, 2.0]);
    }
    drop(second);
}

#[tokio::test]
async fn the_discipline_follows_the_target_and_a_worker_is_not_flooded_by_any() {
    let (mut gateway, worker) = InferenceGateway::with_double().await;
    gateway.target.discipline = Discipline::FixedWait;
    gateway.apply();
    // Full batches, all of which this discipline sends at once.
    let requests: Vec<_> = (0..6).map(|_| gateway.begin_double(8, 1.0)).collect();
    let dispatched = "packhorse_stage_duration_seconds_count{model=\"double\",version=\"1\",stage=\"queue\"} 6\n";
    until("the dispatch", || gateway.metrics().contains(dispatched)).await;
    let mut held = vec![
        worker.batch().await,
        worker.batch().await,
        worker.batch().await,
    ];
    for _ in 3..6 {
        assert!(!worker.has_batch().await);
        let batch = held.remove(0);
        batch.answer(double(&batch)).await;
        held.push(worker.batch().await);
    }
    for batch in held {
        batch.answer(double(&batch)).await;
    }
    for request in requests {
        assert_eq!(numbers(&request.await.unwrap()), [2.0; 16]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_crosses_requests_under_load() {
    let gateway = InferenceGateway::with_computing_double().await;
    let client = client();
    let tasks = (0..16_u32).map(|task| {
        let (client, url) = (client.clone(), gateway.url("/v2/models/double/infer"));
        tokio::spawn(async move {
            for i in 0..50_u32 {
                let x = f64::from(task * 1000 + i);
                let rows = 1 + (i % 3) as usize;
                let request = client.post(&url).body(double_request(rows, x).to_string());
                let answer = Answer::read(request.send().await.unwrap()).await;
                assert_eq!(numbers(&answer), vec![2.0 * x; 2 * rows]);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

//! Several drivers in one gateway: models come to share devices and part again, while clients send.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::support::{
    inference_gateway::{InferenceGateway, double_model, double_request, numbers, replica_id},
    until,
    worker::double,
};

const MODELS: [&str; 3] = ["a", "b", "c"];

fn metric(gateway: &InferenceGateway, name: &str) -> Vec<u64> {
    let metrics = gateway.metrics();
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect()
}

/// Sends requests with different values to a model, one after the other, until it is told to stop. Every answer has its own values.
async fn send(url: String, client: reqwest::Client, stop: Arc<AtomicBool>, from: u32) -> u32 {
    let mut sent = 0;
    while !stop.load(Relaxed) {
        let x = f64::from(from + sent);
        let body = double_request(1, x).to_string();
        let answer = client.post(&url).body(body).send().await.unwrap();
        let answer = crate::support::answer::Answer::read(answer).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(numbers(&answer), [2.0 * x; 2]);
        sent += 1;
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_answered_while_models_come_to_share_devices_and_part_again() {
    let mut gateway = InferenceGateway::start().await;
    let mut workers = Vec::new();
    for (number, model) in (0..).zip(MODELS) {
        let mut spec = double_model();
        spec.program.model = format!("{model}:1").parse().unwrap();
        gateway.add_model(spec);
        let device = format!("n/gpu{number}");
        let worker = gateway
            .add_worker_on(&device, &format!("{model}:1"), number)
            .await;
        worker.answer_all(double);
        workers.push(worker);
    }
    assert_eq!(
        metric(&gateway, "packhorse_engine_replicas{"),
        [1, 1, 1],
        "each has an engine"
    );

    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..6_u32)
        .map(|client| {
            let url = gateway.url(&format!("/v2/models/{}/infer", MODELS[client as usize % 3]));
            let sender = send(
                url,
                gateway.client.clone(),
                Arc::clone(&stop),
                100_000 * client,
            );
            tokio::spawn(sender)
        })
        .collect();
    // Each round, the model's replica is replaced by one on another device, which another model has or none. A fixed sequence: every
    // model shares a device with each other one, all three do, and none does.
    let devices = [1, 1, 1, 0, 2, 2, 0, 1, 2, 2, 2, 2, 0, 1, 2];
    for (number, device) in (3..).zip(devices) {
        let model = format!("{}:1", MODELS[number as usize % 3]);
        let worker = gateway
            .add_worker_on(&format!("n/gpu{device}"), &model, number)
            .await;
        worker.answer_all(double);
        workers.push(worker);
        gateway.drain(number - 3);
        gateway
            .wait_for_link(number - 3, |state| {
                *state == packhorse_control::LinkState::Drained
            })
            .await;
        gateway.target.replicas.remove(&replica_id(number - 3));
        gateway.apply();
    }
    stop.store(true, Relaxed);
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
    let [moved] = metric(&gateway, "packhorse_engine_moved_models_total")[..] else {
        panic!("{}", gateway.metrics());
    };
    assert!(moved >= 4, "{moved} models moved");
    let pauses = metric(&gateway, "packhorse_engine_pause_seconds_count");
    assert!(pauses[0] >= 15, "{pauses:?}: each change is one");
    let replicas = metric(&gateway, "packhorse_engine_replicas{");
    assert_eq!(replicas.iter().sum::<u64>(), 3, "{replicas:?}");
    until("no request to be left", || {
        gateway
            .metrics()
            .contains("packhorse_memory_used_bytes 0\n")
    })
    .await;
}

//! `/v1/requests`, `/v1/trace` and `/v1/models/{name}/try`.

use std::{collections::BTreeMap, sync::Arc};

use packhorse_wire::FailureKind;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    agent::Agent,
    answer::Answer,
    gateway::{Gateway, digest_of, registration},
    poll,
    worker::{Worker, double},
};

/// A request with this number of rows.
fn request(rows: usize) -> Value {
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": vec![1.5; 4 * rows]}]})
}

async fn infer(gateway: &Gateway, model: &str, rows: usize) -> Answer {
    let path = format!("/v2/models/{model}/infer");
    let body = request(rows).to_string().into_bytes();
    let address = gateway.app.inference_address();
    gateway.send(address, Method::POST, &path, None, body).await
}

/// A gateway that serves the model `m`, with the agent and the worker.
async fn serving() -> (Gateway, Agent, Arc<Worker>) {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    let worker = Arc::clone(agent.workers.values().next().unwrap());
    (gateway, agent, worker)
}

#[tokio::test]
async fn each_request_is_listed_with_its_end_and_where_its_time_went() {
    let (gateway, agent, worker) = serving().await;
    let (failed, ()) = tokio::join!(infer(&gateway, "m", 1), async {
        let batch = worker.batch().await;
        batch.fail(FailureKind::ModuleThrew, "no").await;
    });
    failed.error(500);
    worker.answer_all(double);
    assert_eq!(infer(&gateway, "m", 3).await.status, 200);
    // No replica serves this one.
    let other = registration("other", digest_of(b"the file of m"));
    gateway.post("/v1/models", &other).await.ok(201);
    poll("a refusal", async || {
        let refused = infer(&gateway, "other", 1).await;
        if refused.status == 503 {
            Ok(())
        } else {
            Err(refused.status)
        }
    })
    .await;

    let all = gateway.get("/v1/requests").await.ok(200);
    let ends: Vec<&str> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(ends, ["refused", "answered", "failed"]);
    let refused = &all[0];
    assert_eq!(
        (&refused["model"], &refused["batch"]),
        (&json!("other"), &Value::Null)
    );
    assert_eq!(
        refused["reason"],
        "no replica of the model is ready; retry later"
    );

    let answered = &all[1];
    assert_eq!(
        (&answered["rows"], &answered["slo_ms"], &answered["reason"]),
        (&json!(3), &json!(200.0), &Value::Null)
    );
    let id = agent.workers.keys().next().unwrap().to_string();
    assert_eq!(answered["batch"]["replica"], id);
    assert_eq!(answered["batch"]["device"], "n/sim0");
    let stages = answered["stages_ms"].as_object().unwrap();
    assert_eq!(
        (&stages["copy_in"], &stages["compute"], &stages["copy_out"]),
        (&json!(0.1), &json!(1.0), &json!(0.2))
    );
    let parts: f64 = stages.values().map(|ms| ms.as_f64().unwrap()).sum();
    let latency = answered["latency_ms"].as_f64().unwrap();
    // The scripted worker says that it computed for longer than it took.
    assert!(parts > 0.0 && latency > 0.0, "{answered}");
    assert_eq!(all[2]["batch"]["device"], "n/sim0");

    let ids = async |query: &str| -> Vec<u64> {
        let listed = gateway.get(&format!("/v1/requests?{query}")).await.ok(200);
        let ids = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["id"].as_u64().unwrap());
        ids.collect()
    };
    let id = |index: usize| all[index]["id"].as_u64().unwrap();
    assert_eq!(ids("outcome=missed").await, [id(0), id(2)]);
    assert_eq!(ids("outcome=missed&model=m").await, [id(2)]);
    assert_eq!(ids("outcome=answered").await, [id(1)]);
    assert_eq!(ids("limit=1").await, [id(0)]);
    assert_eq!(ids("outcome=missed&model=m&version=1").await, [id(2)]);
    assert_eq!(ids("model=m&version=2").await, [0; 0]);
    assert_eq!(ids("model=nobody").await, [0; 0]);
    for (query, message) in [
        ("outcome=slow", "expected missed, answered,"),
        ("limit=0", "limit: expected 1 to 10000"),
        ("model=/", "model"),
        ("version=1", "version"),
    ] {
        let error = gateway
            .get(&format!("/v1/requests?{query}"))
            .await
            .error(400);
        assert!(error.contains(message), "{error}");
    }
}

#[tokio::test]
async fn a_request_is_found_by_its_id_its_key_and_its_time_and_has_an_address() {
    let (gateway, _agent, worker) = serving().await;
    let send = async |headers: &[(&'static str, &'static str)]| {
        let body = request(1).to_string().into_bytes();
        let address = gateway.app.inference_address();
        let path = "/v2/models/m/infer";
        let headers = headers.to_vec();
        gateway
            .send_with(address, Method::POST, path, headers, body)
            .await
    };
    let (failed, ()) = tokio::join!(send(&[("x-request-id", "order-4711")]), async {
        let batch = worker.batch().await;
        batch
            .fail(FailureKind::ModuleThrew, "index 7 is out of range")
            .await;
    });
    failed.error(500);
    worker.answer_all(double);
    for id in ["order-4712", "order-4713"] {
        assert_eq!(send(&[("x-request-id", id)]).await.status, 200);
    }
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traced = [
        ("x-request-id", "order-4712"),
        (
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
    ];
    assert_eq!(send(&traced).await.status, 200);
    let unnamed = send(&[]).await;
    let given = unnamed.headers["x-request-id"].to_str().unwrap().to_owned();

    let find = async |query: &str| -> Value {
        gateway.get(&format!("/v1/requests?{query}")).await.ok(200)
    };
    let found = find("id=order-4711").await;
    assert_eq!(found.as_array().unwrap().len(), 1);
    let failed = &found[0];
    assert_eq!(failed["request_id"], "order-4711");
    assert_eq!(failed["outcome"], "failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("index 7 is out of range"), "{reason}");
    assert_eq!(
        (&failed["key"], &failed["trace_id"]),
        (&Value::Null, &Value::Null)
    );
    let address = format!("/v1/requests/{}", failed["id"]);
    assert_eq!(gateway.get(&address).await.ok(200), *failed);

    assert_eq!(find("id=order-4712").await.as_array().unwrap().len(), 2);
    assert_eq!(
        find("id=order-4712&limit=1")
            .await
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(find(&format!("id={given}")).await[0]["outcome"], "answered");
    let of_trace = find(&format!("id={}", trace.to_uppercase())).await;
    assert_eq!(of_trace.as_array().unwrap().len(), 1);
    assert_eq!(of_trace[0]["request_id"], "order-4712");
    assert_eq!(of_trace[0]["trace_id"], trace);
    assert_eq!(find("since=-60000").await.as_array().unwrap().len(), 5);
    for query in [
        "id=order-4714",
        "key=team-a",
        "until=-60000",
        "id=order-4712&outcome=missed",
    ] {
        assert_eq!(find(query).await, json!([]), "{query}");
    }
    let since = failed["at_ms"].as_f64().unwrap() as i64 + 60_000;
    assert_eq!(find(&format!("since={since}")).await, json!([]));
    // A time as it is shown contains its request, to the millisecond.
    let shown = failed["at_ms"].as_f64().unwrap() as i64;
    let within = find(&format!("since={shown}&until={shown}&id=order-4711")).await;
    assert_eq!(within.as_array().unwrap().len(), 1);
    for path in ["/v1/requests", "/v1/incidents"] {
        let reversed = gateway
            .get(&format!("{path}?since=-1000&until=-2000"))
            .await;
        assert_eq!(reversed.error(400), "since: expected a time before until");
    }
    let error = gateway.get("/v1/requests/999999").await.error(404);
    assert_eq!(error, "request 999999 is not remembered");
    gateway.get("/v1/requests?id=").await.error(400);
}

#[tokio::test]
async fn a_request_whose_client_went_away_is_listed_as_cancelled() {
    let (gateway, _agent, worker) = serving().await;
    let waiting = infer(&gateway, "m", 1);
    tokio::select! {
        answer = waiting => panic!("{answer:?}"),
        _batch = worker.batch() => {}
    }
    poll("the end", async || {
        let all = gateway.get("/v1/requests?outcome=cancelled").await.ok(200);
        if all[0]["model"] == "m" {
            Ok(())
        } else {
            Err(all)
        }
    })
    .await;
    let missed = gateway.get("/v1/requests?outcome=missed").await.ok(200);
    assert_eq!(missed, json!([]));
}

/// The events of a trace that have this phase.
fn of_phase<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
    let events = trace["traceEvents"].as_array().unwrap().iter();
    events.filter(|event| event["ph"] == phase).collect()
}

/// Checks that the slices of every thread nest: two of them are apart, or one contains the other.
fn assert_nested(trace: &Value) {
    let mut threads: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    for slice in of_phase(trace, "X") {
        let number = |field: &str| slice[field].as_f64().unwrap();
        let thread = (
            slice["pid"].as_u64().unwrap(),
            slice["tid"].as_u64().unwrap(),
        );
        let slices = threads.entry(thread).or_default();
        slices.push((number("ts"), number("ts") + number("dur")));
    }
    // Numbers are rounded to nanoseconds.
    let least = 0.001;
    for slices in threads.values() {
        for (i, (begin, end)) in slices.iter().enumerate() {
            for (other_begin, other_end) in &slices[..i] {
                let apart = *end <= other_begin + least || *other_end <= begin + least;
                let inside = *other_begin <= begin + least && *end <= other_end + least;
                let outside = *begin <= other_begin + least && *other_end <= end + least;
                assert!(apart || inside || outside, "{slices:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_trace_shows_batches_by_device_and_requests_by_model() {
    let (gateway, _agent, worker) = serving().await;
    worker.answer_all(double);
    let many =
        futures_util::future::join_all((1..=20).map(|rows| infer(&gateway, "m", 1 + rows % 4)));
    for answer in many.await {
        assert_eq!(answer.status, 200);
    }
    let answer = gateway.get("/v1/trace?from_ms=-60000").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let trace = answer.ok(200);
    assert!(trace["otherData"]["from_unix_ms"].as_f64().unwrap() > 1.5e12);
    let names: Vec<&str> = of_phase(&trace, "M")
        .iter()
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    for name in ["n/sim0", "requests of m:1", "request 1"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(names.iter().any(|name| name.starts_with("replica ")));

    let slices = of_phase(&trace, "X");
    let batches: Vec<_> = slices
        .iter()
        .filter(|s| s["args"]["model"] == "m:1")
        .collect();
    let rows = |slices: &[&&Value]| -> u64 {
        let rows = slices.iter().map(|s| s["args"]["rows"].as_u64().unwrap());
        rows.sum()
    };
    let requests: Vec<_> = slices.iter().filter(|s| s["name"] == "answered").collect();
    assert_eq!(requests.len(), 20);
    assert_eq!(rows(&batches), rows(&requests));
    assert!(slices.iter().any(|s| s["name"] == "worker queue"));
    assert_nested(&trace);

    // Each request has an arrow to the slice of its batch.
    let (from, to) = (of_phase(&trace, "s"), of_phase(&trace, "f"));
    assert_eq!((from.len(), to.len()), (20, 20));
    for (request, arrow) in requests.iter().zip(&to) {
        assert_eq!(request["args"]["request"], arrow["id"]);
        let batch = batches
            .iter()
            .find(|b| b["args"]["batch"] == request["args"]["batch"]);
        let batch = batch.unwrap();
        assert_eq!(
            (&batch["pid"], &batch["tid"]),
            (&arrow["pid"], &arrow["tid"])
        );
    }
    let last = of_phase(&trace, "C").last().copied().cloned().unwrap();
    assert_eq!(last["args"]["requests"], 0);

    let before = gateway
        .get("/v1/trace?from_ms=1000&to_ms=2000")
        .await
        .ok(200);
    assert_eq!(before["traceEvents"], json!([]));
    let error = gateway.get("/v1/trace?from_ms=-1&to_ms=-1000").await;
    assert_eq!(error.error(400), "from_ms: expected a time before to_ms");
}

#[tokio::test]
async fn an_admin_tries_a_model_and_sees_where_the_time_went() {
    let (gateway, agent, worker) = serving().await;
    worker.answer_all(double);
    let tried = gateway.post("/v1/models/m/try", &request(2)).await.ok(200);
    assert_eq!(tried["response"]["outputs"][0]["data"], json!(vec![3.0; 8]));
    assert_eq!(tried["stages_ms"]["compute"], 1.0);
    assert_eq!(tried["slo_ms"], 200.0);
    assert!(tried["latency_ms"].as_f64().unwrap() > 0.0);
    let id = agent.workers.keys().next().unwrap().to_string();
    assert_eq!(tried["batch"]["replica"], id);
    assert_eq!(tried["batch"]["rows"], 2);

    // Outputs are JSON even if the request asks for binary data.
    let mut binary = request(1);
    binary["parameters"] = json!({"binary_data_output": true});
    let tried = gateway
        .post("/v1/models/m/try?version=1", &binary)
        .await
        .ok(200);
    assert_eq!(tried["response"]["outputs"][0]["data"], json!(vec![3.0; 4]));

    // It counts like a client's request.
    let listed = gateway.get("/v1/requests").await.ok(200);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let error = gateway
        .post("/v1/models/nobody/try", &request(1))
        .await
        .error(404);
    assert_eq!(error, "there is no model \"nobody\"");
    gateway
        .post("/v1/models/m/try?version=9", &request(1))
        .await
        .error(404);
    gateway
        .post("/v1/models/m/try", &json!({}))
        .await
        .error(400);
}

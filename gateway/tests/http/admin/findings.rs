//! `/v1/findings` and `/v1/incidents`, from what a gateway observes.

use std::{sync::Arc, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    agent::Agent,
    gateway::{Gateway, digest_of, registration},
    poll,
    worker::double,
};

/// The time of a batch: longer than the model's SLO.
const TOO_LONG: Duration = Duration::from_millis(350);

/// Sends so many requests at once, and returns the numbers of those that were and were not answered.
async fn send(gateway: &Gateway, count: usize) -> (usize, usize) {
    let body = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let body = Arc::new(body.to_string().into_bytes());
    let address = gateway.app.inference_address();
    let requests = (0..count).map(|_| {
        let body = body.to_vec();
        gateway.send(address, Method::POST, "/v2/models/m/infer", None, body)
    });
    let answers = futures_util::future::join_all(requests).await;
    let answered = answers.iter().filter(|answer| answer.status == 200).count();
    (answered, count - answered)
}

fn unix_ms() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

#[tokio::test]
async fn an_overload_is_a_finding_with_a_cure_that_can_be_tried_and_an_incident() {
    let gateway = Gateway::with_flags(&["--lease-ms=60000"]).await;
    let mut agent = Agent::new("n");
    let digest = gateway.upload(b"the file of m").await;
    assert_eq!(digest, digest_of(b"the file of m"));
    let mut registered = registration("m", digest);
    (registered["rate_rps"], registered["slo_ms"]) = (json!(10.0), json!(300.0));
    gateway.post("/v1/models", &registered).await.ok(201);
    agent.work_until_ready(&gateway, "m").await;
    let begin = unix_ms();
    assert_eq!(gateway.get("/v1/incidents").await.ok(200), json!([]));

    let worker = Arc::clone(agent.workers.values().next().unwrap());
    tokio::spawn(async move {
        loop {
            let batch = worker.batch().await;
            tokio::time::sleep(TOO_LONG).await;
            batch.answer(double(&batch)).await;
        }
    });
    let found = poll("the finding", async || {
        let (answered, missed) = send(&gateway, 100).await;
        assert!(answered < missed, "{answered}");
        let findings = gateway.get("/v1/findings").await.ok(200);
        let mut all = findings.as_array().unwrap().iter();
        let found = all.find(|one| one["problem"] == "slo_missed").cloned();
        found.ok_or(findings)
    })
    .await;
    assert_eq!(found["subject"], json!({"model": "m:1"}));
    assert_eq!(
        (&found["severity"], &found["root"]),
        (&json!("critical"), &Value::Null)
    );
    let since = found["since_ms"].as_u64().unwrap();
    assert!(since + 6000 >= begin && since <= unix_ms(), "{found}");
    let text = found["text"].as_str().unwrap();
    assert!(
        text.ends_with(" requests of model m:1 missed their SLO in the last minute (100 %)"),
        "{text}"
    );
    let cause = found["cause"].as_str().unwrap();
    assert!(cause.contains(" requests/s come, and "), "{cause}");
    for evidence in found["evidence"].as_array().unwrap() {
        if let Some(route) = evidence["route"].as_str() {
            gateway.get(route).await.ok(200);
        }
    }
    // The plan for the measured rate, or one in which the model is served.
    let preview = &found["cure"]["preview"];
    let plan = gateway.post("/v1/plans/preview", preview).await.ok(200);
    let explanation = &plan["plan"]["models"][0]["explanation"];
    let is_served = explanation["bound"]["by"] == "rate";
    assert!(is_served || explanation["remedies"] != json!([]), "{plan}");

    let incidents = gateway.get("/v1/incidents").await.ok(200);
    assert_eq!(
        (&incidents[0]["id"], &incidents[0]["end_ms"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(incidents[0]["root"], json!({"model": "m:1"}));
    let missed = incidents[0]["missed_requests"].as_u64().unwrap();
    let by_model = json!([{"model": "m:1", "requests": missed}]);
    assert!(missed > 0, "{incidents}");
    assert_eq!(incidents[0]["missed_by_model"], by_model);
    let of_it = incidents[0]["findings"].as_array().unwrap();
    assert!(
        of_it
            .iter()
            .any(|one| one["finding"]["problem"] == "slo_missed")
    );
    for (query, count) in [
        ("model=m".to_owned(), 1),
        ("model=other".to_owned(), 0),
        (format!("until={}", begin - 60_000), 0),
        (format!("since={begin}"), 1),
    ] {
        let path = format!("/v1/incidents?{query}");
        let listed = gateway.get(&path).await.ok(200);
        assert_eq!(listed.as_array().unwrap().len(), count, "{query}");
    }
}

#[tokio::test]
async fn a_model_that_the_plan_does_not_serve_has_cures_that_were_tried() {
    let gateway = Gateway::with_flags(&["--lease-ms=60000"]).await;
    let mut agent = Agent::new("n");
    let digest = gateway.upload(b"the file of m").await;
    let mut registered = registration("m", digest);
    registered["rate_rps"] = json!(10.0);
    gateway.post("/v1/models", &registered).await.ok(201);
    agent.work_until_ready(&gateway, "m").await;
    let rate = json!({"rate_rps": 4000.0});
    gateway.patch("/v1/models/m", &rate).await.ok(200);
    let found = poll("a verified cure", async || {
        let findings = gateway.get("/v1/findings").await.ok(200);
        let mut all = findings.as_array().unwrap().iter();
        let found = all.find(|one| one["problem"] == "model_short").cloned();
        let has_preview = |one: &Value| one["cure"]["preview"] != Value::Null;
        found.filter(has_preview).ok_or(findings)
    })
    .await;
    let text = found["cure"]["text"].as_str().unwrap();
    assert!(text.starts_with("any of these would suffice: "), "{text}");
    assert!(text.contains(" more "), "{text}");
    let preview = &found["cure"]["preview"];
    let plan = gateway.post("/v1/plans/preview", preview).await.ok(200);
    let model = &plan["plan"]["models"][0];
    let (rate, goodput) = (&model["rate_rps"], &model["predicted_goodput_rps"]);
    let served = goodput.as_f64().unwrap() / rate.as_f64().unwrap();
    assert!(served > 0.97, "{model}");
    assert_eq!(model["explanation"]["bound"]["by"], "rate", "{model}");
    let incidents = gateway.get("/v1/incidents").await.ok(200);
    assert_eq!(
        incidents[0]["findings"][0]["finding"]["cure"],
        found["cure"]
    );
}

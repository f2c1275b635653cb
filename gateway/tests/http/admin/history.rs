//! `/v1/history`.

use std::{fs, time::Duration};

use packhorse_history::{Block, MINUTE_MS, Mark, MarkKind, ModelSample, Sample, Series, segment};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    gateway::{Gateway, digest_of, registration},
    poll,
};

const HOUR_MS: u64 = 3_600_000;

/// Sends a request that no replica answers.
async fn refused(gateway: &Gateway) {
    let body = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let address = gateway.app.inference_address();
    let path = "/v2/models/m/infer";
    let sent = gateway.send(address, Method::POST, path, None, body.to_string().into());
    sent.await.error(503);
}

fn sum(history: &Value, field: &str) -> u64 {
    let points = history["requests"].as_array().unwrap().iter();
    points.map(|point| point[field].as_u64().unwrap()).sum()
}

/// Returns a file with the minutes of the hour that began then, in each of which 600 requests were answered after 20 ms.
fn hour_of_minutes(begin_ms: u64) -> Vec<u8> {
    let mut file = segment::head(60_000).to_vec();
    for number in 0..60 {
        let mut sample = ModelSample {
            offered: 600,
            in_time: 600,
            ..ModelSample::default()
        };
        sample.latencies.add(Duration::from_millis(20), 600);
        let at_ms = begin_ms + number * MINUTE_MS;
        let block = Block {
            begin_ms: at_ms,
            covered_ms: MINUTE_MS,
            generation: 3,
            samples: [(Series::Model("m:1".parse().unwrap()), Sample::Model(sample))].into(),
            marks: vec![Mark::new(at_ms, MarkKind::Plan, None, "a plan")],
        };
        file.extend(segment::frame(&block).unwrap());
    }
    file
}

#[tokio::test]
async fn what_happened_before_a_restart_is_there_after_it_and_the_time_between_is_a_gap() {
    let gateway = Gateway::start().await;
    gateway.upload(b"the file of m").await;
    let model = registration("m", digest_of(b"the file of m"));
    gateway.post("/v1/models", &model).await.ok(201);
    for _ in 0..3 {
        refused(&gateway).await;
    }
    let history = async |gateway: &Gateway, query: &str| {
        let path = format!("/v1/history?{query}");
        gateway.get(&path).await
    };
    poll("a block with the requests", async || {
        let answer = history(&gateway, "model=m&step_s=10").await;
        let seen = (answer.status == 200).then(|| sum(&answer.ok(200), "refused"));
        if seen == Some(3) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await;
    let all = history(&gateway, "").await.ok(200);
    assert_eq!((sum(&all, "offered"), sum(&all, "missed")), (3, 3));
    let marks = all["marks"].as_array().unwrap();
    let registered = marks.iter().find(|mark| mark["kind"] == "version").unwrap();
    assert_eq!(registered["model"], "m:1");

    // As another gateway has left it, three hours ago, with a torn end.
    let now = all["to_ms"].as_u64().unwrap();
    let begin = (now - 3 * HOUR_MS) / MINUTE_MS * MINUTE_MS;
    let folder = gateway.folder.path().join("state/history");
    let mut file = hour_of_minutes(begin);
    file.truncate(file.len() - 1);
    fs::write(folder.join(format!("minutes-{begin}")), file).unwrap();

    let gateway = gateway.restarted().await;
    let recent = history(&gateway, "model=m&step_s=10").await.ok(200);
    assert_eq!(sum(&recent, "refused"), 3);
    let day = history(&gateway, "model=m&version=1&from_ms=-14400000&step_s=60");
    let day = day.await.ok(200);
    let points = day["requests"].as_array().unwrap();
    let (old, new) = points.split_at(59);
    for (point, number) in old.iter().zip(0..) {
        assert_eq!(point["at_ms"], begin + number * MINUTE_MS);
        assert_eq!(
            (&point["in_time"], &point["plan"]),
            (&json!(600), &json!(3))
        );
        let p99 = point["p99_ms"].as_f64().unwrap();
        assert!((p99 / 20.0 - 1.0).abs() < 0.13, "{p99}");
    }
    let first = new[0]["at_ms"].as_u64().unwrap();
    assert!(first > now - HOUR_MS, "nothing in between: {}", new[0]);
    assert_eq!(day["known_from_ms"], begin);
    let plans = day["marks"].as_array().unwrap().iter();
    assert_eq!(plans.filter(|mark| mark["text"] == "a plan").count(), 59);
    let chosen = history(&gateway, "from_ms=-21600000").await.ok(200);
    assert_eq!(chosen["step_s"], 60);
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_refused_with_its_name() {
    let gateway = Gateway::start().await;
    for (query, message) in [
        ("step_s=15", "step_s: expected a multiple of 10"),
        ("step_s=0", "step_s: expected a multiple of 10"),
        ("step_s=10&from_ms=-7200000", "step_s: expected at least 60"),
        ("step_s=60&from_ms=1", "step_s: expected at most 2000 steps"),
        (
            "from_ms=20&to_ms=10",
            "from_ms: expected a time before to_ms",
        ),
        (
            "model=m&device=n/cpu0",
            "device: expected only without model",
        ),
        ("version=1", "version: expected only together with model"),
        ("model=/", "model"),
        ("since=1", "there is no parameter `since`"),
    ] {
        let error = gateway
            .get(&format!("/v1/history?{query}"))
            .await
            .error(400);
        assert!(error.contains(message), "{query}: {error}");
    }
    for query in ["model=nobody", "device=n/cpu0"] {
        gateway
            .get(&format!("/v1/history?{query}"))
            .await
            .error(404);
    }
}

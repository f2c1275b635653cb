//! Families: requests that any of several models may answer.

use std::sync::Arc;

use packhorse_cluster::{ModelSpec, Percent, VariantOf};
use serde_json::{Value, json};

use crate::support::{
    answer::Answer,
    inference_gateway::{InferenceGateway, double_model, double_request, numbers},
    until,
    worker::{Worker, double},
};

/// Returns a variant of the family `twice` that takes one waiting request.
fn variant(model: &str, accuracy: f64) -> ModelSpec {
    let mut spec = double_model();
    spec.program.model = model.parse().unwrap();
    spec.queue_limit = Some(1);
    spec.variant = Some(VariantOf {
        family: "twice".parse().unwrap(),
        accuracy: Percent::new(accuracy).unwrap(),
    });
    spec
}

/// Starts a gateway with a family, whose workers are the accurate and the cheap one's.
async fn with_family() -> (InferenceGateway, Arc<Worker>, Arc<Worker>) {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(variant("cheap:1", 70.0));
    gateway.add_model(variant("good:3", 90.0));
    let good = gateway.add_worker("good:3", 0).await;
    let cheap = gateway.add_worker("cheap:1", 1).await;
    (gateway, good, cheap)
}

const INFER: &str = "/v2/models/twice/infer";

async fn ask(gateway: &InferenceGateway, path: &str) -> Answer {
    gateway.post(path, double_request(1, 2.0).to_string()).await
}

/// Returns who answered a request for the family.
fn answered_by(answer: &Answer) -> String {
    let body = answer.ok(200);
    assert_eq!(body["model_name"], "twice");
    assert_eq!(numbers(answer), [4.0, 4.0]);
    let header = answer.headers["x-packhorse-model"].to_str().unwrap();
    let named = [&body["parameters"]["variant"], &body["model_version"]];
    let named = named.map(|text| text.as_str().unwrap()).join(":");
    assert_eq!(header, named);
    named
}

/// The value of a counter of a model.
fn counter(gateway: &InferenceGateway, metric: &str) -> Option<f64> {
    let metrics = gateway.metrics();
    let mut lines = metrics.lines();
    lines.find_map(|line| line.strip_prefix(metric)?.trim().parse().ok())
}

#[tokio::test]
async fn without_load_the_most_accurate_variant_answers_for_its_family() {
    let (gateway, good, cheap) = with_family().await;
    good.answer_all(double);
    cheap.answer_all(double);
    for _ in 0..20 {
        assert_eq!(answered_by(&ask(&gateway, INFER).await), "good:3");
    }
    // A variant has its own name, too, and answers then as any model.
    let alone = ask(&gateway, "/v2/models/cheap/infer").await;
    let body = alone.ok(200);
    assert_eq!(body["model_name"], "cheap");
    assert_eq!(body.get("parameters"), None);
    assert!(!alone.headers.contains_key("x-packhorse-model"));
    let goodput = gateway
        .data_plane
        .goodput(std::time::Duration::from_secs(10));
    let families = packhorse_api::FamilyGoodput::of(&goodput);
    let accuracy = families[0].accuracy_pct.unwrap();
    assert!((accuracy - (20.0 * 90.0 + 70.0) / 21.0).abs() < 1e-6);
}

#[tokio::test]
async fn what_the_accurate_variant_cannot_answer_goes_to_the_cheap_one_and_counts_there() {
    let (gateway, good, cheap) = with_family().await;
    cheap.answer_all(double);
    // Two are computed, one of which is for the accurate variant alone, and one waits.
    let alone = gateway.begin("/v2/models/good/infer", &double_request(1, 2.0));
    let mut batches = vec![good.batch().await];
    let mut busy = vec![gateway.begin(INFER, &double_request(1, 2.0))];
    batches.push(good.batch().await);
    busy.push(gateway.begin(INFER, &double_request(1, 2.0)));
    let waits = "nv_inference_pending_request_count{model=\"good\",version=\"3\"} 1\n";
    until("it waits", || gateway.metrics().contains(waits)).await;
    let mut answers = Vec::new();
    while answers.len() < 5 {
        answers.push(answered_by(&ask(&gateway, INFER).await));
    }
    assert!(answers.iter().all(|by| by == "cheap:1"), "{answers:?}");
    // A request for the accurate variant alone is refused.
    let refused = ask(&gateway, "/v2/models/good/infer").await;
    assert!(refused.error(503).contains("queue"), "{}", refused.text());
    for batch in &batches {
        batch.answer(double(batch)).await;
    }
    good.answer_all(double);
    alone.await.unwrap().ok(200);
    for request in busy {
        assert_eq!(answered_by(&request.await.unwrap()), "good:3");
    }
    let of = |metric: &str, labels: &str| counter(&gateway, &format!("{metric}{{{labels}}}"));
    let success = "nv_inference_request_success";
    let (good, cheap) = (
        "model=\"good\",version=\"3\"",
        "model=\"cheap\",version=\"1\"",
    );
    assert_eq!(
        (of(success, good), of(success, cheap)),
        (Some(3.0), Some(5.0))
    );
    let accurate = "packhorse_accurate_answers_total";
    let of_family = |labels: &str| of(accurate, &format!("{labels},family=\"twice\"")).unwrap();
    assert!((of_family(good) - 3.0 * 0.9).abs() < 1e-9);
    assert!((of_family(cheap) - 5.0 * 0.7).abs() < 1e-9);
    let stats = gateway.get("/v2/models/twice/stats").await.ok(200);
    let stats = &stats["model_stats"][0];
    assert_eq!(
        (&stats["name"], &stats["version"]),
        (&json!("twice"), &json!("1"))
    );
    assert_eq!(stats["inference_stats"]["success"]["count"], 8);
}

#[tokio::test]
async fn a_family_is_ready_with_any_variant_and_answers_like_a_model_about_itself() {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(variant("good:1", 90.0));
    gateway.add_model(variant("cheap:1", 70.0));
    gateway.wait_for_model("cheap:1").await;
    let unready = gateway.get("/v2/models/twice/ready").await.error(503);
    assert!(unready.contains("no replica of any variant"), "{unready}");
    assert!(ask(&gateway, INFER).await.error(503).contains("no replica"));
    let cheap = gateway.add_worker("cheap:1", 1).await;
    cheap.answer_all(double);
    gateway.get("/v2/models/twice/ready").await.ok(200);
    assert_eq!(answered_by(&ask(&gateway, INFER).await), "cheap:1");
    let metadata = gateway.get("/v2/models/twice").await.ok(200);
    let of_variant = gateway.get("/v2/models/good").await.ok(200);
    assert_eq!(metadata["name"], "twice");
    assert_eq!(metadata.get("versions"), None);
    assert_eq!(metadata["inputs"], of_variant["inputs"]);
    let config = gateway.get("/v2/models/twice/config").await.ok(200);
    assert_eq!(
        (&config["name"], &config["max_batch_size"]),
        (&json!("twice"), &json!(8))
    );
    let version = ask(&gateway, "/v2/models/twice/versions/1/infer").await;
    assert_eq!(
        version.error(404),
        "\"twice\" is a family, which has no versions: name none, or one of its variants"
    );
    let index = gateway.post("/v2/repository/index", "").await.ok(200);
    let entry = |name: &str| -> Option<Value> {
        let mut entries = index.as_array().unwrap().iter();
        entries.find(|entry| entry["name"] == name).cloned()
    };
    let family = entry("twice").unwrap();
    assert_eq!(
        (&family["state"], family.get("version")),
        (&json!("READY"), None)
    );
    assert_eq!(entry("good").unwrap()["state"], "UNAVAILABLE");
    // The family ends with its last variant.
    for model in ["good:1", "cheap:1"] {
        gateway.target.models.remove(&model.parse().unwrap());
    }
    gateway.target.replicas.clear();
    gateway.apply();
    gateway.settled().await;
    let gone = gateway.get("/v2/models/twice").await;
    assert_eq!(gone.error(404), "there is no model \"twice\"");
}

#[tokio::test]
async fn a_changed_accuracy_changes_who_is_asked_first() {
    let (mut gateway, good, cheap) = with_family().await;
    good.answer_all(double);
    cheap.answer_all(double);
    assert_eq!(answered_by(&ask(&gateway, INFER).await), "good:3");
    gateway.add_model(variant("cheap:1", 95.0));
    gateway.settled().await;
    assert_eq!(answered_by(&ask(&gateway, INFER).await), "cheap:1");
}

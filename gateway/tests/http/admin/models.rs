//! `/v1/models`.

use serde_json::{Value, json};

use crate::support::{
    answer::Answer,
    client,
    gateway::{Gateway, digest_of, registration},
};

/// Registers a model with one field changed, or left out, and gives the refusal.
async fn refusal(gateway: &Gateway, field: &str, value: Option<Value>) -> String {
    let digest = gateway.upload(b"a file").await;
    let mut body = registration("m", digest);
    let fields = body.as_object_mut().unwrap();
    match value {
        Some(value) => fields.insert(field.to_owned(), value),
        None => fields.remove(field),
    };
    gateway.post("/v1/models", &body).await.error(400)
}

#[tokio::test]
async fn a_registration_out_of_its_limits_is_refused_and_the_field_named() {
    let gateway = Gateway::start().await;
    let tensor = |shape: Value| json!([{"name": "x", "datatype": "FP32", "shape": shape}]);
    let cases = [
        ("name", Some(json!("a/b")), "name: model name \"a/b\""),
        ("name", Some(json!("../x")), "name: "),
        ("name", Some(json!("x".repeat(129))), "name: "),
        ("name", None, "`name`"),
        ("version", Some(json!(0)), "version: "),
        ("version", Some(json!(1_u64 << 40)), "version: "),
        ("slo_ms", Some(json!(0)), "slo_ms: "),
        ("slo_ms", Some(json!(-1)), "slo_ms: "),
        (
            "slo_ms",
            Some(json!(60_001)),
            "slo_ms: expected above 0 and at most 60000 ms",
        ),
        ("slo_ms", Some(json!(1e308)), "slo_ms: "),
        ("rate_rps", Some(json!(-1)), "rate_rps: "),
        (
            "queue_limit",
            Some(json!(0)),
            "queue_limit: 0 is not between 1 and 1000000 requests",
        ),
        ("queue_limit", Some(json!(1_000_001)), "queue_limit: "),
        ("queue_limit", Some(json!(-1)), "queue_limit: "),
        ("queue_limit", Some(json!(1.5)), "queue_limit: "),
        (
            "max_cold_wait_ms",
            Some(json!(60_001)),
            "max_cold_wait_ms: expected at most 60000 ms",
        ),
        ("max_cold_wait_ms", Some(json!(-1)), "max_cold_wait_ms: "),
        (
            "max_batch_size",
            Some(json!(4097)),
            "max_batch_size: 4097 is over the limit of 4096",
        ),
        ("max_batch_size", Some(json!(-1)), "max_batch_size: "),
        ("inputs", Some(json!([])), "inputs: "),
        ("inputs", None, "`inputs`"),
        ("outputs", Some(json!([])), "outputs: "),
        ("inputs", Some(tensor(json!([1, 4]))), "inputs[0].shape: "),
        ("inputs", Some(tensor(json!([-1, -2]))), "inputs[0].shape"),
        (
            "inputs",
            Some(tensor(json!([-1, 1_u64 << 40, 1_u64 << 40]))),
            "inputs[0].shape: ",
        ),
        (
            "inputs",
            Some(json!([{"name": "x", "datatype": "FP31", "shape": [-1]}])),
            "inputs[0].datatype: ",
        ),
        (
            "artifact",
            Some(json!("sha256:0")),
            "artifact: artifact digest",
        ),
        ("name", Some(json!("stats")), "name: \"stats\" is reserved"),
        ("artifact", None, "artifact: give exactly one"),
        (
            "artifact_path",
            Some(json!("x.pt")),
            "artifact: give exactly one",
        ),
        ("slo", Some(json!(5)), "`slo`"),
    ];
    for (field, value, words) in cases {
        let message = refusal(&gateway, field, value.clone()).await;
        assert!(message.contains(words), "{field} = {value:?}: {message}");
    }
    assert_eq!(gateway.get("/v1/models").await.ok(200), json!([]));
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused() {
    let gateway = Gateway::start().await;
    for body in [
        "",
        "{",
        "[]",
        "\u{1}",
        "{\"name\": NaN}",
        &"[".repeat(100_000),
    ] {
        let answer = gateway.admin(reqwest::Method::POST, "/v1/models", body);
        answer.await.error(400);
    }
    let answer = gateway.admin(reqwest::Method::POST, "/v1/models", vec![b' '; 2 << 20]);
    assert_eq!(
        answer.await.error(413),
        "the request body is larger than the limit of 1048576 bytes"
    );
}

#[tokio::test]
async fn an_artifact_must_be_there_first() {
    let gateway = Gateway::start().await;
    let digest = digest_of(b"never uploaded");
    let answer = gateway.post("/v1/models", &registration("m", digest)).await;
    let message = answer.error(400);
    assert!(message.contains(&digest.to_string()), "{message}");
}

#[tokio::test]
async fn a_model_is_registered_read_changed_and_removed() {
    let gateway = Gateway::start().await;
    let digest = gateway.upload(b"the file of m").await;
    let answer = gateway.post("/v1/models", &registration("m", digest)).await;
    assert_eq!(answer.headers["location"], "/v1/models/m?version=1");
    let view = answer.ok(201);
    assert_eq!((&view["name"], &view["version"]), (&json!("m"), &json!(1)));
    assert_eq!(view["artifact_bytes"], 13);
    assert_eq!(view["state"], "registered");
    assert_eq!(view["reason"], "waiting for a node that accepts replicas");
    gateway
        .get(answer.headers["location"].to_str().unwrap())
        .await
        .ok(200);
    let again = gateway.post("/v1/models", &registration("m", digest)).await;
    assert!(again.error(409).contains("m:1"));

    let change = json!({"slo_ms": 150, "rate_rps": 80});
    let view = gateway.patch("/v1/models/m", &change).await.ok(200);
    assert_eq!(
        (view["slo_ms"].as_f64(), view["rate_rps"].as_f64()),
        (Some(150.0), Some(80.0))
    );
    // Nothing has arrived, so that the declared rate is all that is known of the measured one.
    let measured = &view["measured"];
    let rate = |field: &str| measured[field].as_f64().unwrap();
    assert!((rate("rate_rps") - 80.0).abs() < 1e-6, "{measured}");
    assert!(rate("low_rps") < 80.0 && rate("high_rps") > 80.0);
    assert!(rate("planned_rps") >= 80.0, "{measured}");
    assert!(view["predicted"].is_null(), "{view}");
    for bad in [
        json!({"slo_ms": 0}),
        json!({"rate_rps": -1}),
        json!({"name": "x"}),
        json!({"slo_ms": "1"}),
    ] {
        gateway.patch("/v1/models/m", &bad).await.error(400);
    }
    assert_eq!(
        gateway
            .get("/v1/models")
            .await
            .ok(200)
            .as_array()
            .unwrap()
            .len(),
        1
    );

    assert_eq!(gateway.delete("/v1/models/m").await.status, 200);
    gateway.get("/v1/models/m").await.error(404);
    gateway.delete("/v1/models/m").await.error(404);
    gateway.patch("/v1/models/m", &change).await.error(404);
    // The name is free again.
    gateway
        .post("/v1/models", &registration("m", digest))
        .await
        .ok(201);
}

#[tokio::test]
async fn a_version_is_replaced_as_a_whole_or_stays_as_it_was() {
    const REPLACE: &str = "/v1/models?replace=true";
    let gateway = Gateway::start().await;
    let first = gateway.upload(b"the first file").await;
    let second = gateway.upload(b"the second file").await;
    // There is none yet.
    gateway
        .post(REPLACE, &registration("m", first))
        .await
        .ok(201);
    let split = json!({"split": {"1": 100}});
    gateway.patch("/v1/models/m", &split).await.ok(200);

    let mut wrong = registration("m", second);
    wrong["queue_limit"] = json!(0);
    let message = gateway.post(REPLACE, &wrong).await.error(400);
    assert!(message.contains("queue_limit"), "{message}");
    let missing = registration("m", digest_of(b"never uploaded"));
    gateway.post(REPLACE, &missing).await.error(400);
    let view = gateway.get("/v1/models/m").await.ok(200);
    assert_eq!(view["artifact"], first.to_string());

    let mut right = registration("m", second);
    right["slo_ms"] = json!(77);
    let view = gateway.post(REPLACE, &right).await.ok(201);
    assert_eq!(view["artifact"], second.to_string());
    let gateway = gateway.restarted().await;
    let view = gateway.get("/v1/models/m").await.ok(200);
    assert_eq!(view["artifact"], second.to_string());
    assert_eq!(view["slo_ms"], 77.0);
    assert_eq!(view["split"], json!({"1": 100}));
    let audit = gateway.get("/v1/audit").await.ok(200);
    assert_eq!(audit[0]["action"], "model.replace");
}

#[tokio::test]
async fn variants_of_a_family_are_registered_changed_and_there_after_a_restart() {
    let gateway = Gateway::start().await;
    let digest = gateway.upload(b"a file").await;
    let variant = |name: &str, accuracy: f64| {
        let mut body = registration(name, digest);
        body["family"] = json!("f");
        body["accuracy"] = json!(accuracy);
        body
    };
    let view = gateway.post("/v1/models", &variant("good", 84.5)).await;
    let view = view.ok(201);
    assert_eq!(
        (&view["family"], &view["accuracy"]),
        (&json!("f"), &json!(84.5))
    );
    let refusals = [
        (
            "family",
            json!(null),
            400,
            "accuracy: only a model of a family",
        ),
        ("accuracy", json!(null), 400, "accuracy: required"),
        (
            "accuracy",
            json!(100.5),
            400,
            "accuracy: a percentage must be",
        ),
        (
            "family",
            json!("stats"),
            400,
            "family: \"stats\" is reserved",
        ),
        (
            "family",
            json!("good"),
            409,
            "family: good is the name of a model",
        ),
        ("name", json!("f"), 409, "name: f is the name of a family"),
        (
            "slo_ms",
            json!(201),
            409,
            "slo_ms: expected the same as of good:1",
        ),
    ];
    for (field, value, status, words) in refusals {
        let mut body = variant("cheap", 70.0);
        body[field] = value;
        let message = gateway.post("/v1/models", &body).await.error(status);
        assert!(message.starts_with(words), "{field}: {message}");
    }
    gateway
        .post("/v1/models", &variant("cheap", 70.0))
        .await
        .ok(201);
    let change = json!({"accuracy": 71.5, "slo_ms": 300});
    let view = gateway.patch("/v1/models/cheap", &change).await.ok(200);
    assert_eq!(view["accuracy"], 71.5);
    let family = json!({"family": null});
    let message = gateway.patch("/v1/models/cheap?version=1", &family).await;
    assert!(
        message
            .error(400)
            .starts_with("family belongs to all versions")
    );
    let log = gateway.get("/v1/audit").await.ok(200);
    let entry = log.to_string();
    assert!(entry.contains(r#""accuracy":71.5"#), "{entry}");
    let gateway = gateway.restarted().await;
    for (model, accuracy) in [("good", 84.5), ("cheap", 71.5)] {
        let view = gateway.get(&format!("/v1/models/{model}")).await.ok(200);
        assert_eq!(view["slo_ms"], 300.0, "the SLO is that of the family");
        assert_eq!(
            (&view["family"], &view["accuracy"]),
            (&json!("f"), &json!(accuracy))
        );
    }
    let view = gateway.patch("/v1/models/cheap", &family).await.ok(200);
    assert_eq!(
        (&view["family"], &view["accuracy"]),
        (&json!(null), &json!(null))
    );
}

#[tokio::test]
async fn a_queue_limit_is_shown_changed_given_up_and_there_after_a_restart() {
    let gateway = Gateway::start().await;
    assert_eq!(gateway.register("m").await["queue_limit"], json!(null));
    let mut limited = registration("n", gateway.upload(b"a file").await);
    limited["queue_limit"] = json!(7);
    let view = gateway.post("/v1/models", &limited).await.ok(201);
    assert_eq!(view["queue_limit"], 7);

    let changes = [
        (json!({"queue_limit": 9}), json!(9)),
        (json!({"slo_ms": 150}), json!(9)),
        (json!({"queue_limit": null}), json!(null)),
        (json!({"queue_limit": 11}), json!(11)),
    ];
    for (change, expected) in changes {
        let view = gateway.patch("/v1/models/m", &change).await.ok(200);
        assert_eq!(view["queue_limit"], expected, "{change}");
    }
    for bad in [0, 1_000_001, -1] {
        let change = json!({"queue_limit": bad});
        let message = gateway.patch("/v1/models/m", &change).await.error(400);
        assert!(message.starts_with("queue_limit: "), "{message}");
    }
    let gateway = gateway.restarted().await;
    for (model, limit) in [("m", 11), ("n", 7)] {
        let view = gateway.get(&format!("/v1/models/{model}")).await.ok(200);
        assert_eq!(view["queue_limit"], limit);
    }
}

#[tokio::test]
async fn a_wait_for_a_load_is_shown_changed_given_up_and_there_after_a_restart() {
    let gateway = Gateway::start().await;
    let view = gateway.register("m").await;
    assert_eq!(view["max_cold_wait_ms"], json!(null));
    let mut patient = registration("n", gateway.upload(b"a file").await);
    patient["max_cold_wait_ms"] = json!(0);
    let view = gateway.post("/v1/models", &patient).await.ok(201);
    assert_eq!(view["max_cold_wait_ms"], 0);

    let changes = [
        (json!({"max_cold_wait_ms": 900}), json!(900)),
        (json!({"slo_ms": 150}), json!(900)),
        (json!({"max_cold_wait_ms": null}), json!(null)),
        (json!({"max_cold_wait_ms": 60_000}), json!(60_000)),
    ];
    for (change, expected) in changes {
        let view = gateway.patch("/v1/models/m", &change).await.ok(200);
        assert_eq!(view["max_cold_wait_ms"], expected, "{change}");
    }
    for bad in [60_001, -1] {
        let change = json!({"max_cold_wait_ms": bad});
        let message = gateway.patch("/v1/models/m", &change).await.error(400);
        assert!(message.starts_with("max_cold_wait_ms: "), "{message}");
    }
    let gateway = gateway.restarted().await;
    for (model, wait) in [("m", 60_000), ("n", 0)] {
        let view = gateway.get(&format!("/v1/models/{model}")).await.ok(200);
        assert_eq!(view["max_cold_wait_ms"], wait);
    }
}

#[tokio::test]
async fn a_cache_is_off_until_it_is_switched_on_and_there_after_a_restart() {
    let gateway = Gateway::start().await;
    assert_eq!(gateway.register("m").await["cache"], false);
    let mut cached = registration("n", gateway.upload(b"a file").await);
    cached["cache"] = json!(true);
    let view = gateway.post("/v1/models", &cached).await.ok(201);
    assert_eq!(view["cache"], true);
    for (change, expected) in [
        (json!({"cache": true}), true),
        (json!({"slo_ms": 150}), true),
        (json!({"cache": false}), false),
        (json!({"cache": true}), true),
    ] {
        let view = gateway.patch("/v1/models/m", &change).await.ok(200);
        assert_eq!(view["cache"], expected, "{change}");
    }
    let wrong = gateway.patch("/v1/models/m", &json!({"cache": "on"})).await;
    assert!(wrong.error(400).starts_with("cache: "), "{}", wrong.text());
    let gateway = gateway.restarted().await;
    for model in ["m", "n"] {
        let view = gateway.get(&format!("/v1/models/{model}")).await.ok(200);
        assert_eq!(view["cache"], true);
    }
}

#[tokio::test]
async fn a_rate_mode_is_max_until_it_is_changed_and_there_after_a_restart() {
    let gateway = Gateway::start().await;
    assert_eq!(gateway.register("m").await["rate"], "max");
    let mut declared = registration("n", gateway.upload(b"a file").await);
    declared["rate"] = json!("declared");
    let view = gateway.post("/v1/models", &declared).await.ok(201);
    assert_eq!(view["rate"], "declared");

    for (change, expected) in [
        (json!({"rate": "measured"}), "measured"),
        (json!({"rate_rps": 7}), "measured"),
        (json!({"rate": "min"}), "min"),
    ] {
        let view = gateway.patch("/v1/models/m", &change).await.ok(200);
        assert_eq!(view["rate"], expected, "{change}");
    }
    for bad in [json!("Max"), json!(1)] {
        let change = json!({"rate": bad});
        let message = gateway.patch("/v1/models/m", &change).await.error(400);
        assert!(message.starts_with("rate: "), "{message}");
    }
    let gateway = gateway.restarted().await;
    for (model, mode) in [("m", "min"), ("n", "declared")] {
        let view = gateway.get(&format!("/v1/models/{model}")).await.ok(200);
        assert_eq!(view["rate"], mode);
    }
    // A further version that says nothing has the mode of the newest one.
    let mut second = registration("m", gateway.upload(b"a file").await);
    second["version"] = json!(2);
    let view = gateway.post("/v1/models", &second).await.ok(201);
    assert_eq!(view["rate"], "min");
}

#[tokio::test]
async fn a_model_without_a_reservation_is_planned_for_what_is_measured() {
    let gateway = Gateway::start().await;
    let mut new = registration("m", gateway.upload(b"a file").await);
    new["rate_rps"].take();
    let view = gateway.post("/v1/models", &new).await.ok(201);
    assert_eq!(view["rate_rps"], Value::Null);
    // Nothing has arrived yet.
    assert_eq!(view["measured"]["planned_rps"], 1.0);

    // A reservation comes, survives a restart, and is that of later versions, until it goes.
    let change = json!({"rate_rps": 25});
    let view = gateway.patch("/v1/models/m", &change).await.ok(200);
    assert_eq!(view["rate_rps"], 25.0);
    assert_eq!(view["measured"]["planned_rps"], 25.0);
    let gateway = gateway.restarted().await;
    new.as_object_mut().unwrap().remove("rate_rps");
    new["version"] = json!(2);
    let view = gateway.post("/v1/models", &new).await.ok(201);
    assert_eq!(view["rate_rps"], 25.0);
    let slower = json!({"slo_ms": 300});
    let view = gateway.patch("/v1/models/m", &slower).await.ok(200);
    assert_eq!(view["rate_rps"], 25.0);
    let none = json!({"rate_rps": null});
    let view = gateway.patch("/v1/models/m", &none).await.ok(200);
    assert_eq!(view["rate_rps"], Value::Null);
    assert_eq!(view["measured"]["planned_rps"], 1.0);
    let gateway = gateway.restarted().await;
    let view = gateway.get("/v1/models/m").await.ok(200);
    assert_eq!(view["rate_rps"], Value::Null);

    // A registration in the place of another is taken as it is.
    gateway.patch("/v1/models/m", &change).await.ok(200);
    let replaced = gateway.post("/v1/models?replace=true", &new).await;
    assert_eq!(replaced.ok(201)["rate_rps"], Value::Null);
}

/// A field of a model's name with a number between two limits, and the values that a test gives it.
struct NumberOfAllVersions {
    field: &'static str,
    default: u32,
    registered: u32,
    changed: u32,
    bad: [Value; 4],
    /// A number outside of the limits, and what the error says of it.
    outside: (u32, &'static str),
}

impl NumberOfAllVersions {
    async fn check(self) {
        let Self { field, bad, .. } = self;
        let body = |value: &Value| {
            Value::Object([(field.to_owned(), value.clone())].into_iter().collect())
        };
        let gateway = Gateway::start().await;
        assert_eq!(gateway.register("m").await[field], self.default);
        let mut first = registration("n", gateway.upload(b"a file").await);
        first[field] = json!(self.registered);
        let view = gateway.post("/v1/models", &first).await.ok(201);
        assert_eq!(view[field], self.registered);
        for bad in bad {
            let message = gateway.patch("/v1/models/m", &body(&bad)).await.error(400);
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
            first[field] = bad;
            let message = gateway.post("/v1/models", &first).await.error(400);
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
        let (outside, limits) = self.outside;
        let message = gateway
            .patch("/v1/models/m", &body(&json!(outside)))
            .await
            .error(400);
        assert!(message.contains(limits), "{message}");
        let change = body(&json!(self.changed));
        let view = gateway.patch("/v1/models/n", &change).await.ok(200);
        assert_eq!(view[field], self.changed);

        // A version of the same model has it, too, also after a restart.
        let gateway = gateway.restarted().await;
        let mut newer = registration("n", gateway.upload(b"a file").await);
        newer["version"] = json!(2);
        let view = gateway.post("/v1/models", &newer).await.ok(201);
        assert_eq!(view[field], self.changed);
        let older = gateway.patch("/v1/models/n?version=1", &change).await;
        assert!(older.error(400).contains("its newest, version 2"));
        let slower = json!({"slo_ms": 300});
        let view = gateway.patch("/v1/models/n", &slower).await.ok(200);
        assert_eq!(view[field], self.changed);
    }
}

#[tokio::test]
async fn a_priority_is_5_until_it_is_changed_and_that_of_all_versions() {
    let priority = NumberOfAllVersions {
        field: "priority",
        default: 5,
        registered: 9,
        changed: 0,
        bad: [json!(10), json!(-1), json!("high"), json!(2.5)],
        outside: (10, "from 0 to 9, got 10"),
    };
    priority.check().await;
}

#[tokio::test]
async fn a_least_number_of_replicas_is_1_until_it_is_changed_and_that_of_all_versions() {
    let min_replicas = NumberOfAllVersions {
        field: "min_replicas",
        default: 1,
        registered: 2,
        changed: 3,
        bad: [json!(0), json!(17), json!("two"), json!(1.5)],
        outside: (0, "from 1 to 16, got 0"),
    };
    min_replicas.check().await;
}

#[tokio::test]
async fn versions_stand_beside_each_other_and_the_newest_is_meant() {
    let gateway = Gateway::start().await;
    let digest = gateway.upload(b"a file").await;
    for version in [1, 10, 2] {
        let mut body = registration("m", digest);
        body["version"] = json!(version);
        gateway.post("/v1/models", &body).await.ok(201);
    }
    gateway.register("m2").await;
    let version = |answer: Value| answer["version"].as_u64();
    assert_eq!(version(gateway.get("/v1/models/m").await.ok(200)), Some(10));
    assert_eq!(
        version(gateway.get("/v1/models/m?version=2").await.ok(200)),
        Some(2)
    );
    gateway.get("/v1/models/m?version=3").await.error(404);
    gateway.get("/v1/models/m?version=x").await.error(400);
    gateway.get("/v1/models/m?newest=1").await.error(400);
    assert_eq!(gateway.delete("/v1/models/m?version=10").await.status, 200);
    assert_eq!(version(gateway.get("/v1/models/m").await.ok(200)), Some(2));
    assert_eq!(gateway.delete("/v1/models/m").await.status, 200);
    gateway.get("/v1/models/m?version=1").await.error(404);
    gateway.get("/v1/models/m2").await.ok(200);
}

#[tokio::test]
async fn files_are_taken_by_path_from_the_configured_roots_only() {
    let gateway = Gateway::with_flags(&["--artifact-root={folder}/root"]).await;
    let root = gateway.folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("m.pt"), "a program").unwrap();
    let outside = gateway.folder.path().join("outside.pt");
    std::fs::write(&outside, "a secret").unwrap();
    std::os::unix::fs::symlink(&outside, root.join("link.pt")).unwrap();

    let by_path = |name: &str, path: &str| {
        let mut body = registration(name, digest_of(b""));
        body.as_object_mut().unwrap().remove("artifact");
        body["artifact_path"] = json!(path);
        body
    };
    let outside = outside.display().to_string();
    for bad in [
        "/etc/passwd",
        "../outside.pt",
        "link.pt",
        "missing.pt",
        "",
        ".",
        &outside,
        "m.pt\0",
    ] {
        let answer = gateway.post("/v1/models", &by_path("m", bad)).await;
        let message = answer.error(400);
        assert!(message.starts_with("artifact_path: "), "{message}");
        assert!(!message.contains(&root.display().to_string()), "{message}");
    }
    let absolute = root.join("m.pt").display().to_string();
    for (name, path) in [("relative", "m.pt"), ("absolute", &*absolute)] {
        let answer = gateway.post("/v1/models", &by_path(name, path)).await;
        let artifact = answer.ok(201)["artifact"].clone();
        assert_eq!(artifact, digest_of(b"a program").to_string());
    }
}

/// Histograms of zeros made 18 KB of each model.
#[tokio::test]
async fn metrics_and_listing_of_models_that_nobody_uses_are_small_and_compressed() {
    const MODELS: usize = 50;
    let gateway = Gateway::start().await;
    let without = gateway.get("/metrics").await.body.len();
    for number in 0..MODELS {
        gateway.register(&format!("model-{number}")).await;
    }
    let each = (gateway.get("/metrics").await.body.len() - without) / MODELS;
    assert!(each < 300, "{each} bytes per model");
    for (path, least) in [("/metrics", 4), ("/v1/models", 4)] {
        let plain = gateway.get(path).await;
        assert_eq!(plain.headers.get("content-encoding"), None);
        let url = format!("http://{}{path}", gateway.app.admin_address());
        let request = client().get(url).header("accept-encoding", "gzip");
        let request = request.bearer_auth(gateway.token("admin-token"));
        let answer = Answer::read(request.send().await.unwrap()).await;
        assert_eq!(answer.headers["content-encoding"], "gzip", "{path}");
        let (compressed, plain) = (answer.body.len(), plain.body.len());
        assert!(
            compressed * least < plain,
            "{path}: {compressed} of {plain}"
        );
    }
}

//! `/v1/models` and `/v1/artifacts`.

use serde_json::{Value, json};
use wiremock::{
    ResponseTemplate,
    matchers::{body_json, body_partial_json, header, query_param, query_param_is_missing},
};

use packhorse_stand_in::{Gateway, admin, model, placed_model};

// printf '%s' torchscript | sha256sum
const DIGEST: &str = "sha256:e60a540d042bda602fbc9f39a90d844fa30cba65169402aac3dc75b6032d609f";

fn spec() -> Value {
    json!({
        "name": "m", "max_batch_size": 16, "slo_ms": 200, "rate_rps": 50,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    })
}

/// A gateway that has no artifacts, takes the one of these tests, and takes registrations that name it.
async fn takes_registrations(gateway: &Gateway) {
    let route = format!("/v1/artifacts/{DIGEST}");
    gateway.answers("HEAD", &route, 404, json!({})).await;
    let stored = ResponseTemplate::new(201).set_body_json(json!({"digest": DIGEST, "bytes": 11}));
    let upload = admin("PUT", &route)
        .and(header("content-length", "11"))
        .and(wiremock::matchers::body_string("torchscript"));
    upload
        .respond_with(stored)
        .expect(1)
        .mount(&gateway.server)
        .await;
    let registered = ResponseTemplate::new(201).set_body_json(model("m", "registered", None));
    let register = admin("POST", "/v1/models")
        .and(body_partial_json(json!({"name": "m", "artifact": DIGEST})));
    register
        .respond_with(registered)
        .expect(1)
        .mount(&gateway.server)
        .await;
}

/// The model's states, one per question; the last for ever.
async fn goes_through(gateway: &Gateway, states: &[Value]) {
    let (last, first) = states.split_last().unwrap();
    for state in first {
        let answer = ResponseTemplate::new(200).set_body_json(state);
        admin("GET", "/v1/models/m")
            .respond_with(answer)
            .up_to_n_times(1)
            .expect(1)
            .mount(&gateway.server)
            .await;
    }
    gateway
        .answers("GET", "/v1/models/m", 200, last.clone())
        .await;
}

fn register(gateway: &Gateway, more: &[&str]) -> packhorse_stand_in::Ran {
    let spec = gateway.file("m.json", spec().to_string());
    let artifact = gateway.file("m.pt", "torchscript");
    gateway.run(&[&["model", "register", &spec, "--artifact", &artifact], more].concat())
}

#[tokio::test]
async fn register_uploads_the_file_and_waits_until_the_model_is_ready() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    takes_registrations(&gateway).await;
    let mut profiling = model("m", "profiling", None);
    profiling["profiling"] = json!([{"device_kind": "cpu-x", "done": 2, "total": 5}]);
    let states = [
        profiling,
        model("m", "unplaced", Some("the plan is being made")),
        placed_model("m", "1-0", "n/cpu0"),
    ];
    goes_through(&gateway, &states).await;

    let ran = register(&gateway, &["--wait", "--json"]);
    assert_eq!(ran.json()["state"], "ready");
    assert_eq!(ran.stderr, "", "progress is for terminals");
    gateway.server.verify().await;
}

#[tokio::test]
async fn register_without_wait_says_what_the_model_waits_for() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    takes_registrations(&gateway).await;
    let ran = register(&gateway, &[]);
    assert!(
        ran.text().starts_with("m version 1: registered\n"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("x FP32 [-1,3]"), "{ran:?}");
}

#[tokio::test]
async fn an_artifact_that_is_there_is_not_sent_again() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let route = format!("/v1/artifacts/{DIGEST}");
    gateway.answers("HEAD", &route, 200, json!({})).await;
    admin("PUT", &route)
        .respond_with(ResponseTemplate::new(500))
        .expect(0)
        .mount(&gateway.server)
        .await;
    gateway
        .answers("POST", "/v1/models", 201, model("m", "registered", None))
        .await;
    assert_eq!(register(&gateway, &[]).code, 0);
    gateway.server.verify().await;
}

#[tokio::test]
async fn flags_win_over_the_specification() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let mut expected = spec();
    expected["slo_ms"] = json!(150.0);
    expected["rate_rps"] = json!(80.0);
    expected["rate"] = json!("measured");
    expected["queue_limit"] = json!(64);
    expected["max_cold_wait_ms"] = json!(900);
    expected["cache"] = json!(true);
    expected["family"] = json!("f");
    expected["accuracy"] = json!(81.5);
    expected["artifact_path"] = json!("/models/m.pt");
    let registration = admin("POST", "/v1/models").and(body_json(&expected));
    let registered = ResponseTemplate::new(201).set_body_json(model("m", "registered", None));
    registration
        .respond_with(registered)
        .expect(1)
        .mount(&gateway.server)
        .await;
    let mut given = spec();
    given["artifact_path"] = json!("/models/m.pt");
    given.as_object_mut().unwrap().remove("slo_ms");
    let spec = gateway.file("m.json", given.to_string());
    let ran = gateway.run(&[
        "model",
        "register",
        &spec,
        "--slo-ms",
        "150",
        "--rate-rps",
        "80",
        "--rate-mode",
        "measured",
        "--queue-limit",
        "64",
        "--max-cold-wait-ms",
        "900",
        "--cache",
        "on",
        "--family",
        "f",
        "--accuracy",
        "81.5",
    ]);
    assert_eq!(ran.code, 0, "{ran:?}");
    gateway.server.verify().await;
}

#[tokio::test]
async fn a_model_that_fails_ends_the_wait_with_its_reason() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    takes_registrations(&gateway).await;
    goes_through(
        &gateway,
        &[
            model("m", "fetching", None),
            model("m", "failed", Some("the file is not TorchScript")),
        ],
    )
    .await;
    assert_eq!(
        register(&gateway, &["--wait"]).error(),
        "error: m cannot be served (state failed): the file is not TorchScript\n"
    );
}

#[tokio::test]
async fn a_model_without_a_place_ends_the_wait_with_its_reason() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    takes_registrations(&gateway).await;
    goes_through(
        &gateway,
        &[model("m", "unplaced", Some("no device has 20 GiB"))],
    )
    .await;
    assert_eq!(
        register(&gateway, &["--wait"]).error(),
        "error: m cannot be served (state unplaced): no device has 20 GiB\n"
    );
}

#[tokio::test]
async fn waiting_has_a_limit_and_tells_where_the_model_stands() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    takes_registrations(&gateway).await;
    goes_through(
        &gateway,
        &[model("m", "planning", Some("no node has joined"))],
    )
    .await;
    let ran = register(&gateway, &["--wait", "--timeout-s", "1"]);
    assert_eq!(
        ran.error(),
        "error: m is not ready after 1 s; its last state: planning: no node has joined\n"
    );
}

#[tokio::test]
async fn a_specification_that_cannot_be_is_refused_before_anything_is_sent() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let artifact = gateway.file("m.pt", "torchscript");
    let with = |field: &str, value: Value| {
        let mut spec = spec();
        spec[field] = value;
        spec.to_string()
    };
    for (content, expected) in [
        ("{".to_owned(), "is not valid JSON"),
        ("[]".to_owned(), "expected a JSON object"),
        (with("name", json!("a/b")), "model name"),
        (with("slo", json!(1)), "unknown field `slo`"),
        (
            with("artifact", json!(format!("sha256:{}", "0".repeat(64)))),
            "but the file of --artifact is",
        ),
        (
            with("artifact_path", json!("/m.pt")),
            "remove it or --artifact",
        ),
    ] {
        let spec = gateway.file("m.json", content);
        let ran = gateway.run(&["model", "register", &spec, "--artifact", &artifact]);
        assert!(ran.error().contains(expected), "{expected}: {ran:?}");
    }
    let missing = gateway.run(&["model", "register", "no.json"]);
    assert!(
        missing.error().starts_with("error: cannot read no.json: "),
        "{missing:?}"
    );
    assert!(gateway.server.received_requests().await.unwrap().is_empty());
}

#[tokio::test]
async fn list_has_a_line_per_model() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let mut second = placed_model("cat", "1-0", "n/cpu0");
    second["version"] = json!(2);
    let models = json!([second, model("m", "unplaced", Some("no room"))]);
    gateway
        .answers("GET", "/v1/models", 200, models.clone())
        .await;
    assert_eq!(gateway.run(&["model", "list", "--json"]).json(), models);
    let expected = "\
MODEL  STATE     REPLICAS  SLO MS  RATE/S  REASON
cat:2  ready     1/1       200     50
m      unplaced  0/0       200     50      no room
";
    assert_eq!(
        words(gateway.run(&["model", "list"]).text()),
        words(expected)
    );
}

fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[tokio::test]
async fn a_reservation_is_removed_and_a_priority_set() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let view = ResponseTemplate::new(200).set_body_json(model("m", "ready", None));
    for (flag, value, change) in [
        ("--rate-rps", "none", json!({"rate_rps": null})),
        ("--priority", "7", json!({"priority": 7})),
    ] {
        admin("PATCH", "/v1/models/m")
            .and(body_json(change))
            .respond_with(view.clone())
            .expect(1)
            .mount(&gateway.server)
            .await;
        assert_eq!(gateway.run(&["model", "update", "m", flag, value]).code, 0);
    }
    for (flag, value, expected) in [
        ("--rate-rps=", "-1", "or `none`"),
        ("--priority=", "10", "from 0 to 9"),
    ] {
        let wrong = gateway.run(&["model", "update", "m", &format!("{flag}{value}")]);
        assert!(wrong.stderr.contains(expected), "{}", wrong.stderr);
    }
}

#[tokio::test]
async fn show_update_and_remove_name_the_version_they_mean() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let view = ResponseTemplate::new(200).set_body_json(placed_model("m", "1-0", "n/cpu0"));
    let newest = admin("GET", "/v1/models/m").and(query_param_is_missing("version"));
    newest
        .respond_with(view.clone())
        .expect(1)
        .mount(&gateway.server)
        .await;
    let second = admin("PATCH", "/v1/models/m")
        .and(query_param("version", "2"))
        .and(body_json(json!({"rate_rps": 80.0})));
    second
        .respond_with(view.clone())
        .expect(1)
        .mount(&gateway.server)
        .await;
    for (limit, asked) in [("64", json!(64)), ("default", json!(null))] {
        admin("PATCH", "/v1/models/m")
            .and(body_json(json!({"queue_limit": asked})))
            .respond_with(view.clone())
            .expect(1)
            .mount(&gateway.server)
            .await;
        let args = ["model", "update", "m", "--queue-limit", limit];
        assert_eq!(gateway.run(&args).code, 0);
    }
    for (flags, change) in [
        (
            &["--family", "f", "--accuracy", "90"][..],
            json!({"family": "f", "accuracy": 90.0}),
        ),
        (&["--no-family"], json!({"family": null})),
        (
            &["--max-cold-wait-ms", "900"],
            json!({"max_cold_wait_ms": 900}),
        ),
        (
            &["--max-cold-wait-ms", "default"],
            json!({"max_cold_wait_ms": null}),
        ),
        (&["--cache", "on"], json!({"cache": true})),
        (&["--cache", "off"], json!({"cache": false})),
    ] {
        admin("PATCH", "/v1/models/m")
            .and(body_json(change))
            .respond_with(view.clone())
            .expect(1)
            .mount(&gateway.server)
            .await;
        let args = [&["model", "update", "m"], flags].concat();
        assert_eq!(gateway.run(&args).code, 0);
    }
    admin("PATCH", "/v1/models/m")
        .and(body_json(json!({"rate": "min"})))
        .respond_with(view.clone())
        .expect(1)
        .mount(&gateway.server)
        .await;
    let args = ["model", "update", "m", "--rate-mode", "min"];
    assert_eq!(gateway.run(&args).code, 0);
    let removal = admin("DELETE", "/v1/models/m").and(query_param("version", "1"));
    let removed = json!({"removed": "m", "version": 1, "consequences": []});
    removal
        .respond_with(ResponseTemplate::new(200).set_body_json(removed))
        .expect(1)
        .mount(&gateway.server)
        .await;

    let shown = gateway.run(&["model", "show", "m"]);
    assert!(
        shown
            .text()
            .contains("1-0 on n/cpu0, batch 8, compute share 50 %: ready"),
        "{shown:?}"
    );
    assert_eq!(
        gateway
            .run(&[
                "model",
                "update",
                "m",
                "--version",
                "2",
                "--rate-rps",
                "80",
                "--json"
            ])
            .json()["name"],
        "m"
    );
    assert_eq!(
        gateway
            .run(&["model", "remove", "m", "--version", "1"])
            .text(),
        "removed m, version 1\n"
    );
    gateway.server.verify().await;
}

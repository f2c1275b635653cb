//! `/v1/plan`, `/v1/plans` and `/v1/plans/preview`.

use serde_json::{Value, json};
use wiremock::{
    ResponseTemplate,
    matchers::{body_json, query_param},
};

use packhorse_stand_in::{Gateway, admin, node};

fn placement(model: &str, version: u32, device: &str, share: Option<f64>) -> Value {
    json!({
        "id": "7-0", "model": model, "version": version, "device": device, "device_kind": "cpu-x", "batch_size": 16,
        "compute_share_pct": share,
    })
}

fn plan() -> Value {
    let forecast = |name: &str,
                    version: u32,
                    goodput: f64,
                    replicas: u32,
                    shortfall: Option<&str>| {
        json!({
            "name": name, "version": version, "rate_rps": 50.0, "predicted_goodput_rps": goodput, "replicas": replicas,
            "shortfall": shortfall,
        })
    };
    json!({
        "generation": 7, "policy": "first-fit", "bias": null, "created_unix_ms": 1_790_000_000_000_u64, "reason": "model minilm registered",
        "solve_ms": 1.5, "predicted_goodput_rps": 90.0,
        "replicas": [placement("minilm", 2, "b/cpu1", Some(50.0)), placement("cat", 1, "a/cpu0", None)],
        "models": [
            forecast("cat", 1, 40.0, 1, Some("40 of 50 requests/s fit")),
            forecast("minilm", 2, 50.0, 1, None),
            forecast("bert", 1, 0.0, 0, Some("no device has 20 GiB")),
        ],
        "unserved": ["bert:1"], "devices_used": 2,
    })
}

#[tokio::test]
async fn the_live_plan_keeps_the_contract() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway.answers("GET", "/v1/plan", 200, plan()).await;
    gateway
        .answers(
            "GET",
            "/v1/nodes",
            200,
            json!([node("a", 1, "7-1"), node("b", 2, "6-0")]),
        )
        .await;
    let expected = json!({
        "scenario": null, "policy": "first-fit", "predicted_goodput_rps": 90.0, "solve_ms": 1.5,
        "replicas": [
            {"model": "minilm:2", "device": 2, "batch_size": 16, "compute_share_pct": 50.0},
            {"model": "cat", "device": 0, "batch_size": 16, "compute_share_pct": null},
        ],
        "models": [
            {"name": "cat", "rate_rps": 50.0, "predicted_goodput_rps": 40.0, "replicas": 1},
            {"name": "minilm:2", "rate_rps": 50.0, "predicted_goodput_rps": 50.0, "replicas": 1},
            {"name": "bert", "rate_rps": 50.0, "predicted_goodput_rps": 0.0, "replicas": 0},
        ],
        "unserved": ["bert"], "devices_used": 2,
        "generation": 7, "created_unix_ms": 1_790_000_000_000_u64, "reason": "model minilm registered",
    });
    assert_eq!(gateway.run(&["plan", "--json"]).json(), expected);
}

#[tokio::test]
async fn the_exported_scenario_is_printed_as_it_is() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let scenario = "name = \"live\"\ndevices = []\nmodels = []\n";
    let answer = ResponseTemplate::new(200).set_body_raw(scenario, "application/toml");
    let route = admin("GET", "/v1/plan/scenario");
    route.respond_with(answer).mount(&gateway.server).await;
    assert_eq!(gateway.run(&["plan", "export"]).text(), scenario);
    let expected = json!({"name": "live", "devices": [], "models": []});
    assert_eq!(gateway.run(&["plan", "export", "--json"]).json(), expected);
}

#[tokio::test]
async fn people_see_devices_expectations_and_why_a_model_is_unserved() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway.answers("GET", "/v1/plan", 200, plan()).await;
    gateway.answers("GET", "/v1/plans/7", 200, plan()).await;
    let ran = gateway.run(&["plan"]);
    let lines: Vec<String> = ran
        .text()
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "plan 7 by first-fit: an expected goodput of 90 requests/s, 2 replicas on 2 devices",
        "made in 1.5 ms, reason: model minilm registered",
        "",
        "a/cpu0 cpu-x",
        "└─ cat batch 16 no limit",
        "b/cpu1 cpu-x",
        "└─ minilm:2 batch 16 ████████░░░░░░░░ 50 %",
        "",
        "MODEL RATE/S EXPECTED/S REPLICAS",
        "cat 50 40 █████████████░░░ 80 % 1",
        "minilm:2 50 50 ████████████████ 100 % 1",
        "bert 50 0 ░░░░░░░░░░░░░░░░ 0 % 0",
        "",
        "bert is not served: no device has 20 GiB",
        "cat is not fully served: 40 of 50 requests/s fit",
    ];
    assert_eq!(lines, expected);
    assert_eq!(gateway.run(&["plan", "show", "7"]).text(), ran.stdout);
}

#[tokio::test]
async fn without_a_plan_there_is_nothing_to_show() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway
        .answers("GET", "/v1/plan", 404, json!({"error": "no plan yet"}))
        .await;
    assert_eq!(
        gateway.run(&["plan", "--json"]).error(),
        "error: there is no plan yet: register a model first\n"
    );
}

#[tokio::test]
async fn earlier_plans_are_listed_and_compared() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let summary = json!({
        "generation": 7, "policy": "goodput", "created_unix_ms": 1_700_000_000_000_i64, "reason": "model cat was registered",
        "solve_ms": 1.5, "predicted_goodput_rps": 50.0, "replicas": 3, "models": 21, "devices_used": 2, "unserved_models": 3,
        "unserved": ["bert:1", "dog:2"],
        "outcome": {"duration_s": 60.0, "offered_rps": 60.0, "predicted_rps": 40.0, "goodput_rps": 35.0},
    });
    gateway
        .answers("GET", "/v1/plans", 200, json!([summary]))
        .await;
    let ran = gateway.run(&["plan", "history"]);
    assert!(
        ran.text().lines().nth(1).unwrap().starts_with("7 "),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("bert:1, dog:2 and 1 more"), "{ran:?}");
    assert!(ran.stdout.contains(" 88 % "), "{ran:?}");
    assert!(ran.stdout.contains("2023-11-14 22:13:20"), "{ran:?}");
    assert_eq!(
        gateway.run(&["plan", "history", "--json"]).json(),
        json!([summary])
    );

    let diff = json!({"added": [placement("cat", 1, "a/cpu0", None)], "removed": [], "kept": 3});
    gateway
        .answers("GET", "/v1/plans/6/diff/7", 200, diff.clone())
        .await;
    let ran = gateway.run(&["plan", "diff", "6", "7"]);
    assert!(
        ran.text()
            .starts_with("1 replica to start, 0 to stop, 3 unchanged\n+  a/cpu0 "),
        "{ran:?}"
    );
    assert_eq!(
        gateway.run(&["plan", "diff", "6", "7", "--json"]).json(),
        diff
    );
}

#[tokio::test]
async fn a_policy_and_its_options_ask_for_the_plan_they_would_make() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let asked = json!({
        "policy": "usher", "discipline": "fixed-wait",
        "options": {
            "compute_metric": "mean", "objective": "max-min", "prefer_small_batch": true, "nexus_published": true,
            "compute_shares": "auto", "effort": 10, "batch_step": "bda", "latency_model": "inss", "herd_greedy": true,
        },
        "models": [], "remove": [], "devices": [], "explain": false,
    });
    let answer = json!({
        "plan": plan(), "current": null, "diff": {"added": [], "removed": [], "kept": 0}, "bound_rps": 90.0,
    });
    admin("POST", "/v1/plans/preview")
        .and(body_json(&asked))
        .respond_with(ResponseTemplate::new(200).set_body_json(&answer))
        .expect(1)
        .mount(&gateway.server)
        .await;
    let args = "plan --policy usher --discipline fixed-wait --creq mean --objective max-min --prefer small-batch \
                --nexus-published --compute-shares auto --effort 10 --batch-step bda --latency-model inss --herd-greedy";
    let args: Vec<&str> = args.split_whitespace().collect();
    assert!(gateway.run(&args).text().starts_with("plan 7 by first-fit"));
    gateway.server.verify().await;
}

#[tokio::test]
async fn a_preview_asks_what_the_flags_say_and_shows_the_difference() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let asked = json!({
        "policy": "exclusive",
        "models": [
            {"name": "bert", "version": null, "slo_ms": null, "rate_rps": 5.0},
            {"name": "cat2", "version": null, "slo_ms": null, "rate_rps": 7.0, "profile_of": "bert"},
            {"name": "minilm", "version": null, "slo_ms": null, "rate_rps": null, "priority": 7},
            {"name": "minilm", "version": 2, "slo_ms": 100.0, "rate_rps": 500.0},
        ],
        "remove": ["cat"],
        "devices": [{"kind": "H200", "count": 2}, {"kind": "T4", "count": 1}, {"kind": "V100", "count": -3}],
        "explain": false,
    });
    let mut then = plan();
    then["predicted_goodput_rps"] = json!(540.0);
    let answer = json!({
        "plan": then, "current": plan(),
        "diff": {
            "added": [placement("minilm", 2, "new/gpu0", None)], "removed": [placement("cat", 1, "a/cpu0", None)], "kept": 1,
        },
        "bound_rps": 600.0,
    });
    let preview = admin("POST", "/v1/plans/preview").and(body_json(&asked));
    preview
        .respond_with(ResponseTemplate::new(200).set_body_json(&answer))
        .expect(2)
        .mount(&gateway.server)
        .await;
    let args = [
        "plan",
        "preview",
        "--policy",
        "exclusive",
        "--add-device",
        "H200:2",
        "--add-device",
        "T4",
        "--remove-device",
        "V100:3",
        "--rate",
        "minilm:2=500",
        "--rate",
        "bert=5",
        "--add-model",
        "cat2=bert",
        "--rate",
        "cat2=7",
        "--slo-ms",
        "minilm:2=100",
        "--priority",
        "minilm=7",
        "--remove",
        "cat",
    ];
    let text = gateway.run(&args);
    assert!(
        text.text()
            .contains("expected goodput: 90 requests/s now, 540 requests/s with this plan"),
        "{text:?}"
    );
    assert!(
        text.stdout
            .contains("no plan for these models and devices exceeds 600 requests/s"),
        "{text:?}"
    );
    assert!(
        text.stdout
            .contains("1 replica to start, 1 to stop, 1 unchanged"),
        "{text:?}"
    );
    let line_of = |mark: &str| {
        text.stdout
            .lines()
            .find(|line| line.starts_with(mark))
            .unwrap()
            .to_owned()
    };
    assert!(
        line_of("+").contains("new/gpu0") && line_of("-").contains("a/cpu0"),
        "{text:?}"
    );
    assert_eq!(
        gateway.run(&[&args[..], &["--json"]].concat()).json(),
        answer
    );
    gateway.server.verify().await;
}

#[tokio::test]
async fn the_live_plan_is_explained_as_it_is() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let mut explained = plan();
    explained["models"][0]["explanation"] = json!({
        "served_fraction": 0.8, "bound": {"by": "device-time"}, "complete": true,
        "remedies": [{"change": "add-devices", "kind": "cpu-x", "count": 1, "served_fraction": 0.995}],
    });
    admin("GET", "/v1/plan")
        .and(query_param("explain", "true"))
        .respond_with(ResponseTemplate::new(200).set_body_json(&explained))
        .expect(2)
        .mount(&gateway.server)
        .await;
    let ran = gateway.run(&["plan", "--explain"]);
    let text = "\ncat: an estimated 80.0 % of its requests are answered in time, limited by device time: the plan gives it \
                too little for its rate.\n  1 more cpu-x would suffice: 99.5 % in time\n";
    assert!(ran.text().ends_with(text), "{ran:?}");
    gateway
        .answers("GET", "/v1/nodes", 200, json!([node("a", 1, "7-1")]))
        .await;
    let json = gateway.run(&["plan", "--explain", "--json"]).json();
    assert_eq!(
        json["models"][0]["explanation"],
        explained["models"][0]["explanation"]
    );
    gateway.server.verify().await;
}

//! The consent to changes that take goodput from other models.

use serde_json::{Value, json};

use packhorse_stand_in::{Gateway, Ran, model, node};

/// The consequences of a change that takes the place of `cat`.
fn takes_from_cat() -> Value {
    json!([{"model": "cat", "before_rps": 50.0, "after_rps": 12.5, "reason": "no device has time left"}])
}

/// Every command that asks, with the request of its change and the answer to that.
fn changes(gateway: &Gateway) -> [(Vec<String>, &'static str, &'static str, Value); 9] {
    let spec = json!({
        "name": "dog", "artifact_path": "dog.pt", "max_batch_size": 1, "slo_ms": 200,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    });
    let spec = gateway.file("dog.json", spec.to_string());
    let policy = json!({
        "policy": "exclusive", "discipline": "deadline", "policies": [], "disciplines": [], "options": packhorse_stand_in::policy_options(),
    });
    let split = |command: &str| command.split(' ').map(ToOwned::to_owned).collect();
    let with = |mut view: Value| {
        view["consequences"] = takes_from_cat();
        view
    };
    let dog = with(model("dog", "registered", None));
    [
        (
            vec!["model".into(), "register".into(), spec],
            "POST",
            "/v1/models",
            dog.clone(),
        ),
        (
            split("model update dog --rate-rps 80"),
            "PATCH",
            "/v1/models/dog",
            dog.clone(),
        ),
        (
            split("node drain rack1"),
            "POST",
            "/v1/nodes/rack1/drain",
            with(node("rack1", 1, "1-0")),
        ),
        (
            split("node remove rack1"),
            "DELETE",
            "/v1/nodes/rack1",
            with(json!({"removed": "rack1"})),
        ),
        (
            split("model split dog 1=100"),
            "PATCH",
            "/v1/models/dog",
            dog.clone(),
        ),
        (
            split("model promote dog --version 1"),
            "POST",
            "/v1/models/dog/promote",
            dog.clone(),
        ),
        (
            split("model rollback dog"),
            "POST",
            "/v1/models/dog/rollback",
            dog,
        ),
        (
            split("model remove dog --version 1"),
            "DELETE",
            "/v1/models/dog",
            with(json!({"removed": "dog", "version": 1})),
        ),
        (
            split("policy set exclusive"),
            "PUT",
            "/v1/policy",
            with(policy),
        ),
    ]
}

fn run(gateway: &Gateway, command: &[String], more: &[&str]) -> Ran {
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    gateway.run(&[&command, more].concat())
}

/// The number of requests that are no dry runs and change something.
async fn changes_made(gateway: &Gateway) -> usize {
    let requests = gateway.server.received_requests().await.unwrap();
    let changes = requests.iter().filter(|request| {
        let is_dry = request
            .url
            .query()
            .is_some_and(|q| q.contains("dry_run=true"));
        request.method != "GET" && !is_dry
    });
    changes.count()
}

#[tokio::test]
async fn without_a_terminal_a_change_that_takes_from_others_is_refused() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway
        .dry_runs(200, &json!({"consequences": takes_from_cat()}))
        .await;
    for (command, verb, route, answer) in changes(&gateway) {
        gateway.answers(verb, route, 200, answer).await;
        let ran = run(&gateway, &command, &[]);
        assert_eq!((ran.code, &*ran.stdout), (3, ""), "{ran:?}");
        let expected = "\
The change lowers the planned goodput (requests/s) of these models:
MODEL  NOW  THEN  REASON
cat    50   12.5  no device has time left
error: nothing was changed: the change takes goodput from other models, and there is no terminal to ask on; --yes makes it without a question
";
        assert_eq!(ran.stderr, expected);
        assert_eq!(changes_made(&gateway).await, 0, "{command:?}");
    }
}

#[tokio::test]
async fn with_yes_the_change_is_made_at_once_and_says_what_it_took() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway
        .dry_runs(200, &json!({"consequences": takes_from_cat()}))
        .await;
    // The new shares are shown.
    gateway.answers("GET", "/v1/models", 200, json!([])).await;
    for (made, (command, verb, route, answer)) in changes(&gateway).into_iter().enumerate() {
        gateway.answers(verb, route, 200, answer).await;
        let ran = run(&gateway, &command, &["--yes"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let told = ran
            .stderr
            .contains("cat    50   12.5  no device has time left");
        assert!(told, "{ran:?}");
        assert_eq!(changes_made(&gateway).await, made + 1);
        let requests = gateway.server.received_requests().await.unwrap();
        let dry_runs = requests
            .iter()
            .filter(|request| request.url.query().is_some_and(|q| q.contains("dry_run")));
        assert_eq!(dry_runs.count(), 0, "no dry run is needed");
    }
}

#[tokio::test]
async fn a_change_that_takes_nothing_from_others_is_made_without_a_question() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let own = json!([{"model": "dog", "before_rps": 50.0, "after_rps": 0.0, "reason": "its SLO is too short"}]);
    gateway.dry_runs(200, &json!({"consequences": own})).await;
    let mut view = model("dog", "ready", None);
    view["consequences"] = own;
    gateway
        .answers("PATCH", "/v1/models/dog", 200, view.clone())
        .await;
    let ran = gateway.run(&["model", "update", "dog", "--slo-ms", "1", "--json"]);
    assert_eq!(ran.json(), view);
    assert!(ran.stderr.contains("its SLO is too short"), "{ran:?}");
}

#[tokio::test]
async fn unknown_consequences_are_told_and_stop_nothing() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let reason = "model dog:1 has no profile yet";
    let unknown = json!({"consequences": null, "consequences_unknown": reason});
    let mut view = model("dog", "ready", None);
    view["consequences"] = Value::Null;
    view["consequences_unknown"] = json!(reason);
    gateway.dry_runs(200, &unknown).await;
    gateway.answers("PATCH", "/v1/models/dog", 200, view).await;
    let ran = gateway.run(&["model", "update", "dog", "--rate-rps", "80"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        ran.stderr,
        "what the change takes from other models is not known: model dog:1 has no profile yet\n"
    );
}

#[tokio::test]
async fn a_refused_dry_run_is_the_refusal_of_the_change() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let answer = json!({"error": "no node has the name rack1"});
    gateway.dry_runs(404, &answer).await;
    let ran = gateway.run(&["node", "drain", "rack1"]);
    assert_eq!(ran.error(), "error: no node has the name rack1\n");
    assert_eq!(changes_made(&gateway).await, 0);
}

//! The messages of errors.

use std::{fs, net::TcpListener};

use serde_json::json;
use wiremock::{Mock, ResponseTemplate, matchers::any};

use packhorse_stand_in::{Gateway, TOKEN};

#[tokio::test]
async fn an_error_to_connect_names_address_and_flag() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    // A port that was free a moment ago.
    let url = format!(
        "http://{}",
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    );
    let token = gateway.file("token", "t");

    let admin = gateway.run_bare(&["model", "list", "--admin-url", &url, "--token-file", &token]);
    assert!(
        admin.error().starts_with(&format!(
            "error: cannot connect to {url}: Connection refused"
        )),
        "{admin:?}"
    );
    assert!(
        admin.stderr.contains("hint:") && admin.stderr.contains("--admin-url"),
        "{admin:?}"
    );

    let inference = gateway.run_bare(&["infer", "m", "--input", "x=[1]", "--url", &url]);
    assert!(
        inference.error().contains("--url or PACKHORSE_URL"),
        "{inference:?}"
    );
}

#[tokio::test]
async fn a_wrong_token_is_named_by_its_file() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let refused =
        ResponseTemplate::new(401).set_body_json(json!({"error": "the admin token is wrong"}));
    Mock::given(any())
        .respond_with(refused)
        .mount(&gateway.server)
        .await;
    let spec = gateway.file("m.json", json!({"name": "m", "max_batch_size": 1, "slo_ms": 1, "rate_rps": 1, "inputs": [], "outputs": []}).to_string());
    // Large enough that an upload would not fit into the socket's buffers.
    let artifact = gateway.file("m.pt", vec![7; 16 << 20]);
    for args in [
        &["node", "list"][..],
        &["model", "register", &spec, "--artifact", &artifact],
    ] {
        let ran = gateway.run(args);
        assert!(
            ran.error()
                .contains("hint: the gateway does not accept the token in "),
            "{ran:?}"
        );
        assert!(
            ran.stderr
                .contains("admin-token; name another file with --token-file"),
            "{ran:?}"
        );
    }
    assert!(
        gateway
            .run(&["node", "list"])
            .stderr
            .starts_with("error: the admin token is wrong\n")
    );
}

#[tokio::test]
async fn a_missing_or_empty_token_file_names_the_flag() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    // Outside the source checkout, whose demo may have a token.
    let program = gateway.install();
    let missing = gateway.run_program(&program, &["status"]);
    let default = gateway.path(".local/share/packhorse/admin-token");
    let expected = format!(
        "error: cannot read the admin token in {}: ",
        default.display()
    );
    assert!(missing.error().starts_with(&expected), "{missing:?}");
    assert!(
        missing
            .stderr
            .contains("--token-file or PACKHORSE_TOKEN_FILE"),
        "{missing:?}"
    );

    let empty = gateway.file("empty", "\n");
    let ran = gateway.run_bare(&["status", "--token-file", &empty]);
    assert!(
        ran.error().contains("does not contain an admin token"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn a_build_in_a_source_checkout_falls_back_to_the_token_of_the_demo() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway.answers("GET", "/v1/nodes", 200, json!([])).await;
    let program = gateway.install();
    let demo = gateway.path(".packhorse/demo/gateway");
    fs::create_dir_all(&demo).unwrap();
    fs::write(demo.join("admin-token"), TOKEN).unwrap();
    let url = gateway.server.uri();
    let list = ["node", "list", "--json", "--admin-url", &url];
    assert_eq!(gateway.run_program(&program, &list).json(), json!([]));

    // The token of a gateway with default settings takes precedence.
    let default = gateway.path(".local/share/packhorse");
    fs::create_dir_all(&default).unwrap();
    fs::write(default.join("admin-token"), "other").unwrap();
    let refused = ResponseTemplate::new(401).set_body_json(json!({"error": "wrong token"}));
    Mock::given(any())
        .respond_with(refused)
        .mount(&gateway.server)
        .await;
    let ran = gateway.run_program(&program, &list);
    let hint = format!("(the demo's is {})", demo.join("admin-token").display());
    assert!(ran.error().contains(&hint), "{ran:?}");
}

#[tokio::test]
async fn the_gateways_message_reaches_the_user() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway
        .answers(
            "GET",
            "/v1/models/m",
            404,
            json!({"error": "model m does not exist"}),
        )
        .await;
    gateway
        .answers("GET", "/v1/nodes", 200, json!({"nodes": "another API"}))
        .await;
    assert_eq!(
        gateway.run(&["model", "show", "m"]).error(),
        "error: model m does not exist\n"
    );
    let stranger = gateway.run(&["node", "list"]);
    assert!(
        stranger.error().contains("cannot be parsed: ")
            && stranger.stderr.contains("of this version?"),
        "{stranger:?}"
    );
    // The stand-in has no such route, like a server that is not Packhorse.
    assert_eq!(
        gateway.run(&["policy"]).error(),
        "error: the server responded with 404 Not Found\n"
    );
}

#[tokio::test]
async fn wrong_usage_is_status_2_and_needs_no_gateway() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    for args in [
        &["model", "update", "m"][..],
        &["model", "show", "../m"],
        &["model", "show", "m", "--version", "0"],
        &["model", "update", "m", "--rate-rps", "-1"],
        &["model", "update", "m", "--rate-rps", "NaN"],
        &["infer", "m"],
        &["infer", "m", "--input", "x"],
        &[
            "infer",
            "m",
            "--input-name",
            "x",
            "--json-request",
            "r.json",
        ],
        &["infer", "m", "--input", "x=[1]", "--resize", "256"],
        &["infer", "m", "--input", "x=[1]", "--labels", "l.txt"],
        &["infer", "m", "--json-request", "r.json", "--top", "5"],
        &["infer", "m", "--input", "x=[1]", "--timeout-ms", "60001"],
        &["plan", "preview", "--add-device", "H200:many"],
        &["policy", "set"],
        &["status", "--url", "ftp://x"],
        &["fly"],
        &[],
    ] {
        let ran = gateway.run_bare(args);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (2, ""),
            "{args:?}: {ran:?}"
        );
    }
    assert!(gateway.server.received_requests().await.unwrap().is_empty());
}

#[tokio::test]
async fn help_is_no_error_and_every_command_shows_an_example() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    for command in [
        "model", "infer", "status", "profile", "plan", "policy", "node",
    ] {
        let ran = gateway.run_bare(&[command, "--help"]);
        assert!(
            ran.text().contains(&format!("packhorse {command}")) && ran.stdout.contains("Example"),
            "{ran:?}"
        );
        assert!(ran.stdout.contains("PACKHORSE_TOKEN_FILE"), "{ran:?}");
    }
}

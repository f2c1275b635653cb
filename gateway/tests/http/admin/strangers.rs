//! Clients of the admin listener without a credential: what they send costs little, and keeps nobody out.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{agent::Agent, answer::Answer, gateway::Gateway, within};

/// Begins a sign-in that announces this many bytes and sends few of them.
async fn unfinished_sign_in(gateway: &Gateway, bytes: u64) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.app.admin_address())
        .await
        .unwrap();
    let head = format!(
        "POST /v1/session HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bytes}\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn sign_in(gateway: &Gateway, body: &Value) -> Answer {
    let address = gateway.app.admin_address();
    let body = body.to_string().into_bytes();
    gateway
        .send(address, Method::POST, "/v1/session", None, body)
        .await
}

#[tokio::test]
async fn unfinished_sign_ins_keep_neither_agents_nor_admins_out() {
    const PLACES: usize = 16;
    let gateway = Gateway::with_flags(&[&format!("--max-connections={PLACES}")]).await;
    // It keeps its connection, which has proved who it is.
    let address = gateway.app.admin_address();
    let mut known = TcpStream::connect(address).await.unwrap();
    let token = gateway.token("admin-token");
    let request = format!(
        "GET /v1/policy HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    let mut ask = async || {
        known.write_all(request.as_bytes()).await.unwrap();
        let mut begin = [0; 12];
        known.read_exact(&mut begin).await.unwrap();
        let mut rest = [0; 4096];
        let _ = known.read(&mut rest).await.unwrap();
        String::from_utf8_lossy(&begin).into_owned()
    };
    assert_eq!(within("an answer", ask()).await, "HTTP/1.1 200");
    let mut strangers = Vec::new();
    for _ in 0..3 * PLACES {
        strangers.push(unfinished_sign_in(&gateway, 100).await);
    }
    for node in ["a", "b", "c"] {
        Agent::new(node).lease(&gateway).await;
        gateway.get("/v1/nodes").await.ok(200);
    }
    assert_eq!(within("an answer", ask()).await, "HTTP/1.1 200");
    // The oldest of them have lost their places.
    let mut byte = [0];
    let ended = within("the end of the oldest", strangers[0].read(&mut byte)).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

#[tokio::test]
async fn a_sign_in_has_few_bytes_and_little_time() {
    let gateway = Gateway::with_flags(&["--client-timeout-ms=300"]).await;
    let long = json!({"token": "x".repeat(5000)});
    let refused = sign_in(&gateway, &long).await.error(413);
    assert!(refused.contains("the limit of 4096 bytes"), "{refused}");
    let mut announced = unfinished_sign_in(&gateway, 1 << 20).await;
    let mut answer = [0; 12];
    within("a refusal", announced.read_exact(&mut answer))
        .await
        .unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    // A byte now and then keeps a body alive, but not for long.
    let mut slow = unfinished_sign_in(&gateway, 4000).await;
    let mut answer = [0; 12];
    let dripping = async {
        loop {
            tokio::select! {
                read = slow.read_exact(&mut answer) => break read.unwrap(),
                () = tokio::time::sleep(std::time::Duration::from_millis(50)) => {}
            }
            let _ = slow.write_all(b" ").await;
        }
    };
    within("the end of its time", dripping).await;
    assert_eq!(&answer, b"HTTP/1.1 408");
}

#[tokio::test]
async fn refused_sign_ins_are_recorded_and_stopped_and_backups_and_downloads_are_recorded() {
    let gateway = Gateway::start().await;
    for _ in 0..10 {
        sign_in(&gateway, &json!({"token": "guessed"}))
            .await
            .error(401);
    }
    let token = json!({"token": gateway.token("admin-token")});
    for body in [json!({"token": "guessed"}), token] {
        let stopped = sign_in(&gateway, &body).await;
        stopped.error(429);
        let seconds = stopped.headers["retry-after"].to_str().unwrap();
        assert!((1..=60).contains(&seconds.parse().unwrap()), "{seconds}");
    }
    let digest = gateway.upload(b"a file").await;
    let path = format!("/v1/artifacts/{digest}");
    assert_eq!(gateway.get(&path).await.body, b"a file");
    let agent = gateway.token("agent-token");
    let address = gateway.app.admin_address();
    let fetched = gateway.send(address, Method::GET, &path, Some(&agent), Vec::new());
    assert_eq!(fetched.await.body, b"a file");
    assert_eq!(gateway.get("/v1/backup").await.status, 200);
    let entries = gateway.get("/v1/audit").await.ok(200);
    let told = entries.as_array().unwrap().iter().rev().map(|entry| {
        let actor = &entry["actor"];
        assert_eq!(actor["address"], "127.0.0.1");
        json!([
            entry["action"],
            actor["name"],
            entry["subject"],
            entry["change"]
        ])
    });
    let expected = [
        json!(["session.refuse", "", null, {"refused": 1}]),
        json!(["session.refuse", "", null, {"refused": 10}]),
        json!(["artifact.store", "admin", digest, {}]),
        json!(["artifact.download", "admin", digest, {}]),
        json!(["backup.download", "admin", null, {}]),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

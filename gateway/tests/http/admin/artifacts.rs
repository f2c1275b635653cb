//! `/v1/artifacts`.

use reqwest::Method;
use serde_json::json;

use crate::support::gateway::{Gateway, digest_of};

#[tokio::test]
async fn a_file_is_stored_once_and_read_back() {
    let gateway = Gateway::start().await;
    let file = vec![7; 3 << 20];
    let digest = digest_of(&file);
    let path = format!("/v1/artifacts/{digest}");
    gateway.get(&path).await.error(404);
    let expected = json!({"digest": digest, "bytes": file.len()});
    for status in [201, 200] {
        let answer = gateway.admin(Method::PUT, &path, file.clone()).await;
        assert_eq!(answer.ok(status), expected);
    }
    let token = gateway.token("agent-token");
    let address = gateway.app.admin_address();
    let answer = gateway.send(address, Method::GET, &path, Some(&token), Vec::new());
    let answer = answer.await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-length"], file.len().to_string());
    assert!(answer.body == file);
    assert_eq!(
        gateway.get("/v1/artifacts").await.ok(200),
        json!([expected])
    );
}

#[tokio::test]
async fn a_file_that_is_not_what_its_digest_says_is_refused_and_both_are_named() {
    let gateway = Gateway::start().await;
    let announced = digest_of(b"one");
    let path = format!("/v1/artifacts/{announced}");
    let message = gateway
        .admin(Method::PUT, &path, "another")
        .await
        .error(400);
    assert!(message.contains(&announced.to_string()), "{message}");
    assert!(
        message.contains(&digest_of(b"another").to_string()),
        "{message}"
    );
    gateway.get(&path).await.error(404);
    let incoming = gateway.folder.path().join("state/artifacts/incoming");
    assert_eq!(std::fs::read_dir(incoming).unwrap().count(), 0);
}

#[tokio::test]
async fn a_file_over_the_limit_is_refused_whether_or_not_it_says_so() {
    let gateway = Gateway::with_flags(&["--artifact-limit-bytes=1000"]).await;
    let file = vec![1; 1001];
    let path = format!("/v1/artifacts/{}", digest_of(&file));
    let message = gateway
        .admin(Method::PUT, &path, file.clone())
        .await
        .error(413);
    assert!(message.contains("1000"), "{message}");

    let url = format!("http://{}{path}", gateway.app.admin_address());
    let chunks = file
        .chunks(100)
        .map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec()));
    let chunks: Vec<_> = chunks.collect();
    let streamed = reqwest::Client::new()
        .put(url)
        .bearer_auth(gateway.token("admin-token"))
        .body(reqwest::Body::wrap_stream(futures_util::stream::iter(
            chunks,
        )));
    assert_eq!(streamed.send().await.unwrap().status(), 413);
    assert_eq!(gateway.upload(&vec![1; 1000]).await, digest_of(&[1; 1000]));
}

#[tokio::test]
async fn what_is_no_digest_is_no_path() {
    let gateway = Gateway::start().await;
    for name in ["sha256:00", "md5:0", "..%2f..%2fetc%2fpasswd"] {
        let path = format!("/v1/artifacts/{name}");
        let message = gateway.admin(Method::PUT, &path, "x").await.error(400);
        assert!(message.contains("artifact digest"), "{message}");
    }
}

#[tokio::test]
async fn what_a_crash_left_half_written_is_gone_after_the_next_start() {
    let gateway = Gateway::start().await;
    let leftover = gateway.folder.path().join("state/artifacts/incoming/x");
    std::fs::write(&leftover, "half").unwrap();
    let gateway = gateway.restarted().await;
    assert!(!leftover.exists());
    gateway.upload(b"a file").await;
}

//! `/v1/artifacts`.

use packhorse_cluster::ArtifactDigest;
use reqwest::Method;
use serde_json::json;

use crate::support::{
    client,
    gateway::{Gateway, digest_of},
    poll, until,
};

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
    let streamed = client()
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

/// The digests of the stored files.
async fn stored(gateway: &Gateway) -> Vec<String> {
    let list = gateway.get("/v1/artifacts").await.ok(200);
    let files = list.as_array().unwrap().iter();
    files
        .map(|file| file["digest"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_file_that_no_model_uses_is_deleted_some_time_after_its_last_use() {
    let gateway = Gateway::with_flags(&["--artifact-retention-ms=300"]).await;
    let unused = gateway.upload(b"nobody registers it").await;
    let used = digest_of(b"the file of m");
    gateway.register("m").await;
    let only = |digest: ArtifactDigest| {
        let gateway = &gateway;
        poll("the deletion", async move || {
            let stored = stored(gateway).await;
            (stored == [digest.to_string()])
                .then_some(())
                .ok_or(format!("stored: {stored:?}"))
        })
    };
    only(used).await;
    let folder = gateway.folder.path().join("state/artifacts");
    let gone = |digest: ArtifactDigest| {
        let file = folder.join(digest.to_hex());
        until("the removal of the file", move || !file.exists())
    };
    gone(unused).await;
    assert!(folder.join(used.to_hex()).exists());

    assert_eq!(gateway.delete("/v1/models/m").await.status, 200);
    poll("the deletion", async || match stored(&gateway).await {
        files if files.is_empty() => Ok(()),
        files => Err(format!("stored: {files:?}")),
    })
    .await;
    gone(used).await;
    // It can be stored and used again.
    gateway.register("m").await;
}

#[tokio::test]
async fn a_file_is_kept_for_an_hour_and_one_without_a_row_is_set_aside_as_long() {
    let gateway = Gateway::start().await;
    let uploaded = gateway.upload(b"registered soon").await;
    let folder = gateway.folder.path().join("state/artifacts");
    let orphan = folder.join(digest_of(b"no row").to_hex());
    std::fs::write(&orphan, "no row").unwrap();
    // It is old; its time begins when it is set aside.
    let file = std::fs::File::options().append(true).open(&orphan).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let gateway = gateway.restarted().await;
    assert!(!orphan.exists());
    let aside = folder.join("orphans").join(orphan.file_name().unwrap());
    assert_eq!(std::fs::read(&aside).unwrap(), b"no row");
    assert_eq!(stored(&gateway).await, [uploaded.to_string()]);
    let gateway = gateway
        .restarted_with(&["--artifact-retention-ms=100"])
        .await;
    until("the removal of the orphan", move || !aside.exists()).await;
    drop(gateway);
}

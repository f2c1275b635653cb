//! The clients' results for responses, refusals and lost connections of a gateway.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{Json, Router, http::StatusCode, routing::put};
use packhorse_client::{
    AdminClient, ArtifactFile, Authorities, CallError, InferenceClient, UploadError,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{any, body_bytes, header, method},
};

fn admin(url: &str) -> AdminClient {
    AdminClient::new(url.parse().unwrap(), " secret\n", &Authorities::Machine).unwrap()
}

fn file(folder: &TempDir, content: &[u8]) -> PathBuf {
    let path = folder.path().join("m.pt");
    fs::write(&path, content).unwrap();
    path
}

#[tokio::test]
async fn a_file_is_hashed_then_streamed_and_both_are_reported() {
    let (gateway, folder) = (MockServer::start().await, TempDir::new().unwrap());
    let content: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    let path = file(&folder, &content);
    let hashed = AtomicU64::new(0);
    let artifact = ArtifactFile::hash(&path, |bytes| hashed.store(bytes, Ordering::Relaxed))
        .await
        .unwrap();
    assert_eq!(
        (hashed.into_inner(), artifact.bytes()),
        (1_000_000, 1_000_000)
    );

    let view = json!({"digest": artifact.digest(), "bytes": 1_000_000});
    Mock::given(method("PUT"))
        .and(header("authorization", "Bearer secret"))
        .and(header("content-length", "1000000"))
        .and(body_bytes(content))
        .respond_with(ResponseTemplate::new(201).set_body_json(view))
        .expect(1)
        .mount(&gateway)
        .await;
    let sent = Arc::new(AtomicU64::new(0));
    let progress = Arc::clone(&sent);
    let stored = admin(&gateway.uri())
        .upload_artifact(&artifact, move |bytes| {
            let before = progress.swap(bytes, Ordering::Relaxed);
            assert!(before < bytes, "progress goes forward");
        })
        .await
        .unwrap();
    assert_eq!(
        (stored.digest, sent.load(Ordering::Relaxed)),
        (artifact.digest(), 1_000_000)
    );
}

#[tokio::test]
async fn the_digest_is_sha_256() {
    let folder = TempDir::new().unwrap();
    let artifact = ArtifactFile::hash(&file(&folder, b"abc"), |_| ())
        .await
        .unwrap();
    // FIPS 180-2, appendix B.1.
    let expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(artifact.digest().to_string(), expected);
    assert!(ArtifactFile::hash(folder.path(), |_| ()).await.is_err());
}

#[tokio::test]
async fn a_file_that_shrinks_after_hashing_is_an_error() {
    let (gateway, folder) = (MockServer::start().await, TempDir::new().unwrap());
    let path = file(&folder, &[1; 1000]);
    let artifact = ArtifactFile::hash(&path, |_| ()).await.unwrap();
    fs::write(&path, [1; 10]).unwrap();
    let error = admin(&gateway.uri())
        .upload_artifact(&artifact, |_| ())
        .await
        .unwrap_err();
    assert!(
        matches!(error, UploadError::Call(CallError::Broken { .. })),
        "{error:?}"
    );
    fs::remove_file(&path).unwrap();
    let error = admin(&gateway.uri())
        .upload_artifact(&artifact, |_| ())
        .await
        .unwrap_err();
    assert!(matches!(error, UploadError::Read { .. }), "{error:?}");
}

#[tokio::test]
async fn an_upload_refused_by_its_head_keeps_the_gateways_message() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let refuse = async || {
        (
            StatusCode::PAYLOAD_TOO_LARGE,
            Json(json!({"error": "over the limit of 1 GiB"})),
        )
    };
    let server = axum::serve(
        listener,
        Router::new().route("/v1/artifacts/{digest}", put(refuse)),
    );
    tokio::spawn(server.into_future());

    let folder = TempDir::new().unwrap();
    let artifact = ArtifactFile::hash(&file(&folder, &vec![7; 32 << 20]), |_| ())
        .await
        .unwrap();
    let error = admin(&url)
        .upload_artifact(&artifact, |_| ())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "over the limit of 1 GiB");
}

#[tokio::test]
async fn refusals_keep_status_message_and_retry_after() {
    let gateway = MockServer::start().await;
    let busy = ResponseTemplate::new(503)
        .insert_header("retry-after", "7")
        .set_body_json(json!({"error": "queue full"}));
    Mock::given(method("POST"))
        .respond_with(busy)
        .mount(&gateway)
        .await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(502).set_body_string("<html>"))
        .mount(&gateway)
        .await;
    let inference =
        InferenceClient::new(gateway.uri().parse().unwrap(), &Authorities::Machine).unwrap();

    let error = inference.index().await.unwrap_err();
    let CallError::Refused {
        status,
        message,
        retry_after_s,
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(
        (status.as_u16(), message.as_str(), retry_after_s),
        (503, "queue full", Some(7))
    );
    let error = inference.server_metadata().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server responded with 502 Bad Gateway"
    );
}

#[tokio::test]
async fn an_incomplete_response_is_a_lost_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        assert!(socket.read(&mut request).await.unwrap() > 0);
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[{")
            .await
            .unwrap();
    });
    let error = admin(&url).nodes().await.unwrap_err();
    assert!(matches!(error, CallError::Broken { .. }), "{error:?}");
}

#[test]
fn a_token_never_shows_and_must_be_one_line() {
    let url = || "http://127.0.0.1:1".parse().unwrap();
    let client = AdminClient::new(url(), "hidden", &Authorities::Machine).unwrap();
    assert!(!format!("{client:?}").contains("hidden"));
    for bad in ["", " \n", "two words", "two\nlines", "t\u{e4}"] {
        assert!(
            AdminClient::new(url(), bad, &Authorities::Machine).is_err(),
            "{bad:?} was accepted"
        );
    }
}

//! The HTTP listener, with slow, greedy and late clients.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::get};
use packhorse_gateway::serve::{ConnectionLimits, Server};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(10);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// A server whose only handler notifies the test, and answers once the test notifies it.
async fn server(limits: ConnectionLimits) -> (Server, Arc<Notify>, Arc<Notify>) {
    let (reached, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&reached), Arc::clone(&go));
    let answer = move || {
        let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
        async move {
            tell.notify_one();
            wait.notified().await;
            "done"
        }
    };
    let router = Router::new().route("/", get(answer));
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), router, limits);
    (server.await.unwrap(), reached, go)
}

const GENEROUS: ConnectionLimits = ConnectionLimits {
    connections: 8,
    head_timeout: Duration::from_secs(30),
};

async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut text))
        .await
        .unwrap()
        .unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_head_is_dropped() {
    let limits = ConnectionLimits {
        head_timeout: Duration::from_millis(100),
        ..GENEROUS
    };
    let (server, _, _) = server(limits).await;
    for beginning in [&b""[..], b"GET / HT", &REQUEST[..REQUEST.len() - 2]] {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        let answer = read_all(&mut stream).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn what_is_in_flight_is_answered_before_the_server_ends() {
    let (server, reached, go) = server(GENEROUS).await;
    let address = server.address();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    timeout(PATIENCE, reached.notified()).await.unwrap();
    let ending = tokio::spawn(server.shutdown(PATIENCE));
    // The listener is closed once the shutdown has begun.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!ending.is_finished());
    go.notify_one();
    assert!(read_all(&mut stream).await.ends_with("done"));
    timeout(PATIENCE, ending).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_end_does_not_wait_longer_than_its_grace() {
    let (server, reached, _go) = server(GENEROUS).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    timeout(PATIENCE, reached.notified()).await.unwrap();
    timeout(PATIENCE, server.shutdown(Duration::from_millis(50)))
        .await
        .unwrap();
}

#[tokio::test]
async fn one_connection_too_many_waits_until_another_ends() {
    let limits = ConnectionLimits {
        connections: 1,
        ..GENEROUS
    };
    let (server, reached, go) = server(limits).await;
    let mut first = TcpStream::connect(server.address()).await.unwrap();
    first.write_all(REQUEST).await.unwrap();
    timeout(PATIENCE, reached.notified()).await.unwrap();
    let mut second = TcpStream::connect(server.address()).await.unwrap();
    second.write_all(REQUEST).await.unwrap();
    let early = timeout(Duration::from_millis(100), reached.notified()).await;
    assert!(early.is_err(), "the second was served beside the first");
    go.notify_one();
    drop(first);
    timeout(PATIENCE, reached.notified()).await.unwrap();
    go.notify_one();
}

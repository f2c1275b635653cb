//! The HTTP listener, with slow, silent, greedy and late clients.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Bytes, routing::get};
use packhorse_gateway::{
    serve::{ConnectionLimits, HEAD_LIMIT, Server},
    tasks::Tasks,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::Notify,
    time::{Instant, timeout},
};

const PATIENCE: Duration = Duration::from_secs(10);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// More bytes than the buffers of a socket on both sides hold.
const LARGE: usize = 64 << 20;

/// A server with a handler that notifies the test, and answers once the test notifies it, and others that answer at once.
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
    let router = Router::new()
        .route("/", get(answer))
        .route("/quick", get(async || "quick"))
        .route("/large", get(async || Bytes::from(vec![b'x'; LARGE])))
        .route("/health/live", get(async || "alive"));
    let tasks = Tasks::default();
    let server = Server::bind(
        "127.0.0.1:0".parse().unwrap(),
        router,
        limits,
        None,
        (&tasks, "listener"),
    );
    (server.await.unwrap(), reached, go)
}

const GENEROUS: ConnectionLimits = ConnectionLimits {
    connections: 8,
    head_timeout: Duration::from_secs(30),
    idle_timeout: Duration::from_secs(30),
    write_timeout: Duration::from_secs(30),
    unknown_yield: false,
    always_answered: "/health/",
};

async fn connect(server: &Server, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let _ = stream.write_all(request.as_bytes()).await;
    stream
}

/// Sends a request on a connection of its own, and returns what comes back until the server closes it.
async fn ask(server: &Server, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    read_all(&mut connect(server, &head).await).await
}

/// Reads until this text has come.
async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(text) {
        let byte = timeout(PATIENCE, stream.read_u8()).await.unwrap();
        read.push(byte.unwrap());
    }
}

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
async fn a_client_that_closes_its_sending_side_has_gone_and_gets_no_answer() {
    let (server, reached, _go) = server(GENEROUS).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    reached.notified().await;
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stream).await, "");
}

#[tokio::test]
async fn what_is_in_flight_is_answered_before_the_server_ends() {
    let (server, reached, go) = server(GENEROUS).await;
    let address = server.address();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    timeout(PATIENCE, reached.notified()).await.unwrap();
    let ending = tokio::spawn(server.shutdown(Instant::now() + PATIENCE));
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
    let deadline = Instant::now() + Duration::from_millis(50);
    timeout(PATIENCE, server.shutdown(deadline)).await.unwrap();
    assert_eq!(read_all(&mut stream).await, "");
}

#[tokio::test]
async fn one_connection_too_many_is_answered_503_and_closed() {
    let limits = ConnectionLimits {
        connections: 1,
        ..GENEROUS
    };
    let (server, reached, go) = server(limits).await;
    let mut first = connect(
        &server,
        "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    )
    .await;
    timeout(PATIENCE, reached.notified()).await.unwrap();
    // It keeps its connection open if it may.
    let mut second = connect(&server, "GET /quick HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let refused = read_all(&mut second).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("retry-after: "), "{refused}");
    assert!(
        refused
            .ends_with(r#"{"error":"the gateway is at its limit of 1 connections; retry later"}"#),
        "{refused}"
    );
    // One that has sent a body, too, gets to read that.
    let body = vec![b'x'; 300_000];
    let mut third = connect(
        &server,
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n",
    )
    .await;
    third.write_all(&body).await.unwrap();
    assert!(read_all(&mut third).await.starts_with("HTTP/1.1 503 "));
    go.notify_one();
    assert!(read_all(&mut first).await.ends_with("done"));
    let room_again = async {
        while !ask(&server, "/quick").await.ends_with("quick") {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, room_again).await.unwrap();
}

/// Connects from another address of this host.
async fn connect_from(server: &Server, address: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    socket.connect(server.address()).await.unwrap()
}

#[tokio::test]
async fn an_address_with_all_connections_gives_some_to_another_and_none_that_is_answered() {
    let (server, reached, go) = server(GENEROUS).await;
    let mut answered = TcpStream::connect(server.address()).await.unwrap();
    answered.write_all(REQUEST).await.unwrap();
    timeout(PATIENCE, reached.notified()).await.unwrap();
    // Of the others one has had an answer, and the others have never sent anything.
    let mut held = Vec::new();
    for request in [
        "",
        "GET /quick HTTP/1.1\r\nhost: x\r\n\r\n",
        "",
        "",
        "",
        "",
        "",
    ] {
        held.push(connect(&server, request).await);
    }
    read_until(&mut held[1], "quick").await;
    assert!(ask(&server, "/quick").await.starts_with("HTTP/1.1 503 "));

    let mut others = Vec::new();
    for _ in 0..4 {
        let mut other = connect_from(&server, [127, 0, 0, 2]).await;
        other
            .write_all(b"GET /quick HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        read_until(&mut other, "quick").await;
        others.push(other);
    }
    // Both have half of them by now.
    let mut one_more = connect_from(&server, [127, 0, 0, 2]).await;
    one_more.write_all(REQUEST).await.unwrap();
    assert!(read_all(&mut one_more).await.starts_with("HTTP/1.1 503 "));
    go.notify_one();
    read_until(&mut answered, "done").await;
    // The silent ones of the greedy address have given way, the longest silent one first.
    assert_eq!(read_all(&mut held[0]).await, "");
}

#[tokio::test]
async fn health_is_answered_above_the_limit_of_connections_and_of_those_above_it() {
    let limits = ConnectionLimits {
        connections: 2,
        ..GENEROUS
    };
    let (server, _, _) = server(limits).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(connect(&server, "").await);
    }
    for _ in 0..20 {
        let answer = ask(&server, "/health/live").await;
        assert!(answer.ends_with("alive"), "{answer}");
    }
    assert!(ask(&server, "/quick").await.starts_with("HTTP/1.1 503 "));
    drop(silent);
}

#[tokio::test]
async fn clients_that_never_read_lose_their_connections() {
    let limits = ConnectionLimits {
        connections: 4,
        write_timeout: Duration::from_millis(200),
        ..GENEROUS
    };
    let (server, _, _) = server(limits).await;
    let mut never_read = Vec::new();
    for _ in 0..4 {
        never_read.push(connect(&server, "GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await);
    }
    assert!(ask(&server, "/health/live").await.ends_with("alive"));
    let room_again = async {
        while !ask(&server, "/quick").await.ends_with("quick") {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, room_again).await.unwrap();
    drop(never_read);
}

#[tokio::test]
async fn a_client_that_reads_slowly_but_steadily_gets_its_answer() {
    let limits = ConnectionLimits {
        write_timeout: Duration::from_millis(300),
        ..GENEROUS
    };
    let (server, _, _) = server(limits).await;
    let mut stream = connect(
        &server,
        "GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    )
    .await;
    let begin = Instant::now();
    let mut piece = vec![0; 2 << 20];
    let mut read = 0;
    loop {
        let count = timeout(PATIENCE, stream.read(&mut piece)).await.unwrap();
        let count = count.unwrap();
        if count == 0 {
            break;
        }
        read += count;
        // About 40 MiB/s: the whole answer takes several times the limit of a pause.
        let due = begin + Duration::from_secs_f64(read as f64 / f64::from(40 << 20));
        tokio::time::sleep_until(due).await;
    }
    assert!(read > LARGE);
    assert!(begin.elapsed() > 3 * limits.write_timeout);
}

#[tokio::test]
async fn a_kept_connection_may_be_idle_for_longer_than_a_head_may_take() {
    let limits = ConnectionLimits {
        head_timeout: Duration::from_millis(100),
        idle_timeout: Duration::from_millis(700),
        ..GENEROUS
    };
    let (server, _, _) = server(limits).await;
    let request = "GET /quick HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut stream = connect(&server, request).await;
    read_until(&mut stream, "quick").await;
    // The peer's own idle time, as of a balancer.
    tokio::time::sleep(Duration::from_millis(400)).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut stream, "quick").await;
    let idle = Instant::now();
    assert_eq!(read_all(&mut stream).await, "");
    assert!(idle.elapsed() >= Duration::from_millis(500));
    // A head that has begun has no such time.
    let mut stream = connect(&server, request).await;
    read_until(&mut stream, "quick").await;
    stream.write_all(b"GET /qui").await.unwrap();
    let begun = Instant::now();
    assert_eq!(read_all(&mut stream).await, "");
    assert!(begun.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn a_head_over_the_limit_is_a_431() {
    let (server, _, _) = server(GENEROUS).await;
    for bytes in [HEAD_LIMIT, 300_000] {
        let head = format!(
            "GET /quick HTTP/1.1\r\nhost: x\r\nfiller: {}\r\n\r\n",
            "x".repeat(bytes)
        );
        let mut stream = connect(&server, &head).await;
        let mut answer = [0; 12];
        // The server closes without having read everything, so that a reset may follow.
        let read = timeout(PATIENCE, stream.read_exact(&mut answer)).await;
        if read.unwrap().is_ok() {
            assert_eq!(&answer, b"HTTP/1.1 431");
        }
    }
    let head = format!(
        "GET /quick HTTP/1.1\r\nhost: x\r\nconnection: close\r\nfiller: {}\r\n\r\n",
        "x".repeat(HEAD_LIMIT / 2)
    );
    assert!(
        read_all(&mut connect(&server, &head).await)
            .await
            .ends_with("quick")
    );
}

#[tokio::test]
async fn what_is_no_request_gets_an_answer_with_a_body() {
    let (server, _, _) = server(GENEROUS).await;
    let many = format!("GET /quick HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(200));
    for (bytes, status) in [
        ("nonsense\r\n\r\n", 400),
        ("GET /quick HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (
            "GET /quick HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n",
            400,
        ),
        ("POST /quick HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (&many, 431),
    ] {
        let answer = read_all(&mut connect(&server, bytes).await).await;
        let last = answer.rsplit("HTTP/1.1 ").next().unwrap();
        let (head, body) = last.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&status.to_string()), "{answer}");
        let length = format!("\r\ncontent-length: {}\r\n", body.len());
        assert!(head.contains(&length), "{answer}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert!(
            body["error"]
                .as_str()
                .unwrap()
                .starts_with("the head of the request"),
            "{answer}"
        );
    }
}

//! Connections for a benchmark, against a server that answers bytes.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::time::Duration;

use bytes::Bytes;
use packhorse_client::{Authorities, ExchangeError, InferenceClient, LoadConnection};
use packhorse_cluster::Shape;
use packhorse_protocol::{Form, RequestMessage, Tensor};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// An input of 2 MiB, which no socket takes at once.
fn request() -> RequestMessage {
    let values: Vec<f32> = (0..524_288_u32).map(|i| i as f32).collect();
    let shape = Shape::new(&[1, 524_288]).unwrap();
    RequestMessage {
        inputs: vec![Tensor::from_values("x", shape, &values).unwrap()],
        output_form: Some(Form::Binary),
        timeout: Some(Duration::from_millis(250)),
        ..RequestMessage::default()
    }
}

fn connection(listener: &TcpListener) -> (InferenceClient, LoadConnection) {
    let url = format!("http://{}/proxy", listener.local_addr().unwrap());
    let client = InferenceClient::new(url.parse().unwrap(), &Authorities::Machine).unwrap();
    let connection = client.load_connection().unwrap();
    (client, connection)
}

/// Reads a request and returns its head and its body.
async fn read_request(stream: &mut TcpStream) -> (String, Bytes) {
    let mut bytes = Vec::new();
    loop {
        stream.read_buf(&mut bytes).await.unwrap();
        let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.unwrap().parse().unwrap();
        while bytes.len() < end + 4 + length {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
        }
        return (head, Bytes::from(bytes).slice(end + 4..));
    }
}

#[tokio::test]
async fn the_same_request_is_sent_again_on_one_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, mut connection) = connection(&listener);
    let name = "m".parse().unwrap();
    let encoded = client.encode(&name, None, &request(), true).unwrap();
    let expected = request().encode().unwrap();
    let header_length = expected.header_length().unwrap();
    let body = expected.into_body().to_bytes();
    assert_eq!(encoded.body_len(), body.len());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for i in 0..3_usize {
            let (head, received) = read_request(&mut stream).await;
            let lines: Vec<&str> = head.lines().collect();
            assert_eq!(lines[0], "POST /proxy/v2/models/m/infer HTTP/1.1");
            let length = format!("inference-header-content-length: {header_length}");
            assert!(lines.contains(&length.as_str()), "{head}");
            assert!(lines.contains(&"x-packhorse-stages: 1"), "{head}");
            assert_eq!(received, body);
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}",
                i * 40_000,
                "y".repeat(i * 40_000)
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    for i in 0..3_usize {
        let head = connection.exchange(&encoded).await.unwrap();
        assert_eq!((head.status, connection.body().len()), (200, i * 40_000));
    }
    server.await.unwrap();
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_replaced_and_a_new_one_is_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, mut connection) = connection(&listener);
    let name = "m".parse().unwrap();
    let encoded = client
        .encode(&name, Some("2".parse().unwrap()), &request(), false)
        .unwrap();
    let server = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (head, _) = read_request(&mut stream).await;
            assert!(
                head.starts_with("POST /proxy/v2/models/m/versions/2/infer "),
                "{head}"
            );
            assert!(!head.contains("x-packhorse-stages"), "{head}");
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        // The third connection ends without an answer.
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
    });
    for _ in 0..2 {
        assert_eq!(connection.exchange(&encoded).await.unwrap().status, 200);
        assert_eq!(connection.body(), b"ok");
    }
    let broken = connection.exchange(&encoded).await;
    assert!(
        matches!(
            broken,
            Err(ExchangeError::Broken(_) | ExchangeError::Connect(_))
        ),
        "{broken:?}"
    );
    server.await.unwrap();
}

#[tokio::test]
async fn a_refusal_before_the_body_is_sent_is_an_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, mut connection) = connection(&listener);
    let encoded = client
        .encode(&"m".parse().unwrap(), None, &request(), false)
        .unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer =
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        // The client is not reset while it still sends.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let head = connection.exchange(&encoded).await.unwrap();
    assert_eq!((head.status, head.retry_after), (503, true));
    drop(connection);
    server.await.unwrap();
}

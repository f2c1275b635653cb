//! A client of gRPC whose messages are bytes, so that it can send what no client of the protocol would.

use std::{convert::Infallible, net::SocketAddr};

use axum::body::Body;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http2::{SendRequest, handshake},
    http::HeaderMap,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use packhorse_grpc::messages::inference::{
    ModelInferRequest, ModelStreamInferResponse, model_infer_request::InferInputTensor,
};
use prost::Message as _;
use tokio::{
    io::AsyncWriteExt as _,
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinHandle,
};

use super::within;

/// The call with one request.
pub(crate) const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
/// The call with a stream of requests.
pub(crate) const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The codes of gRPC that the tests know.
pub(crate) const OK: &str = "0";
pub(crate) const INVALID_ARGUMENT: &str = "3";
pub(crate) const DEADLINE_EXCEEDED: &str = "4";
pub(crate) const PERMISSION_DENIED: &str = "7";
pub(crate) const RESOURCE_EXHAUSTED: &str = "8";
pub(crate) const UNAVAILABLE: &str = "14";

/// A client on one connection.
#[derive(Clone)]
pub(crate) struct GrpcClient {
    sender: SendRequest<Body>,
}

/// A call that has begun.
pub(crate) struct Call {
    messages: Option<UnboundedSender<Bytes>>,
    response: JoinHandle<Result<Response<Incoming>, hyper::Error>>,
    head: HeaderMap,
    answer: Option<Incoming>,
    received: BytesMut,
    trailers: HeaderMap,
}

impl GrpcClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let shaken = handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = within("a handshake", shaken).await.unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    /// Begins a call with this metadata.
    pub(crate) fn begin(&self, path: &str, metadata: &[(&str, &str)]) -> Call {
        let (messages, mut receiver) = unbounded_channel::<Bytes>();
        let body = stream::poll_fn(move |context| receiver.poll_recv(context));
        let body = futures_util::StreamExt::map(body, Ok::<_, Infallible>);
        let mut request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in metadata {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from_stream(body)).unwrap();
        let mut sender = self.sender.clone();
        let response = tokio::spawn(async move {
            sender.ready().await?;
            sender.send_request(request).await
        });
        Call {
            messages: Some(messages),
            response,
            head: HeaderMap::new(),
            answer: None,
            received: BytesMut::new(),
            trailers: HeaderMap::new(),
        }
    }

    /// Sends one message, and returns the code of the answer.
    pub(crate) async fn code(
        &self,
        path: &str,
        metadata: &[(&str, &str)],
        message: &[u8],
    ) -> String {
        let mut call = self.begin(path, metadata);
        call.send(&frame(0, message));
        call.finish();
        call.code().await
    }
}

impl Call {
    /// Sends bytes, if the call has not ended.
    pub(crate) fn send(&self, bytes: &[u8]) {
        let messages = self.messages.as_ref().expect("it is not finished");
        let _ = messages.send(Bytes::copy_from_slice(bytes));
    }

    /// Has the body end.
    pub(crate) fn finish(&mut self) {
        self.messages = None;
    }

    /// Resets the call.
    pub(crate) fn reset(self) {
        self.response.abort();
    }

    /// Waits for the head of the answer.
    pub(crate) async fn read_head(&mut self) {
        let answered = within("the head of an answer", &mut self.response).await;
        let (head, body) = answered.unwrap().unwrap().into_parts();
        self.answer = Some(body);
        // An answer without a message has the status in its head.
        self.trailers = head.headers.clone();
        self.head = head.headers;
    }

    /// Returns a value of the head of the answer, which has come.
    pub(crate) fn head_value(&self, name: &str) -> Option<String> {
        let value = self.head.get(name)?.to_str().ok()?;
        Some(value.to_owned())
    }

    /// Waits for the next message of the answer; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if self.answer.is_none() {
            self.read_head().await;
        }
        loop {
            if let Some((prefix, rest)) = self.received.split_first_chunk::<5>() {
                let length = u32::from_be_bytes(*prefix.last_chunk().unwrap()) as usize;
                if rest.len() >= length {
                    let mut message = self.received.split_to(5 + length);
                    return Some(message.split_off(5).freeze());
                }
            }
            let answer = self.answer.as_mut().unwrap();
            let frame = within("the next part of an answer", answer.frame()).await?;
            match frame.ok()?.into_data() {
                Ok(data) => self.received.put(data),
                Err(frame) => self.trailers = frame.into_trailers().unwrap_or_default(),
            }
        }
    }

    /// Waits for the next answer of a stream of requests.
    pub(crate) async fn next_answer(&mut self) -> ModelStreamInferResponse {
        let message = self.next().await.expect("another answer");
        ModelStreamInferResponse::decode(message).unwrap()
    }

    /// Waits for the end of the answer, and returns its code.
    pub(crate) async fn code(&mut self) -> String {
        self.status().await.0
    }

    /// Waits for the end of the answer, and returns its code and its message.
    pub(crate) async fn status(&mut self) -> (String, String) {
        while self.next().await.is_some() {}
        let text = |name| {
            let value = self.trailers.get(name);
            let value = value.and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        (text("grpc-status"), text("grpc-message"))
    }
}

/// A connection of HTTP/2 on which a test writes frames by itself.
pub(crate) struct RawConnection(TcpStream);

impl RawConnection {
    /// Opens a connection, and sends what comes before the first frame, and settings.
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let settings = raw_frame(4, 0, 0, &[]);
        let begin = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
        stream.write_all(&begin).await.unwrap();
        Self(stream)
    }

    pub(crate) fn split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        self.0.into_split()
    }
}

/// A frame of HTTP/2.
pub(crate) fn raw_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// A message in its frame.
pub(crate) fn frame(flag: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[flag], &length.to_be_bytes()[..], message].concat()
}

/// A request to a model with one input `x` of this shape, all of whose values are the same.
pub(crate) fn infer_request(model: &str, shape: [i64; 2], x: f32) -> ModelInferRequest {
    let values = usize::try_from(shape.iter().product::<i64>()).unwrap();
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "FP32".to_owned(),
            shape: shape.to_vec(),
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![x.to_le_bytes().repeat(values).into()],
        ..ModelInferRequest::default()
    }
}

/// A request whose fields come in another order than usual: the name is the last one.
pub(crate) fn name_last(request: &ModelInferRequest) -> Vec<u8> {
    let name = ModelInferRequest {
        model_name: request.model_name.clone(),
        ..ModelInferRequest::default()
    };
    let nameless = ModelInferRequest {
        model_name: String::new(),
        ..request.clone()
    };
    [nameless.encode_to_vec(), name.encode_to_vec()].concat()
}

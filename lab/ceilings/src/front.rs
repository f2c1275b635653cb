//! The plainest gateway: an HTTP server that passes each body to a worker over one TCP connection, and answers when the worker does.
//!
//! A message to the worker is the length of the body (8 bytes, little-endian) and the body; its answers are 4 bytes each, in the order of
//! the messages.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

use crate::{
    BODY_LIMIT,
    answer::{answer, metadata},
};

/// A body on its way to the worker.
pub(crate) enum Payload {
    /// Memory of its own.
    Fresh(Bytes),
    /// Kept memory, which goes back after it was sent.
    Kept(Vec<u8>),
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Fresh(bytes) => bytes,
            Self::Kept(bytes) => bytes,
        }
    }
}

type Message = (Payload, oneshot::Sender<()>);

/// The state of the server.
#[derive(Clone)]
pub(crate) struct Front {
    messages: mpsc::UnboundedSender<Message>,
    /// The memory that is kept.
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// Connects to the worker and returns the routes.
pub(crate) async fn routes(worker: SocketAddr, kept: bool) -> anyhow::Result<Router> {
    let front = Front::connect(worker).await?;
    let infer = if kept {
        post(pass_kept)
    } else {
        post(pass_fresh)
    };
    Ok(Router::new()
        .route("/v2/models/{model}", get(metadata))
        .route("/v2/models/{model}/infer", infer)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(front))
}

async fn pass_fresh(State(front): State<Front>, headers: HeaderMap, body: Bytes) -> Response {
    front.answer(&headers, Payload::Fresh(body)).await
}

async fn pass_kept(State(front): State<Front>, headers: HeaderMap, mut body: Body) -> Response {
    let mut memory = lock(&front.kept).pop().unwrap_or_default();
    memory.clear();
    while let Some(frame) = body.frame().await {
        let chunk = frame.ok().and_then(|frame| frame.into_data().ok());
        match chunk {
            Some(chunk) if memory.len() + chunk.len() <= BODY_LIMIT => {
                memory.extend_from_slice(&chunk);
            }
            _ => return StatusCode::BAD_REQUEST.into_response(),
        }
    }
    front.answer(&headers, Payload::Kept(memory)).await
}

impl Front {
    /// Connects to the worker.
    pub(crate) async fn connect(worker: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(worker)
            .await
            .context("connect to the worker")?;
        stream.set_nodelay(true).context("connect to the worker")?;
        let (read, write) = stream.into_split();
        let (messages, to_send) = mpsc::unbounded_channel();
        let (sent, to_answer) = mpsc::unbounded_channel();
        let front = Self {
            messages,
            kept: Arc::default(),
        };
        tokio::spawn(send(write, to_send, sent, Arc::clone(&front.kept)));
        tokio::spawn(receive(read, to_answer));
        Ok(front)
    }

    /// Passes a body to the worker. Returns true when the worker has answered, and false if it has gone.
    pub(crate) async fn pass(&self, payload: Payload) -> bool {
        let (sender, answered) = oneshot::channel();
        self.messages.send((payload, sender)).is_ok() && answered.await.is_ok()
    }

    async fn answer(&self, headers: &HeaderMap, payload: Payload) -> Response {
        if self.pass(payload).await {
            answer(headers)
        } else {
            StatusCode::BAD_GATEWAY.into_response()
        }
    }
}

/// Sends messages one after the other, and passes their senders on in the same order.
async fn send(
    mut stream: OwnedWriteHalf,
    mut messages: mpsc::UnboundedReceiver<Message>,
    sent: mpsc::UnboundedSender<oneshot::Sender<()>>,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
) {
    while let Some((payload, answer)) = messages.recv().await {
        if sent.send(answer).is_err() || write(&mut stream, payload.as_ref()).await.is_err() {
            return;
        }
        if let Payload::Kept(memory) = payload {
            lock(&kept).push(memory);
        }
    }
}

async fn write(stream: &mut OwnedWriteHalf, payload: &[u8]) -> io::Result<()> {
    let head = (payload.len() as u64).to_le_bytes();
    let mut both = bytes::Buf::chain(&head[..], payload);
    stream.write_all_buf(&mut both).await
}

async fn receive(
    stream: OwnedReadHalf,
    mut to_answer: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
) {
    let mut stream = BufReader::new(stream);
    let mut waiting = VecDeque::new();
    while stream.read_u32_le().await.is_ok() {
        while let Ok(sender) = to_answer.try_recv() {
            waiting.push_back(sender);
        }
        if let Some(sender) = waiting.pop_front() {
            // The client may have gone.
            let _: Result<(), ()> = sender.send(());
        }
    }
}

fn lock(kept: &Mutex<Vec<Vec<u8>>>) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

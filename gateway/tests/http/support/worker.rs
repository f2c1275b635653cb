//! A scripted worker: it speaks the worker protocol, and the test answers its batches.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use packhorse_cluster::{Datatype, Shape};
use packhorse_protocol::Element;
use packhorse_wire::{
    BatchHeader, BatchId, Decoder, FailureHeader, FailureKind, Features, Hello, LinkSecret,
    MAX_PAYLOAD, ResultHeader, ServerHandshake, ServerStep, StageDurations, TensorHeader,
    ToGateway, ToWorker, WorkerIdentity,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex, mpsc},
    task::{JoinHandle, JoinSet},
};

use super::within;

/// The stage times that the worker reports of every batch.
pub(crate) const STAGES: StageDurations = StageDurations {
    receive: Duration::from_micros(10),
    queue_wait: Duration::from_micros(20),
    copy_in: Duration::from_micros(100),
    compute: Duration::from_millis(1),
    copy_out: Duration::from_micros(200),
};

/// The computation of a batch's outputs.
pub(crate) type Compute = fn(&Batch) -> Vec<(TensorHeader, Vec<u8>)>;

pub(crate) struct Worker {
    pub(crate) address: SocketAddr,
    batches: Mutex<mpsc::UnboundedReceiver<Batch>>,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

/// A batch that was sent to the worker. Not answered before the test says so.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) header: BatchHeader,
    pub(crate) payload: Vec<u8>,
    connection: Arc<Mutex<OwnedWriteHalf>>,
}

impl Worker {
    pub(crate) async fn start(identity: WorkerIdentity, secret: LinkSecret) -> Self {
        Self::listen(
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            identity,
            secret,
        )
    }

    fn listen(listener: TcpListener, identity: WorkerIdentity, secret: LinkSecret) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, batches) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            // Ending this task ends the connections with it.
            let mut serving = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, SeqCst);
                serving.spawn(serve(stream, identity, secret.clone(), sender.clone()));
            }
        });
        Self {
            address,
            batches: Mutex::new(batches),
            connections,
            accepting,
        }
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// The next batch that it is sent.
    pub(crate) async fn batch(&self) -> Batch {
        let mut batches = self.batches.lock().await;
        within("a batch", batches.recv())
            .await
            .expect("the worker runs")
    }

    /// Returns true if there is a batch that the test has not taken yet.
    pub(crate) async fn has_batch(&self) -> bool {
        !self.batches.lock().await.is_empty()
    }

    /// Answers every batch from now on with the result of `compute`.
    pub(crate) fn answer_all(
        self: &Arc<Self>,
        compute: impl Fn(&Batch) -> Vec<(TensorHeader, Vec<u8>)> + Send + 'static,
    ) {
        let worker = Arc::clone(self);
        tokio::spawn(async move {
            while let Some(batch) = worker.batches.lock().await.recv().await {
                let outputs = compute(&batch);
                batch.answer(outputs).await;
            }
        });
    }

    /// Closes the listener and the connections, like a process that dies.
    pub(crate) fn kill(&self) {
        self.accepting.abort();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Batch {
    /// The bytes of an input.
    pub(crate) fn input<T: Element>(&self, index: usize) -> Vec<T> {
        let length = |header: &TensorHeader| header.byte_len() as usize;
        let start = self.header.inputs[..index].iter().map(length).sum();
        let end: usize = start + length(&self.header.inputs[index]);
        self.payload[start..end]
            .chunks_exact(T::WIDTH)
            .map(T::from_bytes)
            .collect()
    }

    pub(crate) async fn answer(&self, outputs: Vec<(TensorHeader, Vec<u8>)>) {
        self.answer_as(self.header.id, outputs).await;
    }

    /// Answers with another batch id.
    pub(crate) async fn answer_as(&self, id: BatchId, outputs: Vec<(TensorHeader, Vec<u8>)>) {
        let (headers, payload): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
        self.send(
            &ToGateway::Result(ResultHeader {
                id,
                outputs: headers,
                stages: STAGES,
            }),
            &payload.concat(),
        )
        .await;
    }

    pub(crate) async fn fail(&self, kind: FailureKind, message: &str) {
        let failure = FailureHeader {
            id: self.header.id,
            kind,
            message: message.to_owned(),
        };
        self.send(&ToGateway::Failure(failure), &[]).await;
    }

    /// Announces that the worker drains.
    pub(crate) async fn drain(&self) {
        self.send(&ToGateway::Draining, &[]).await;
    }

    async fn send(&self, message: &ToGateway, payload: &[u8]) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes.extend_from_slice(payload);
        // Some tests are about gateways that no longer listen.
        let _ = self.connection.lock().await.write_all(&bytes).await;
    }
}

/// An output of this shape.
pub(crate) fn output<T: Element>(shape: &[i64], values: &[T]) -> (TensorHeader, Vec<u8>) {
    let header = TensorHeader::new(T::DATATYPE, Shape::new(shape).unwrap()).unwrap();
    let mut bytes = Vec::new();
    for value in values {
        value.append_to(&mut bytes);
    }
    (header, bytes)
}

/// Computes the outputs of the model `double`: `y = 2 x`.
pub(crate) fn double(batch: &Batch) -> Vec<(TensorHeader, Vec<u8>)> {
    let header = batch.header.inputs[0].clone();
    assert_eq!(header.datatype(), Datatype::Fp32);
    let dims: Vec<i64> = header
        .shape()
        .dims()
        .iter()
        .map(|dim| dim.cast_signed())
        .collect();
    let doubled: Vec<f32> = batch.input::<f32>(0).iter().map(|x| 2.0 * x).collect();
    vec![output(&dims, &doubled)]
}

async fn serve(
    stream: TcpStream,
    identity: WorkerIdentity,
    secret: LinkSecret,
    batches: mpsc::UnboundedSender<Batch>,
) {
    stream.set_nodelay(true).unwrap();
    let (mut read, write) = stream.into_split();
    let connection = Arc::new(Mutex::new(write));
    let mut decoder = Decoder::<ToWorker>::new(MAX_PAYLOAD);
    let mut handshake = ServerHandshake::new(secret, Hello::new(Features::NONE, [7; 32]), identity);
    loop {
        let Some(message) = next(&mut read, &mut decoder).await else {
            return;
        };
        if let ToWorker::Batch(header) = message {
            let length = header
                .inputs
                .iter()
                .map(TensorHeader::byte_len)
                .sum::<u64>();
            let mut payload = vec![0; length as usize];
            if read.read_exact(&mut payload).await.is_err() {
                return;
            }
            let _ = batches.send(Batch {
                header,
                payload,
                connection: Arc::clone(&connection),
            });
            continue;
        }
        let answer = match handshake.handle(&message) {
            Ok(ServerStep::Send(answer) | ServerStep::Accept(answer, _)) => answer,
            Err(error) => ToGateway::Close(error.to_string()),
        };
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        if connection.lock().await.write_all(&bytes).await.is_err()
            || matches!(answer, ToGateway::Close(_))
        {
            return;
        }
    }
}

/// Reads byte by byte, so that nothing of a payload is taken with the message before it.
async fn next(read: &mut OwnedReadHalf, decoder: &mut Decoder<ToWorker>) -> Option<ToWorker> {
    loop {
        let byte = [read.read_u8().await.ok()?];
        if let Some(message) = decoder.feed(&mut &byte[..]).unwrap() {
            return Some(message);
        }
    }
}

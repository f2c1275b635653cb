//! A simple implementation of the gateway's side of a link.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
};

use packhorse_cluster::{Datatype, Shape};
#[cfg(feature = "torch")]
use packhorse_wire::WeightsReport;
use packhorse_wire::{
    BatchHeader, BatchId, ClientHandshake, ClientStep, Decoder, FailureHeader, Features,
    HandshakeError, Hello, LinkSecret, MAX_PAYLOAD, ResultHeader, TensorHeader, ToGateway,
    ToWorker, WorkerIdentity,
};
use packhorse_worker_agent::handoff::ServeTask;

use crate::process::LIMIT;

pub(crate) struct Link {
    stream: TcpStream,
    decoder: Decoder<ToGateway>,
}

impl Link {
    /// Connects without a handshake.
    pub(crate) fn raw(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let decoder = Decoder::new(MAX_PAYLOAD);
        Self { stream, decoder }
    }

    pub(crate) fn connect(
        address: SocketAddr,
        task: &ServeTask,
        secret: &[u8],
    ) -> Result<Self, HandshakeError> {
        Self::shake_hands(address, task, secret, Features::NONE)
    }

    /// Connects as a gateway that decides about weights. Also returns the first report on them.
    #[cfg(feature = "torch")]
    pub(crate) fn connect_deciding(address: SocketAddr, task: &ServeTask) -> (Self, WeightsReport) {
        let mut link = Self::shake_hands(address, task, b"", Features::RESIDENCY).unwrap();
        match link.message() {
            Some(ToGateway::Weights(report)) => (link, report),
            other => panic!("{other:?}"),
        }
    }

    fn shake_hands(
        address: SocketAddr,
        task: &ServeTask,
        secret: &[u8],
        features: Features,
    ) -> Result<Self, HandshakeError> {
        let mut link = Self::raw(address);
        let identity = WorkerIdentity {
            replica: task.replica,
            artifact: task.execution.program.artifact,
            batch_size: task.batch_size,
        };
        let secret = LinkSecret::from_file_content(secret);
        let mut handshake = ClientHandshake::new(secret, Hello::new(features, [7; 32]), identity);
        link.send_message(&handshake.hello());
        loop {
            let message = link.message().expect("an answer");
            match handshake.handle(message)? {
                ClientStep::Send(message) => link.send_message(&message),
                ClientStep::Accepted(_) => return Ok(link),
            }
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn send_message(&mut self, message: &ToWorker) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.write(&bytes);
    }

    /// Sends a batch in one piece.
    pub(crate) fn send(&mut self, id: u64, rows: u32, inputs: &[Tensor]) {
        let bytes = batch_bytes(id, rows, inputs);
        self.write(&bytes);
    }

    /// Returns the same connection for another thread that sends.
    pub(crate) fn clone_for_sending(&self) -> Self {
        let stream = self.stream.try_clone().unwrap();
        let decoder = Decoder::new(0);
        Self { stream, decoder }
    }

    /// Ends the sending side of the connection.
    pub(crate) fn finish(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Receives the next message; `None` if the worker closed the connection.
    pub(crate) fn message(&mut self) -> Option<ToGateway> {
        loop {
            let mut byte = [0];
            if self.stream.read(&mut byte).unwrap() == 0 {
                return None;
            }
            if let Some(message) = self.decoder.feed(&mut &byte[..]).unwrap() {
                return Some(message);
            }
        }
    }

    pub(crate) fn result(&mut self) -> (ResultHeader, Vec<Tensor>) {
        match self.message() {
            Some(ToGateway::Result(header)) => {
                let outputs = self.outputs_of(&header);
                (header, outputs)
            }
            other => panic!("expected a result, got {other:?}"),
        }
    }

    /// Receives the outputs after a result's header.
    pub(crate) fn outputs_of(&mut self, header: &ResultHeader) -> Vec<Tensor> {
        header
            .outputs
            .iter()
            .map(|output| {
                let mut bytes = vec![0; usize::try_from(output.byte_len()).unwrap()];
                self.stream.read_exact(&mut bytes).unwrap();
                Tensor {
                    header: output.clone(),
                    bytes,
                }
            })
            .collect()
    }

    pub(crate) fn failure(&mut self) -> FailureHeader {
        match self.message() {
            Some(ToGateway::Failure(failure)) => failure,
            other => panic!("expected a failure, got {other:?}"),
        }
    }

    /// Receives the reason for which the worker closes the connection, and the close.
    pub(crate) fn close_reason(&mut self) -> String {
        let reason = match self.message() {
            Some(ToGateway::Close(reason)) => reason,
            other => panic!("expected a reason, got {other:?}"),
        };
        assert_eq!(self.message(), None);
        reason
    }
}

pub(crate) fn batch_bytes(id: u64, rows: u32, inputs: &[Tensor]) -> Vec<u8> {
    let header = BatchHeader {
        id: BatchId(id),
        rows,
        inputs: inputs.iter().map(|input| input.header.clone()).collect(),
    };
    let mut bytes = Vec::new();
    ToWorker::Batch(header).encode(&mut bytes);
    for input in inputs {
        bytes.extend_from_slice(&input.bytes);
    }
    bytes
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) header: TensorHeader,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn new(datatype: Datatype, shape: &[i64], bytes: Vec<u8>) -> Self {
        let header = TensorHeader::new(datatype, Shape::new(shape).unwrap()).unwrap();
        assert_eq!(header.byte_len(), bytes.len() as u64);
        Self { header, bytes }
    }

    pub(crate) fn fp32(shape: &[i64], values: &[f32]) -> Self {
        let bytes = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        Self::new(Datatype::Fp32, shape, bytes)
    }
}

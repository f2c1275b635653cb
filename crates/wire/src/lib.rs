//! What gateway and worker say to each other over one TCP connection, on byte slices: no socket, no clock, no randomness.
//!
//! Every message is a frame: a header of [`HEADER_LEN`] bytes, metadata with a fixed layout, and for batches and results the
//! tensors' bytes, back to back in the order of their [`TensorHeader`]s. All numbers are little-endian.
//!
//! - Sending: [`ToWorker::encode`] and [`ToGateway::encode`] write header and metadata; the tensors' bytes follow from
//!   wherever they are, so that one vectored write sends a batch without copying it.
//! - Receiving: a [`Decoder`] takes bytes as they come and yields the message once header and metadata are there; the
//!   caller then reads [`ToWorker::payload_len`] bytes straight to where the tensors shall lie, and goes on with the decoder.
//!   Its lengths are checked before anything is allocated.
//! - A connection begins with a handshake, [`ClientHandshake`] at the gateway and [`ServerHandshake`] at the worker, in which
//!   each proves that it knows the link's secret.
//!
//! ```text
//! gateway                          worker
//!   | -- Hello ---------------------> |   nonce
//!   | <------------------ Challenge - |   nonce, proof, who I am
//!   | -- Proof ---------------------> |
//!   | <--------------------- Accept - |
//!   | -- Batch, tensors ------------> |   any number, before answers or between them
//!   | <----- Result, tensors, or ---- |   exactly one of the two per batch, in any order
//!   | <-------------------- Failure - |
//!   | <------------------- Draining - |   send me no more; the gateway shuts down its sending side,
//!   | <----------- what is in flight- |   and the worker answers what it has before it closes
//! ```
//! In place of any message the worker may say `Close` with a reason, and close the connection.

mod codec;
mod decoder;
mod frame;
mod handshake;
mod message;

pub use decoder::{Decoder, Incoming};
pub use frame::{DecodeError, HEADER_LEN, MAX_METADATA, VERSION};
pub use handshake::{
    ClientHandshake, ClientStep, HandshakeError, LinkSecret, Nonce, Proof, ServerHandshake,
    ServerStep, WorkerIdentity,
};
pub use message::{
    BatchHeader, BatchId, Challenge, FailureHeader, FailureKind, MAX_TENSORS, MAX_TEXT,
    ResultHeader, StageDurations, TensorHeader, ToGateway, ToWorker, UnsizedDatatype,
};

/// The most tensor bytes a worker takes with one batch and a gateway with one result: 1 GiB. Whoever forms batches keeps
/// below it.
pub const MAX_PAYLOAD: u64 = 1 << 30;

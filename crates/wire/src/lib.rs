//! The protocol between gateway and worker over one connection, on byte slices: no socket, no clock, no randomness.
//!
//! Every message is a frame: a header of [`HEADER_LEN`] bytes, metadata with a fixed layout, and for batches and results the
//! tensors' bytes, back to back in the order of their [`TensorHeader`]s. All numbers are little-endian.
//!
//! - Sending: [`ToWorker::encode`] and [`ToGateway::encode`] write header and metadata; the tensors' bytes are sent
//!   from where they are, so that one vectored write sends a batch without copying it.
//! - Receiving: a [`Decoder`] takes bytes as they come and yields the message once header and metadata are there; the
//!   caller then reads [`ToWorker::payload_len`] bytes to their final place in memory, and continues with the decoder.
//!   The decoder checks lengths before it allocates memory.
//! - A connection begins with a handshake, [`ClientHandshake`] at the gateway and [`ServerHandshake`] at the worker, in which
//!   each side proves that it has the link's secret. The highest version of the protocol that both speak counts; without one the
//!   worker closes the connection and says which versions each side speaks.
//!
//! ```text
//! gateway                          worker
//!   | -- Hello ---------------------> |   versions, features, nonce
//!   | <------------------ Challenge - |   versions, features, nonce, proof, identity
//!   | -- Proof ---------------------> |
//!   | <--------------------- Accept - |
//!   | -- Batch, tensors ------------> |   any number, before answers or between them
//!   | <----- Result, tensors, or ---- |   exactly one of the two per batch, in any order
//!   | <-------------------- Failure - |
//!   | <------------------- Draining - |   no more batches; the gateway shuts down its sending side,
//!   | <---- answers of those in flight|   and the worker answers the rest before it closes
//! ```
//!
//! On one host the connection begins on a Unix socket. If both hellos have [`Features::SHARED_MEMORY`], each side passes its memory's descriptor
//! after `Accept`, the gateway first, with the worker's ends of two pipes. From then on messages go through these, and the socket is closed. The
//! gateway makes both pipes, so that nobody else can change how its ends behave. A payload is in line as above, or in its sender's memory:
//!
//! ```text
//! gateway                          worker
//!   | -- Memory + descriptors ------> |   the gateway's memory, for inputs; the ends for batches and for answers
//!   | <------- Memory + descriptor -- |   the worker's memory, for outputs
//!   | -- SharedBatch ---------------> |   the ranges of the inputs: untouched until the answer
//!   | <--------------- SharedResult - |   the ranges of the outputs: untouched until the release
//!   | -- Release -------------------> |   exactly one per SharedResult, at any time after it
//! ```
//!
//! If both hellos have [`Features::RESIDENCY`], the worker runs many programs, whose weights are not all on the device, and the gateway decides whose are.
//! The first report follows `Accept` at once:
//!
//! ```text
//! gateway                          worker
//!   | <-------------------- Weights - |   where the weights are; again whenever that changes
//!   | -- Load, or Unload -----------> |   any number, before batches or between them; an unload says whose load follows
//!   | <-------------------- Weights - |   after each of them
//! ```
//! In place of any message the worker may send `Close` with a reason, and close the connection.

mod cluster_proof;
mod codec;
mod decoder;
mod error;
mod frame;
mod handshake;
mod hello;
mod identity;
mod limits;
mod message;
mod ranges;
mod tensor;

pub use cluster_proof::ClusterKey;
pub use decoder::Decoder;
pub use error::DecodeError;
pub use frame::{BatchId, HEADER_LEN};
pub use handshake::{
    ClientHandshake, ClientStep, HandshakeError, LinkSecret, ServerHandshake, ServerStep,
};
pub use hello::{Agreement, Features, Hello, VersionRange};
pub use identity::{Nonce, Proof, WorkerIdentity};
pub use limits::{FRAME_VERSION, MAX_METADATA, MAX_PAYLOAD, MAX_RANGES, MAX_TENSORS, MAX_TEXT};
pub use message::{
    BatchHeader, Challenge, FailureHeader, FailureKind, Incoming, ResultHeader, StageDurations,
    ToGateway, ToWorker, WeightsPlace, WeightsReport,
};
pub use ranges::ByteRange;
pub use tensor::{TensorHeader, UnsizedDatatype};

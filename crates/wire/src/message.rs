//! The messages, one enum per direction.

use std::time::Duration;

use packhorse_cluster::{ArtifactDigest, Datatype, Generation, Program, ReplicaId, Shape};

use crate::{
    codec::{Reader, put_duration, put_tensors, put_text},
    decoder::sealed::Parse,
    frame::{DecodeError, FrameHeader, HEADER_LEN},
    handshake::{Nonce, Proof, WorkerIdentity},
};

/// The most tensors in one message.
pub const MAX_TENSORS: usize = Program::MAX_TENSORS;
/// The most bytes of a reason or failure message; longer ones are cut when they are sent.
pub const MAX_TEXT: usize = 1024;

/// A batch within its connection: the gateway numbers them, the worker repeats the number in its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Datatype and shape of one tensor of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHeader {
    datatype: Datatype,
    shape: Shape,
    byte_len: u64,
}

/// A datatype whose elements have no fixed width, and which therefore never reaches a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("elements of {0} have no fixed width")]
pub struct UnsizedDatatype(pub Datatype);

impl TensorHeader {
    /// A tensor of this datatype and shape.
    ///
    /// # Errors
    /// `BYTES` has no fixed width and no place in a worker.
    pub fn new(datatype: Datatype, shape: Shape) -> Result<Self, UnsizedDatatype> {
        let width = datatype.width().ok_or(UnsizedDatatype(datatype))?;
        // At most 2^40 elements of 8 bytes: far from overflow, also summed over all tensors of a message.
        let byte_len = shape.elements() * width as u64;
        Ok(Self {
            datatype,
            shape,
            byte_len,
        })
    }

    /// The type of its elements.
    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// Its dimensions, the batch first where there is one.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How many bytes its elements take in the payload: little-endian, row-major, without gaps.
    pub fn byte_len(&self) -> u64 {
        self.byte_len
    }
}

/// A batch for the worker. Its payload is the inputs' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Repeated in the answer.
    pub id: BatchId,
    /// How many rows it has: the first dimension of every input, or 1 for a model without a batch dimension.
    pub rows: u32,
    /// In the order of the program's arguments.
    pub inputs: Vec<TensorHeader>,
}

/// How long a batch was in each stage of the worker, measured there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageDurations {
    /// From the batch's header to the last byte of its payload.
    pub receive: Duration,
    /// Waiting behind other batches.
    pub queue_wait: Duration,
    /// From the host's memory to the device's; zero on a CPU.
    pub copy_in: Duration,
    /// In the program.
    pub compute: Duration,
    /// From the device's memory to the host's, and making the outputs contiguous.
    pub copy_out: Duration,
}

/// A batch's outputs. Its payload is the outputs' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultHeader {
    /// Which batch.
    pub id: BatchId,
    /// In the order of the program's results, as declared for the model.
    pub outputs: Vec<TensorHeader>,
    /// How long each stage took.
    pub stages: StageDurations,
}

/// Why a batch has no outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The program threw.
    ModuleThrew,
    /// The program answered another number of outputs, datatype or shape than declared.
    WrongOutput,
    /// The program was still running at the batch limit, or this batch waited behind such a one.
    TimedOut,
    /// There was no memory for the batch.
    OutOfMemory,
}

/// A batch without outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureHeader {
    /// Which batch.
    pub id: BatchId,
    /// What went wrong.
    pub kind: FailureKind,
    /// What went wrong, for people; at most [`MAX_TEXT`] bytes.
    pub message: String,
}

/// The worker's side of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The worker's own nonce.
    pub nonce: Nonce,
    /// That the worker knows the secret.
    pub proof: Proof,
    /// Who the worker is.
    pub identity: WorkerIdentity,
}

/// What a gateway says to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWorker {
    /// Opens the handshake.
    Hello(Nonce),
    /// Answers the worker's challenge.
    Proof(Proof),
    /// Compute this.
    Batch(BatchHeader),
}

/// What a worker says to a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGateway {
    /// Answers [`ToWorker::Hello`].
    Challenge(Box<Challenge>),
    /// The handshake is done; batches are welcome.
    Accept,
    /// A batch's outputs.
    Result(ResultHeader),
    /// A batch without outputs.
    Failure(FailureHeader),
    /// Send no more batches: those in flight are answered, then the connection is closed.
    Draining,
    /// Why the worker closes the connection; at most [`MAX_TEXT`] bytes. In the handshake: why it refuses.
    Close(String),
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const CHALLENGE: u8 = 2;
    pub(super) const PROOF: u8 = 3;
    pub(super) const ACCEPT: u8 = 4;
    pub(super) const BATCH: u8 = 5;
    pub(super) const RESULT: u8 = 6;
    pub(super) const FAILURE: u8 = 7;
    pub(super) const DRAINING: u8 = 8;
    pub(super) const CLOSE: u8 = 9;
}

/// The batch id of messages that are about no batch.
const NO_BATCH: BatchId = BatchId(0);

fn byte_len(tensors: &[TensorHeader]) -> u64 {
    tensors.iter().map(TensorHeader::byte_len).sum()
}

/// Leaves room for a frame's header; the metadata follows, then [`finish_frame`].
fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.resize(start + HEADER_LEN, 0);
    start
}

fn finish_frame(out: &mut [u8], start: usize, kind: u8, batch: BatchId, payload_len: u64) {
    let metadata_len = out.len() - start - HEADER_LEN;
    let header = FrameHeader {
        kind,
        batch,
        metadata_len,
        payload_len,
    };
    out[start..start + HEADER_LEN].copy_from_slice(&header.to_bytes());
}

/// A header's batch id and payload length must be what the message says.
fn check_header(header: &FrameHeader, about_a_batch: bool, needed: u64) -> Result<(), DecodeError> {
    let announced = header.payload_len;
    match (
        about_a_batch || header.batch == NO_BATCH,
        announced == needed,
    ) {
        (true, true) => Ok(()),
        (true, false) => Err(DecodeError::PayloadMismatch { announced, needed }),
        (false, _) => Err(DecodeError::Reserved),
    }
}

impl ToWorker {
    /// Appends header and metadata to `out`. The payload, [`ToWorker::payload_len`] bytes, is the caller's to send.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        let (kind, batch) = match self {
            Self::Hello(nonce) => {
                out.extend_from_slice(nonce);
                (kind::HELLO, NO_BATCH)
            }
            Self::Proof(proof) => {
                out.extend_from_slice(proof);
                (kind::PROOF, NO_BATCH)
            }
            Self::Batch(batch) => {
                out.extend_from_slice(&batch.rows.to_le_bytes());
                put_tensors(out, &batch.inputs);
                (kind::BATCH, batch.id)
            }
        };
        finish_frame(out, start, kind, batch, self.payload_len());
    }

    /// How many bytes of tensors follow the metadata.
    pub fn payload_len(&self) -> u64 {
        match self {
            Self::Hello(_) | Self::Proof(_) => 0,
            Self::Batch(batch) => byte_len(&batch.inputs),
        }
    }
}

impl Parse for ToWorker {
    fn knows(kind: u8) -> bool {
        matches!(kind, kind::HELLO | kind::PROOF | kind::BATCH)
    }

    fn parse(header: &FrameHeader, metadata: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(metadata);
        let message = match header.kind {
            kind::HELLO => Self::Hello(reader.array()?),
            kind::PROOF => Self::Proof(reader.array()?),
            kind::BATCH => Self::Batch(BatchHeader {
                id: header.batch,
                rows: reader.u32()?,
                inputs: reader.tensors()?,
            }),
            unknown => return Err(DecodeError::Kind(unknown)),
        };
        reader.finish()?;
        let about_a_batch = matches!(message, Self::Batch(_));
        check_header(header, about_a_batch, message.payload_len())?;
        Ok(message)
    }
}

impl ToGateway {
    /// Appends header and metadata to `out`. The payload, [`ToGateway::payload_len`] bytes, is the caller's to send.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        let (kind, batch) = match self {
            Self::Challenge(challenge) => {
                challenge.put(out);
                (kind::CHALLENGE, NO_BATCH)
            }
            Self::Accept => (kind::ACCEPT, NO_BATCH),
            Self::Result(result) => {
                result.stages.put(out);
                put_tensors(out, &result.outputs);
                (kind::RESULT, result.id)
            }
            Self::Failure(failure) => {
                out.push(failure.kind.code());
                put_text(out, &failure.message);
                (kind::FAILURE, failure.id)
            }
            Self::Draining => (kind::DRAINING, NO_BATCH),
            Self::Close(reason) => {
                put_text(out, reason);
                (kind::CLOSE, NO_BATCH)
            }
        };
        finish_frame(out, start, kind, batch, self.payload_len());
    }

    /// How many bytes of tensors follow the metadata.
    pub fn payload_len(&self) -> u64 {
        match self {
            Self::Result(result) => byte_len(&result.outputs),
            Self::Challenge(_)
            | Self::Accept
            | Self::Failure(_)
            | Self::Draining
            | Self::Close(_) => 0,
        }
    }
}

impl Parse for ToGateway {
    fn knows(kind: u8) -> bool {
        matches!(
            kind,
            kind::CHALLENGE
                | kind::ACCEPT
                | kind::RESULT
                | kind::FAILURE
                | kind::DRAINING
                | kind::CLOSE
        )
    }

    fn parse(header: &FrameHeader, metadata: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(metadata);
        let message = match header.kind {
            kind::CHALLENGE => Self::Challenge(Box::new(Challenge::parse(&mut reader)?)),
            kind::ACCEPT => Self::Accept,
            kind::RESULT => Self::Result(ResultHeader {
                id: header.batch,
                stages: StageDurations::parse(&mut reader)?,
                outputs: reader.tensors()?,
            }),
            kind::FAILURE => {
                let kind = FailureKind::from_code(reader.u8()?)?;
                Self::Failure(FailureHeader {
                    id: header.batch,
                    kind,
                    message: reader.text()?,
                })
            }
            kind::DRAINING => Self::Draining,
            kind::CLOSE => Self::Close(reader.text()?),
            unknown => return Err(DecodeError::Kind(unknown)),
        };
        reader.finish()?;
        let about_a_batch = matches!(message, Self::Result(_) | Self::Failure(_));
        check_header(header, about_a_batch, message.payload_len())?;
        Ok(message)
    }
}

impl Challenge {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.proof);
        self.identity.put(out);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            nonce: reader.array()?,
            proof: reader.array()?,
            identity: WorkerIdentity::parse(reader)?,
        })
    }
}

impl WorkerIdentity {
    /// Also what the handshake's proofs are over.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.replica.generation.0.to_le_bytes());
        out.extend_from_slice(&self.replica.number.to_le_bytes());
        out.extend_from_slice(self.artifact.as_bytes());
        out.extend_from_slice(&self.batch_size.to_le_bytes());
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            replica: ReplicaId {
                generation: Generation(reader.u64()?),
                number: reader.u32()?,
            },
            artifact: ArtifactDigest::from_sha256(reader.array()?),
            batch_size: reader.u32()?,
        })
    }
}

impl StageDurations {
    fn put(&self, out: &mut Vec<u8>) {
        let Self {
            receive,
            queue_wait,
            copy_in,
            compute,
            copy_out,
        } = *self;
        for stage in [receive, queue_wait, copy_in, compute, copy_out] {
            put_duration(out, stage);
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            receive: reader.duration()?,
            queue_wait: reader.duration()?,
            copy_in: reader.duration()?,
            compute: reader.duration()?,
            copy_out: reader.duration()?,
        })
    }
}

impl FailureKind {
    const fn code(self) -> u8 {
        match self {
            Self::ModuleThrew => 1,
            Self::WrongOutput => 2,
            Self::TimedOut => 3,
            Self::OutOfMemory => 4,
        }
    }

    fn from_code(code: u8) -> Result<Self, DecodeError> {
        [
            Self::ModuleThrew,
            Self::WrongOutput,
            Self::TimedOut,
            Self::OutOfMemory,
        ]
        .into_iter()
        .find(|kind| kind.code() == code)
        .ok_or(DecodeError::FailureKind(code))
    }
}

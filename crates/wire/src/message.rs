//! The messages, one enum per direction.

use std::time::Duration;

use packhorse_cluster::ReplicaId;

use crate::{
    codec::{Reader, encode_duration, encode_tensors, encode_text},
    error::DecodeError,
    frame::{BatchId, FrameHeader, HEADER_LEN},
    hello::Hello,
    identity::{Proof, WorkerIdentity, encode_replica, parse_replica},
    ranges::{ByteRange, encode_ranges, parse_ranges},
    tensor::TensorHeader,
};

/// The messages of one direction: [`ToWorker`] or [`ToGateway`].
pub trait Incoming: sealed::Parse {}

impl Incoming for ToWorker {}
impl Incoming for ToGateway {}

pub(crate) mod sealed {
    use super::{DecodeError, FrameHeader};

    pub trait Parse: Sized {
        /// Returns true if messages of this kind go in this direction.
        fn has_kind(kind: u8) -> bool;
        fn parse(
            header: &FrameHeader,
            metadata: &[u8],
            payload_limit: u64,
        ) -> Result<Self, DecodeError>;
    }
}
use sealed::Parse;

/// A batch for the worker. Its payload is the inputs' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The batch's number, repeated in the answer.
    pub id: BatchId,
    /// The number of rows: the first dimension of every input, or 1 for a model without a batch dimension.
    pub rows: u32,
    /// The inputs, in the order of the program's arguments.
    pub inputs: Vec<TensorHeader>,
}

/// The time that a batch spent in each stage of the worker, measured there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageDurations {
    /// The time from the batch's header to the last byte of its payload.
    pub receive: Duration,
    /// The time of waiting behind other batches.
    pub queue_wait: Duration,
    /// The time of copying from the host's memory to the device's; zero on a CPU.
    pub copy_in: Duration,
    /// The time in the program.
    pub compute: Duration,
    /// The time of copying from the device's memory to the host's, and of making the outputs contiguous.
    pub copy_out: Duration,
}

/// The result of a batch. Its payload is the outputs' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultHeader {
    /// The batch's number.
    pub id: BatchId,
    /// The outputs, in the order of the program's results, as declared for the model.
    pub outputs: Vec<TensorHeader>,
    /// The time in each stage.
    pub stages: StageDurations,
}

/// The reason why a batch failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The program threw an exception.
    ModuleThrew,
    /// The program returned another number of outputs, datatype or shape than declared.
    WrongOutput,
    /// The program was still running at the batch's time limit.
    TimedOut,
    /// The memory did not suffice for the batch.
    OutOfMemory,
    /// The batch was not begun: it waited behind one that exceeded its time limit.
    NotBegun,
}

/// The failure of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureHeader {
    /// The batch's number.
    pub id: BatchId,
    /// The kind of failure.
    pub kind: FailureKind,
    /// The details, for people; at most [`crate::MAX_TEXT`] bytes.
    pub message: String,
}

/// The place of a program's weights, and the memory for those of all programs of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightsReport {
    /// The number of [`ToWorker::Load`] and [`ToWorker::Unload`] of this connection that the worker has carried out, as far as it could. A report on
    /// fewer than were sent says nothing about the place of the weights.
    pub orders: u32,
    /// The place of the weights.
    pub place: WeightsPlace,
    /// The bytes that leave the device with the weights; 0 for a program whose weights stay.
    pub bytes: u64,
    /// The bytes of the device that the weights of all programs of the worker may have together.
    pub memory: u64,
    /// The time to copy the weights from memory to the device, as it was measured.
    pub load: Duration,
    /// The time to load the program from its file, as it was measured.
    pub cold_load: Duration,
}

impl WeightsReport {
    /// Returns true if the weights are on the device.
    pub fn is_resident(&self) -> bool {
        self.place == WeightsPlace::Resident
    }
}

/// The place of a program's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsPlace {
    /// In the memory of the host.
    Warm,
    /// On the device.
    Resident,
    /// In the program's file only.
    Cold,
}

/// The worker's answer to [`ToWorker::Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The worker's own hello.
    pub hello: Hello,
    /// The proof that the worker has the secret.
    pub proof: Proof,
    /// The worker's identity.
    pub identity: WorkerIdentity,
}

/// A message from a gateway to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWorker {
    /// Opens the handshake.
    Hello(Hello),
    /// Answers the worker's challenge.
    Proof(Proof),
    /// A batch to compute.
    Batch(BatchHeader),
    /// Names the gateway's memory, of this many bytes, whose descriptor comes with the message.
    Memory(u64),
    /// A batch to compute whose inputs are these ranges of the gateway's memory, one after the other.
    SharedBatch(BatchHeader, Vec<ByteRange>),
    /// Gives the outputs of a [`ToGateway::SharedResult`] back.
    Release(BatchId),
    /// Has the weights brought to the device, after those that come the same way. A batch that comes before they are there waits for them.
    Load,
    /// Has the weights leave the device once no batch uses them. Those of this replica of the same worker, if there is one, come in their place, and do not
    /// leave memory for them.
    Unload(Option<ReplicaId>),
}

/// A message from a worker to a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGateway {
    /// Answers [`ToWorker::Hello`].
    Challenge(Box<Challenge>),
    /// Ends the handshake: the worker takes batches.
    Accept,
    /// The result of a batch.
    Result(ResultHeader),
    /// Names the worker's memory, of this many bytes, whose descriptor comes with the message.
    Memory(u64),
    /// The result of a batch whose outputs are these ranges of the worker's memory, one after the other.
    SharedResult(ResultHeader, Vec<ByteRange>),
    /// The failure of a batch.
    Failure(FailureHeader),
    /// Tells the gateway to send no more batches: those in flight are answered, then the connection is closed.
    Draining,
    /// Says where the weights are: after [`ToGateway::Accept`] and whenever that has changed, if both sides have [`crate::Features::RESIDENCY`].
    Weights(WeightsReport),
    /// The reason why the worker closes the connection or, in the handshake, refuses it; at most [`crate::MAX_TEXT`] bytes.
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
    pub(super) const MEMORY: u8 = 10;
    pub(super) const SHARED_BATCH: u8 = 11;
    pub(super) const SHARED_RESULT: u8 = 12;
    pub(super) const RELEASE: u8 = 13;
    pub(super) const LOAD: u8 = 14;
    pub(super) const UNLOAD: u8 = 15;
    pub(super) const WEIGHTS: u8 = 16;
}

/// The batch id of messages that are about no batch.
const NO_BATCH: BatchId = BatchId(0);

fn byte_len(tensors: &[TensorHeader]) -> u64 {
    tensors.iter().map(TensorHeader::byte_len).sum()
}

/// Reserves the bytes of a frame's header. The caller appends the metadata and calls [`finish_frame`].
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

/// Checks that a header's batch id and payload length agree with its message.
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
    /// Appends header and metadata to `out`. The caller sends the payload of [`ToWorker::payload_len`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        let (kind, batch) = match self {
            Self::Hello(hello) => {
                hello.encode_metadata(out);
                (kind::HELLO, NO_BATCH)
            }
            Self::Proof(proof) => {
                out.extend_from_slice(proof);
                (kind::PROOF, NO_BATCH)
            }
            Self::Batch(batch) => {
                batch.encode_metadata(out);
                (kind::BATCH, batch.id)
            }
            Self::Memory(size) => {
                out.extend_from_slice(&size.to_le_bytes());
                (kind::MEMORY, NO_BATCH)
            }
            Self::SharedBatch(batch, ranges) => {
                batch.encode_metadata(out);
                encode_ranges(out, ranges);
                (kind::SHARED_BATCH, batch.id)
            }
            Self::Release(batch) => (kind::RELEASE, *batch),
            Self::Load => (kind::LOAD, NO_BATCH),
            Self::Unload(wanted) => {
                if let Some(wanted) = wanted {
                    encode_replica(out, *wanted);
                }
                (kind::UNLOAD, NO_BATCH)
            }
        };
        finish_frame(out, start, kind, batch, self.payload_len());
    }

    /// Returns the bytes of tensors that follow the metadata.
    pub fn payload_len(&self) -> u64 {
        match self {
            Self::Batch(batch) => byte_len(&batch.inputs),
            Self::Hello(_)
            | Self::Proof(_)
            | Self::Memory(_)
            | Self::SharedBatch(..)
            | Self::Release(_)
            | Self::Load
            | Self::Unload(_) => 0,
        }
    }
}

impl Parse for ToWorker {
    fn has_kind(kind: u8) -> bool {
        matches!(
            kind,
            kind::HELLO
                | kind::PROOF
                | kind::BATCH
                | kind::MEMORY
                | kind::SHARED_BATCH
                | kind::RELEASE
                | kind::LOAD
                | kind::UNLOAD
        )
    }

    fn parse(
        header: &FrameHeader,
        metadata: &[u8],
        payload_limit: u64,
    ) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(metadata);
        let message = match header.kind {
            kind::HELLO => Self::Hello(Hello::parse(&mut reader)?),
            kind::PROOF => Self::Proof(reader.array()?),
            kind::BATCH => Self::Batch(BatchHeader::parse(header, &mut reader)?),
            kind::MEMORY => Self::Memory(reader.u64()?),
            kind::SHARED_BATCH => {
                let batch = BatchHeader::parse(header, &mut reader)?;
                let needed = byte_len(&batch.inputs);
                let ranges = parse_ranges(&mut reader, needed, payload_limit)?;
                Self::SharedBatch(batch, ranges)
            }
            kind::RELEASE => Self::Release(header.batch),
            kind::LOAD => Self::Load,
            kind::UNLOAD if metadata.is_empty() => Self::Unload(None),
            kind::UNLOAD => Self::Unload(Some(parse_replica(&mut reader)?)),
            unknown => return Err(DecodeError::Kind(unknown)),
        };
        reader.finish()?;
        let about_a_batch = matches!(
            message,
            Self::Batch(_) | Self::SharedBatch(..) | Self::Release(_)
        );
        check_header(header, about_a_batch, message.payload_len())?;
        Ok(message)
    }
}

impl ToGateway {
    /// Appends header and metadata to `out`. The caller sends the payload of [`ToGateway::payload_len`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        let (kind, batch) = match self {
            Self::Challenge(challenge) => {
                challenge.encode_metadata(out);
                (kind::CHALLENGE, NO_BATCH)
            }
            Self::Accept => (kind::ACCEPT, NO_BATCH),
            Self::Result(result) => {
                result.encode_metadata(out);
                (kind::RESULT, result.id)
            }
            Self::Memory(size) => {
                out.extend_from_slice(&size.to_le_bytes());
                (kind::MEMORY, NO_BATCH)
            }
            Self::SharedResult(result, ranges) => {
                result.encode_metadata(out);
                encode_ranges(out, ranges);
                (kind::SHARED_RESULT, result.id)
            }
            Self::Failure(failure) => {
                out.push(failure.kind.code());
                encode_text(out, &failure.message);
                (kind::FAILURE, failure.id)
            }
            Self::Draining => (kind::DRAINING, NO_BATCH),
            Self::Weights(report) => {
                report.encode_metadata(out);
                (kind::WEIGHTS, NO_BATCH)
            }
            Self::Close(reason) => {
                encode_text(out, reason);
                (kind::CLOSE, NO_BATCH)
            }
        };
        finish_frame(out, start, kind, batch, self.payload_len());
    }

    /// Returns the bytes of tensors that follow the metadata.
    pub fn payload_len(&self) -> u64 {
        match self {
            Self::Result(result) => byte_len(&result.outputs),
            Self::Challenge(_)
            | Self::Accept
            | Self::Memory(_)
            | Self::SharedResult(..)
            | Self::Failure(_)
            | Self::Draining
            | Self::Weights(_)
            | Self::Close(_) => 0,
        }
    }
}

impl Parse for ToGateway {
    fn has_kind(kind: u8) -> bool {
        matches!(
            kind,
            kind::CHALLENGE
                | kind::ACCEPT
                | kind::RESULT
                | kind::FAILURE
                | kind::DRAINING
                | kind::WEIGHTS
                | kind::CLOSE
                | kind::MEMORY
                | kind::SHARED_RESULT
        )
    }

    fn parse(
        header: &FrameHeader,
        metadata: &[u8],
        payload_limit: u64,
    ) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(metadata);
        let message = match header.kind {
            kind::CHALLENGE => Self::Challenge(Box::new(Challenge::parse(&mut reader)?)),
            kind::ACCEPT => Self::Accept,
            kind::RESULT => Self::Result(ResultHeader::parse(header, &mut reader)?),
            kind::MEMORY => Self::Memory(reader.u64()?),
            kind::SHARED_RESULT => {
                let result = ResultHeader::parse(header, &mut reader)?;
                let needed = byte_len(&result.outputs);
                let ranges = parse_ranges(&mut reader, needed, payload_limit)?;
                Self::SharedResult(result, ranges)
            }
            kind::FAILURE => {
                let kind = FailureKind::from_code(reader.u8()?)?;
                Self::Failure(FailureHeader {
                    id: header.batch,
                    kind,
                    message: reader.text()?,
                })
            }
            kind::DRAINING => Self::Draining,
            kind::WEIGHTS => Self::Weights(WeightsReport::parse(&mut reader)?),
            kind::CLOSE => Self::Close(reader.text()?),
            unknown => return Err(DecodeError::Kind(unknown)),
        };
        reader.finish()?;
        let about_a_batch = matches!(
            message,
            Self::Result(_) | Self::SharedResult(..) | Self::Failure(_)
        );
        check_header(header, about_a_batch, message.payload_len())?;
        Ok(message)
    }
}

impl WeightsReport {
    fn encode_metadata(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.orders.to_le_bytes());
        out.push(self.place as u8);
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.memory.to_le_bytes());
        encode_duration(out, self.load);
        encode_duration(out, self.cold_load);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            orders: reader.u32()?,
            place: match reader.u8()? {
                0 => WeightsPlace::Warm,
                1 => WeightsPlace::Resident,
                2 => WeightsPlace::Cold,
                _ => return Err(DecodeError::Reserved),
            },
            bytes: reader.u64()?,
            memory: reader.u64()?,
            load: reader.duration()?,
            cold_load: reader.duration()?,
        })
    }
}

impl BatchHeader {
    fn encode_metadata(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rows.to_le_bytes());
        encode_tensors(out, &self.inputs);
    }

    fn parse(header: &FrameHeader, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: header.batch,
            rows: reader.u32()?,
            inputs: reader.tensors()?,
        })
    }
}

impl ResultHeader {
    fn encode_metadata(&self, out: &mut Vec<u8>) {
        self.stages.encode_metadata(out);
        encode_tensors(out, &self.outputs);
    }

    fn parse(header: &FrameHeader, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: header.batch,
            stages: StageDurations::parse(reader)?,
            outputs: reader.tensors()?,
        })
    }
}

impl Challenge {
    fn encode_metadata(&self, out: &mut Vec<u8>) {
        self.hello.encode_metadata(out);
        out.extend_from_slice(&self.proof);
        self.identity.encode_metadata(out);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            hello: Hello::parse(reader)?,
            proof: reader.array()?,
            identity: WorkerIdentity::parse(reader)?,
        })
    }
}

impl StageDurations {
    fn encode_metadata(&self, out: &mut Vec<u8>) {
        let Self {
            receive,
            queue_wait,
            copy_in,
            compute,
            copy_out,
        } = *self;
        for stage in [receive, queue_wait, copy_in, compute, copy_out] {
            encode_duration(out, stage);
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
            Self::NotBegun => 5,
        }
    }

    fn from_code(code: u8) -> Result<Self, DecodeError> {
        [
            Self::ModuleThrew,
            Self::WrongOutput,
            Self::TimedOut,
            Self::OutOfMemory,
            Self::NotBegun,
        ]
        .into_iter()
        .find(|kind| kind.code() == code)
        .ok_or(DecodeError::FailureKind(code))
    }
}

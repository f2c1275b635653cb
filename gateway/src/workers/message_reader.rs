//! The reading of a worker's messages, which any thread may go on with where another has left it.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use packhorse_mapped::OutOfRange;
use packhorse_wire::{
    ByteRange, Decoder, FailureHeader, FailureKind, ResultHeader, TensorHeader, ToGateway,
};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

use super::{
    connection_error::ConnectionError, link_event::LinkEvent, outgoing::Sending,
    shared_memory::SharedMemory, wrong_result::check_result,
};
use crate::printable::printable;

/// The most bytes that are read at a time while waiting for a message.
const READ_AHEAD: usize = 16 << 10;
/// The size of the buffer that smaller payloads share, in bytes.
const SMALL_PAYLOADS: usize = 64 << 10;

/// Reads the worker's messages.
pub(super) struct MessageReader {
    decoder: Decoder<ToGateway>,
    /// The bytes that were read and are not yet decoded.
    read_ahead: BytesMut,
    /// The buffer that payloads are read to. Its memory is used again as soon as no slice of it is in use.
    payloads: BytesMut,
    /// The result whose payload has begun.
    begun: Option<ResultHeader>,
    /// The bytes to come of a payload that is not kept.
    unwanted: u64,
}

impl MessageReader {
    /// Creates a reader that accepts results up to this size.
    pub(super) fn new(payload_limit: u64) -> Self {
        Self {
            decoder: Decoder::new(payload_limit),
            read_ahead: BytesMut::new(),
            payloads: BytesMut::new(),
            begun: None,
            unwanted: 0,
        }
    }

    /// Returns true if bytes were read that belong to no message so far.
    pub(super) fn has_more(&self) -> bool {
        !self.read_ahead.is_empty()
    }

    /// Returns the next message. If it has a payload, the caller must read it before the next message.
    pub(super) async fn message<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
    ) -> Result<ToGateway, ConnectionError> {
        poll_fn(|context| self.poll_message(context, Pin::new(stream))).await
    }

    fn poll_message<R: AsyncRead>(
        &mut self,
        context: &mut Context<'_>,
        mut stream: Pin<&mut R>,
    ) -> Poll<Result<ToGateway, ConnectionError>> {
        loop {
            let mut input = &self.read_ahead[..];
            let message = self.decoder.feed(&mut input)?;
            let taken = self.read_ahead.len() - input.len();
            self.read_ahead.advance(taken);
            if let Some(message) = message {
                return Poll::Ready(Ok(message));
            }
            self.read_ahead.reserve(READ_AHEAD);
            let read = poll_read_buf(stream.as_mut(), context, &mut self.read_ahead);
            match ready!(read) {
                Ok(0) => return Poll::Ready(Err(ConnectionError::Closed)),
                Ok(_) => {}
                // Within TLS a process that ended says no farewell.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Err(ConnectionError::Closed));
                }
                Err(e) => return Poll::Ready(Err(e.into())),
            }
        }
    }

    /// Reads the payload of a result. The decoder has checked its length against the limit.
    fn poll_payload<R: AsyncRead>(
        &mut self,
        context: &mut Context<'_>,
        mut stream: Pin<&mut R>,
        length: usize,
    ) -> Poll<Result<(), ConnectionError>> {
        let missing = length - self.payloads.len();
        let start = self.read_ahead.split_to(missing.min(self.read_ahead.len()));
        self.payloads.extend_from_slice(&start);
        while self.payloads.len() < length {
            let missing = length - self.payloads.len();
            let mut room = (&mut self.payloads).limit(missing);
            if ready!(poll_read_buf(stream.as_mut(), context, &mut room))? == 0 {
                return Poll::Ready(Err(ConnectionError::Closed));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads on to the end of a payload that is not kept.
    fn poll_unwanted<R: AsyncRead>(
        &mut self,
        context: &mut Context<'_>,
        mut stream: Pin<&mut R>,
    ) -> Poll<Result<(), ConnectionError>> {
        while self.unwanted > 0 {
            if self.read_ahead.is_empty() {
                self.read_ahead.reserve(READ_AHEAD);
                let read = poll_read_buf(stream.as_mut(), context, &mut self.read_ahead);
                if ready!(read)? == 0 {
                    return Poll::Ready(Err(ConnectionError::Closed));
                }
            }
            let read = self.read_ahead.len() as u64;
            let taken = self.unwanted.min(read);
            self.read_ahead.advance(taken as usize);
            self.unwanted -= taken;
        }
        Poll::Ready(Ok(()))
    }

    /// Makes room for the payload of a result, and returns its length.
    fn reserve_payload(&mut self, result: &ResultHeader) -> usize {
        let length = payload_len(result) as usize;
        if self.payloads.capacity() < length {
            self.payloads.reserve(length.max(SMALL_PAYLOADS));
        }
        length
    }

    /// Takes the payload of a result, output by output.
    fn take_payload(&mut self, result: &ResultHeader) -> Vec<Bytes> {
        let mut payload = self.payloads.split().freeze();
        let outputs = result.outputs.iter();
        outputs
            .map(|output| payload.split_to(output.byte_len() as usize))
            .collect()
    }

    /// Returns the payload of a result that lies in these ranges of the worker's memory.
    fn shared_payload(
        &mut self,
        memory: &SharedMemory,
        result: &ResultHeader,
        ranges: &[ByteRange],
    ) -> Result<Vec<Bytes>, ConnectionError> {
        self.reserve_payload(result);
        memory
            .copy_result(result.id, ranges, &mut self.payloads)
            .map_err(|OutOfRange| ConnectionError::OutOfRange(result.id.0))?;
        Ok(self.take_payload(result))
    }

    /// Reads the next event.
    pub(super) fn poll_event<R: AsyncRead>(
        &mut self,
        context: &mut Context<'_>,
        mut stream: Pin<&mut R>,
        sending: &Sending,
    ) -> Poll<Result<LinkEvent, ConnectionError>> {
        ready!(self.poll_unwanted(context, stream.as_mut()))?;
        if self.begun.is_none() {
            match ready!(self.poll_message(context, stream.as_mut()))? {
                ToGateway::Result(result) => {
                    // Checked before the payload is read: what cannot be the answer to a batch must not cost its memory.
                    if let Some(failure) = refusal(sending, &result)? {
                        self.unwanted = payload_len(&result);
                        return Poll::Ready(Ok(LinkEvent::BatchFailed(failure)));
                    }
                    self.begun = Some(result);
                }
                ToGateway::SharedResult(result, ranges) => {
                    let shared = sending.shared.as_ref();
                    let memory = shared.ok_or(ConnectionError::UnexpectedMessage)?;
                    if let Some(failure) = refusal(sending, &result)? {
                        memory.give_back(result.id);
                        return Poll::Ready(Ok(LinkEvent::BatchFailed(failure)));
                    }
                    sending.outstanding.remove(result.id)?;
                    let payload = self.shared_payload(memory, &result, &ranges)?;
                    return Poll::Ready(Ok(LinkEvent::BatchComputed(result, payload)));
                }
                ToGateway::Failure(mut failure) => {
                    sending.outstanding.remove(failure.id)?;
                    failure.message = printable(&failure.message);
                    return Poll::Ready(Ok(LinkEvent::BatchFailed(failure)));
                }
                ToGateway::Draining => return Poll::Ready(Ok(LinkEvent::Draining)),
                ToGateway::Weights(report) => return Poll::Ready(Ok(LinkEvent::Weights(report))),
                ToGateway::Close(reason) => {
                    let reason = printable(&reason);
                    return Poll::Ready(Err(ConnectionError::ClosedWithReason(reason)));
                }
                ToGateway::Challenge(_) | ToGateway::Accept | ToGateway::Memory(_) => {
                    return Poll::Ready(Err(ConnectionError::UnexpectedMessage));
                }
            }
        }
        let result = self.begun.take().expect("returned otherwise");
        let length = self.reserve_payload(&result);
        match self.poll_payload(context, stream, length) {
            Poll::Pending => {
                self.begun = Some(result);
                Poll::Pending
            }
            Poll::Ready(read) => {
                read?;
                sending.outstanding.remove(result.id)?;
                let payload = self.take_payload(&result);
                Poll::Ready(Ok(LinkEvent::BatchComputed(result, payload)))
            }
        }
    }
}

fn payload_len(result: &ResultHeader) -> u64 {
    result.outputs.iter().map(TensorHeader::byte_len).sum()
}

/// Returns the failure of a batch whose result is not what the model declares; it is answered by that.
///
/// # Errors
/// There is no such batch.
fn refusal(
    sending: &Sending,
    result: &ResultHeader,
) -> Result<Option<FailureHeader>, ConnectionError> {
    let rows = sending.outstanding.rows(result.id)?;
    let Err(wrong) = check_result(&sending.program, rows, &result.outputs) else {
        return Ok(None);
    };
    sending.outstanding.remove(result.id)?;
    Ok(Some(FailureHeader {
        id: result.id,
        kind: FailureKind::WrongOutput,
        message: wrong.to_string(),
    }))
}

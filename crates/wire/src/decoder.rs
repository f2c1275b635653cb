//! From a stream of bytes to messages.

use std::marker::PhantomData;

use crate::{
    frame::{DecodeError, FrameHeader, HEADER_LEN},
    message::{ToGateway, ToWorker},
};

/// The messages of one direction: [`ToWorker`] or [`ToGateway`].
pub trait Incoming: sealed::Parse {}

impl Incoming for ToWorker {}
impl Incoming for ToGateway {}

pub(crate) mod sealed {
    use super::{DecodeError, FrameHeader};

    pub trait Parse: Sized {
        /// Whether a message of this kind goes in this direction.
        fn knows(kind: u8) -> bool;
        fn parse(header: &FrameHeader, metadata: &[u8]) -> Result<Self, DecodeError>;
    }
}

/// Takes the bytes of one direction of a connection, in whatever pieces they come, and yields its messages.
///
/// A message with a payload is yielded before its payload: the next `payload_len` bytes of the connection are the caller's to
/// take; only what comes after them is for the decoder again. After an error the connection is of no further use.
#[derive(Debug)]
pub struct Decoder<M> {
    payload_limit: u64,
    /// The header and, after it, the metadata, as far as they have come.
    buffer: Vec<u8>,
    /// The header once it is whole.
    header: Option<FrameHeader>,
    messages: PhantomData<fn() -> M>,
}

impl<M: Incoming> Decoder<M> {
    /// For a receiver that takes payloads of at most `payload_limit` bytes.
    pub fn new(payload_limit: u64) -> Self {
        Self {
            payload_limit,
            buffer: Vec::new(),
            header: None,
            messages: PhantomData,
        }
    }

    /// Takes bytes from the front of `input`, and moves it on, until a message is there or `input` is empty. Holds at most
    /// [`HEADER_LEN`] + [`crate::MAX_METADATA`] bytes.
    ///
    /// # Errors
    /// The bytes are no message that this side knows and accepts.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<M>, DecodeError> {
        let header = match self.header {
            Some(header) => header,
            None => match self.feed_header(input)? {
                Some(header) => header,
                None => return Ok(None),
            },
        };
        if !self.fill(input, HEADER_LEN + header.metadata_len) {
            return Ok(None);
        }
        let message = M::parse(&header, &self.buffer[HEADER_LEN..])?;
        self.buffer.clear();
        self.header = None;
        Ok(Some(message))
    }

    /// Whether a message has begun and is not whole: a connection that ends now was cut off.
    pub fn is_within_message(&self) -> bool {
        !self.buffer.is_empty()
    }

    fn feed_header(&mut self, input: &mut &[u8]) -> Result<Option<FrameHeader>, DecodeError> {
        let whole = self.fill(input, HEADER_LEN);
        FrameHeader::check_start(&self.buffer)?;
        if !whole {
            return Ok(None);
        }
        let bytes = self
            .buffer
            .first_chunk()
            .expect("filled up to the header's length");
        let header = FrameHeader::parse(bytes, self.payload_limit)?;
        if !M::knows(header.kind) {
            return Err(DecodeError::Kind(header.kind));
        }
        self.header = Some(header);
        Ok(Some(header))
    }

    /// Fills the buffer up to `length`; false if the input did not suffice.
    fn fill(&mut self, input: &mut &[u8], length: usize) -> bool {
        let missing = length - self.buffer.len();
        let (taken, rest) = input.split_at(missing.min(input.len()));
        self.buffer.extend_from_slice(taken);
        *input = rest;
        self.buffer.len() == length
    }
}

//! The decoder: from a stream of bytes to messages.

use std::marker::PhantomData;

use crate::{
    error::DecodeError,
    frame::{FrameHeader, HEADER_LEN},
    message::Incoming,
};

/// Takes the bytes of one direction of a connection, in pieces of any size, and returns its messages.
///
/// A message with a payload is returned before its payload: the caller takes the next `payload_len` bytes of the connection; only
/// the bytes after them are for the decoder again. After an error the connection is of no further use.
///
/// # Example
/// ```
/// use packhorse_wire::{Decoder, ToGateway};
///
/// let mut sent = Vec::new();
/// ToGateway::Accept.encode(&mut sent);
/// let (first, second) = sent.split_at(5);
/// let mut decoder = Decoder::<ToGateway>::new(1 << 20);
/// assert_eq!(decoder.feed(&mut &first[..]), Ok(None));
/// assert_eq!(decoder.feed(&mut &second[..]), Ok(Some(ToGateway::Accept)));
/// ```
#[derive(Debug)]
pub struct Decoder<M> {
    payload_limit: u64,
    /// The bytes received of the header and, after it, the metadata.
    buffer: Vec<u8>,
    /// The header once it is complete.
    header: Option<FrameHeader>,
    messages: PhantomData<fn() -> M>,
}

impl<M: Incoming> Decoder<M> {
    /// Creates a decoder for a receiver that takes payloads of at most `payload_limit` bytes.
    pub fn new(payload_limit: u64) -> Self {
        Self {
            payload_limit,
            buffer: Vec::new(),
            header: None,
            messages: PhantomData,
        }
    }

    /// Takes bytes from the front of `input`, and moves it on, until a message is complete or `input` is empty. Holds at most
    /// [`HEADER_LEN`] + [`crate::MAX_METADATA`] bytes.
    ///
    /// # Errors
    /// The bytes are no message that this side accepts.
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
        let message = M::parse(&header, &self.buffer[HEADER_LEN..], self.payload_limit)?;
        self.buffer.clear();
        self.header = None;
        Ok(Some(message))
    }

    /// Returns true if a message has begun and is incomplete: a connection that ends now was cut off.
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
        if !M::has_kind(header.kind) {
            return Err(DecodeError::Kind(header.kind));
        }
        self.header = Some(header);
        Ok(Some(header))
    }

    /// Fills the buffer up to `length`. Returns false if the input did not suffice.
    fn fill(&mut self, input: &mut &[u8], length: usize) -> bool {
        let missing = length - self.buffer.len();
        let (taken, rest) = input.split_at(missing.min(input.len()));
        self.buffer.extend_from_slice(taken);
        *input = rest;
        self.buffer.len() == length
    }
}

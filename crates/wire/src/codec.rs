//! The encoding of numbers, texts and tensor headers in a message's metadata.

use std::time::Duration;

use packhorse_cluster::{Datatype, Shape};

use crate::{
    error::DecodeError,
    limits::{MAX_TENSORS, MAX_TEXT},
    tensor::TensorHeader,
};

/// Reads a message's metadata, front to back.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(metadata: &'a [u8]) -> Self {
        Self(metadata)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self
            .0
            .split_first_chunk()
            .ok_or(DecodeError::MetadataTooShort)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn duration(&mut self) -> Result<Duration, DecodeError> {
        Ok(Duration::from_nanos(self.u64()?))
    }

    pub(crate) fn text(&mut self) -> Result<String, DecodeError> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > MAX_TEXT {
            return Err(DecodeError::Text);
        }
        let (text, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(DecodeError::MetadataTooShort)?;
        self.0 = rest;
        str::from_utf8(text)
            .map(str::to_owned)
            .map_err(|_| DecodeError::Text)
    }

    pub(crate) fn tensors(&mut self) -> Result<Vec<TensorHeader>, DecodeError> {
        let count = self.u8()?;
        if usize::from(count) > MAX_TENSORS {
            return Err(DecodeError::Tensors(count));
        }
        (0..count).map(|_| self.tensor()).collect()
    }

    fn tensor(&mut self) -> Result<TensorHeader, DecodeError> {
        let code = self.u8()?;
        let datatype = Datatype::ALL
            .into_iter()
            .find(|datatype| datatype_code(*datatype) == code);
        let rank = usize::from(self.u8()?);
        let mut dims = [0_i64; Shape::MAX_RANK];
        let dims = dims
            .get_mut(..rank)
            .ok_or(packhorse_cluster::ShapeError::Rank(rank))?;
        for dim in &mut *dims {
            *dim = i64::from_le_bytes(self.array()?);
        }
        let shape = Shape::new(dims)?;
        datatype
            .and_then(|datatype| TensorHeader::new(datatype, shape).ok())
            .ok_or(DecodeError::Datatype(code))
    }

    /// Checks that no bytes are left.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::MetadataLeftOver(self.0.len()))
        }
    }
}

pub(crate) fn encode_duration(out: &mut Vec<u8>, duration: Duration) {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    out.extend_from_slice(&nanos.to_le_bytes());
}

/// Appends a text. One that is too long is cut: a reason is for people, for whom its beginning is enough.
pub(crate) fn encode_text(out: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(MAX_TEXT)];
    let length = u16::try_from(text.len()).expect("MAX_TEXT fits 16 bits");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn encode_tensors(out: &mut Vec<u8>, tensors: &[TensorHeader]) {
    assert!(tensors.len() <= MAX_TENSORS, "no model has so many tensors");
    out.push(tensors.len() as u8);
    for tensor in tensors {
        out.push(datatype_code(tensor.datatype()));
        out.push(tensor.shape().rank() as u8);
        for dim in tensor.shape().dims() {
            out.extend_from_slice(&dim.to_le_bytes());
        }
    }
}

/// Returns the number of a datatype on the wire, which never changes within a protocol version.
const fn datatype_code(datatype: Datatype) -> u8 {
    match datatype {
        Datatype::Bool => 1,
        Datatype::Uint8 => 2,
        Datatype::Uint16 => 3,
        Datatype::Uint32 => 4,
        Datatype::Uint64 => 5,
        Datatype::Int8 => 6,
        Datatype::Int16 => 7,
        Datatype::Int32 => 8,
        Datatype::Int64 => 9,
        Datatype::Fp16 => 10,
        Datatype::Bf16 => 11,
        Datatype::Fp32 => 12,
        Datatype::Fp64 => 13,
        Datatype::Bytes => 14,
    }
}

//! The header of a tensor in a payload.

use packhorse_cluster::{Datatype, Shape};

/// The datatype and the shape of one tensor in a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHeader {
    datatype: Datatype,
    shape: Shape,
    byte_len: u64,
}

/// The error of a datatype whose elements have no fixed width, and which therefore never reaches a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("elements of {0} have no fixed width")]
pub struct UnsizedDatatype(pub Datatype);

impl TensorHeader {
    /// Creates the header of a tensor.
    ///
    /// # Errors
    /// The datatype is `BYTES`, whose elements have no fixed width.
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

    /// Returns the type of its elements.
    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// Returns its dimensions; the batch is the first where there is one.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the length of its elements in the payload, in bytes: little-endian, row-major, without gaps.
    pub fn byte_len(&self) -> u64 {
        self.byte_len
    }
}

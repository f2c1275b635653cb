//! Tensors of messages: name, datatype, shape and the packed bytes that match them.

use bytes::Bytes;
use packhorse_cluster::{Datatype, Shape};

use crate::{ByteRope, TensorError};

/// The form in which a tensor is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Numbers or strings in the JSON part.
    Json,
    /// Bytes after the JSON part.
    #[default]
    Binary,
    /// Bytes in a shared memory region: the message has none of them.
    Shared,
}

/// A named tensor: an input or an output. Its bytes are row-major, little-endian and packed, and their number matches datatype and
/// shape; a `BOOL` is 0 or 1, and each `BYTES` element has its length (4 bytes) before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    name: String,
    datatype: Datatype,
    shape: Shape,
    data: ByteRope,
    form: Form,
}

impl Tensor {
    /// Creates a tensor in [`Form::Binary`] after checking the bytes against datatype and shape.
    ///
    /// # Errors
    /// [`TensorError::Size`], [`TensorError::Bool`] or [`TensorError::Elements`].
    pub fn new(
        name: String,
        datatype: Datatype,
        shape: Shape,
        data: ByteRope,
    ) -> Result<Self, TensorError> {
        check(datatype, &shape, &data)?;
        Ok(Self {
            name,
            datatype,
            shape,
            data,
            form: Form::Binary,
        })
    }

    /// Creates a tensor of Rust numbers or booleans, row-major.
    ///
    /// # Errors
    /// [`TensorError::Size`] if their number does not match the shape.
    pub fn from_values<T: Element>(
        name: &str,
        shape: Shape,
        values: &[T],
    ) -> Result<Self, TensorError> {
        let mut bytes = Vec::with_capacity(size_of_val(values));
        for value in values {
            value.append_to(&mut bytes);
        }
        Self::new(name.to_owned(), T::DATATYPE, shape, bytes.into())
    }

    /// Creates a `BYTES` tensor, row-major.
    ///
    /// # Errors
    /// [`TensorError::Elements`] if their number does not match the shape, or one is longer than `u32::MAX` bytes.
    pub fn from_byte_strings<T: AsRef<[u8]>>(
        name: &str,
        shape: Shape,
        values: &[T],
    ) -> Result<Self, TensorError> {
        let mut bytes = Vec::new();
        for value in values {
            append_byte_string(&mut bytes, value.as_ref())?;
        }
        Self::new(name.to_owned(), Datatype::Bytes, shape, bytes.into())
    }

    /// Returns the tensor with another form.
    #[must_use]
    pub fn in_form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Returns the tensor with another name.
    #[must_use]
    pub fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// Returns the tensor with every chunk of its bytes replaced by an equal one: [`ByteRope::map_chunks`].
    #[must_use]
    pub fn map_chunks(mut self, map: impl FnMut(Bytes) -> Bytes) -> Self {
        self.data = self.data.map_chunks(map);
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the element type.
    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the form in which the tensor was received or is to be sent.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Returns the bytes.
    pub fn data(&self) -> &ByteRope {
        &self.data
    }

    /// Returns the bytes.
    pub fn into_data(self) -> ByteRope {
        self.data
    }

    /// Returns the elements, row-major; `None` if they are of another type.
    pub fn values<T: Element>(&self) -> Option<Vec<T>> {
        (self.datatype == T::DATATYPE).then(|| {
            self.data
                .to_bytes()
                .chunks_exact(T::WIDTH)
                .map(T::from_bytes)
                .collect()
        })
    }

    /// Returns the elements of a `BYTES` tensor, row-major; `None` for another datatype.
    pub fn byte_strings(&self) -> Option<Vec<Bytes>> {
        let strings = || byte_strings(self.data.to_bytes()).collect::<Result<_, _>>();
        (self.datatype == Datatype::Bytes)
            .then(|| strings().expect("checked when the tensor was created"))
    }
}

/// A Rust type that represents an element of a datatype.
pub trait Element: Copy {
    /// The datatype of the element.
    const DATATYPE: Datatype;
    /// The size of the element, in bytes.
    const WIDTH: usize;
    /// Appends the element to `bytes`, little-endian.
    fn append_to(self, bytes: &mut Vec<u8>);
    /// Reads an element of [`Element::WIDTH`] bytes. Panics if there are more or fewer.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! elements {
    ($($rust:ty => $datatype:ident),* $(,)?) => {$(
        impl Element for $rust {
            const DATATYPE: Datatype = Datatype::$datatype;
            const WIDTH: usize = size_of::<Self>();

            fn append_to(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("an element of this width"))
            }
        }
    )*};
}

elements! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    half::f16 => Fp16, half::bf16 => Bf16, f32 => Fp32, f64 => Fp64,
}

impl Element for bool {
    const DATATYPE: Datatype = Datatype::Bool;
    const WIDTH: usize = 1;

    fn append_to(self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self));
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        bytes == [1]
    }
}

/// Appends an element of a `BYTES` tensor.
pub(crate) fn append_byte_string(bytes: &mut Vec<u8>, value: &[u8]) -> Result<(), TensorError> {
    let len = u32::try_from(value.len()).map_err(|_| {
        TensorError::Elements(format!(
            "an element of {} bytes is over the limit of 2^32-1",
            value.len()
        ))
    })?;
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(value);
    Ok(())
}

/// Returns the elements of a `BYTES` tensor up to the first that is cut off; the error is the number of bytes that are left for it.
pub(crate) fn byte_strings(mut rest: Bytes) -> impl Iterator<Item = Result<Bytes, usize>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(len) = rest
            .first_chunk()
            .map(|prefix| u32::from_le_bytes(*prefix) as usize)
        else {
            return Some(Err(std::mem::take(&mut rest).len()));
        };
        if rest.len() - 4 < len {
            return Some(Err(std::mem::take(&mut rest).len()));
        }
        let mut element = rest.split_to(4 + len);
        Some(Ok(element.split_off(4)))
    })
}

fn check(datatype: Datatype, shape: &Shape, data: &ByteRope) -> Result<(), TensorError> {
    match datatype.width() {
        // The product cannot overflow, see `Shape::MAX_ELEMENTS`.
        Some(width) if shape.elements() * width as u64 != data.len() as u64 => {
            Err(TensorError::Size {
                bytes: data.len() as u64,
                expected: shape.elements() * width as u64,
                datatype,
                shape: shape.clone(),
            })
        }
        Some(_) if datatype == Datatype::Bool => check_bools(data),
        Some(_) => Ok(()),
        None => check_byte_strings(shape, data),
    }
}

/// Checks that every boolean is 0 or 1: computing with another value is undefined.
fn check_bools(data: &ByteRope) -> Result<(), TensorError> {
    // The compiler vectorises a fold, but not a search.
    if data
        .chunks()
        .all(|chunk| chunk.iter().fold(0, |seen, byte| seen | byte) <= 1)
    {
        return Ok(());
    }
    let (index, &value) = data
        .chunks()
        .flatten()
        .enumerate()
        .find(|(_, byte)| **byte > 1)
        .expect("one is neither 0 nor 1");
    Err(TensorError::Bool { index, value })
}

fn check_byte_strings(shape: &Shape, data: &ByteRope) -> Result<(), TensorError> {
    let mut elements = 0_u64;
    for element in byte_strings(data.to_bytes()) {
        if let Err(left) = element {
            return Err(TensorError::Elements(format!(
                "element {elements} is cut off: {left} bytes are left for its length and itself"
            )));
        }
        elements += 1;
    }
    if elements == shape.elements() {
        Ok(())
    } else {
        Err(TensorError::Elements(format!(
            "{elements} elements, but shape {shape} has {}",
            shape.elements()
        )))
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn shape(dims: &[i64]) -> Shape {
        Shape::new(dims).unwrap()
    }

    fn error(datatype: Datatype, dims: &[i64], data: &[u8]) -> String {
        Tensor::new("x".to_owned(), datatype, shape(dims), data.to_vec().into())
            .unwrap_err()
            .to_string()
    }

    fn assert_restored<T: Element + PartialEq + std::fmt::Debug>(values: &[T]) {
        let tensor =
            Tensor::from_values("x", shape(&[i64::try_from(values.len()).unwrap()]), values)
                .unwrap();
        assert_eq!(tensor.datatype().width(), Some(T::WIDTH));
        assert_eq!(tensor.values::<T>().unwrap(), values);
    }

    #[test]
    fn values_are_restored() {
        assert_restored(&[true, false]);
        assert_restored(&[u8::MAX, 0]);
        assert_restored(&[i16::MIN, 1]);
        assert_restored(&[u64::MAX]);
        assert_restored(&[f16::from_f32(0.5), f16::MAX]);
        assert_restored(&[bf16::from_f32(-0.5)]);
        assert_restored(&[1.5_f32, f32::INFINITY]);
        assert_restored::<f64>(&[]);
        let tensor = Tensor::from_byte_strings("s", shape(&[2]), &["", "ab"]).unwrap();
        assert_eq!(tensor.byte_strings().unwrap(), ["", "ab"]);
        assert_eq!(tensor.data().to_bytes(), &b"\0\0\0\0\x02\0\0\0ab"[..]);
        assert_eq!(tensor.values::<u8>(), None);
    }

    #[test]
    fn bytes_that_disagree_with_the_shape_are_refused() {
        assert_eq!(
            error(Datatype::Fp32, &[2, 3], &[0; 20]),
            "the data has 20 bytes, but FP32 [2,3] requires 24"
        );
        assert_eq!(
            error(Datatype::Int8, &[], &[]),
            "the data has 0 bytes, but INT8 [] requires 1"
        );
        assert_eq!(
            error(Datatype::Fp64, &[1 << 40], &[0; 8]),
            "the data has 8 bytes, but FP64 [1099511627776] requires 8796093022208"
        );
        assert_eq!(
            error(Datatype::Bool, &[3], &[0, 1, 2]),
            "byte 2 of BOOL data is 2, expected 0 or 1"
        );
        assert_eq!(
            error(Datatype::Bytes, &[2], &[0; 4]),
            "1 elements, but shape [2] has 2"
        );
        assert_eq!(
            error(Datatype::Bytes, &[1], &[9, 0, 0, 0, 1]),
            "element 0 is cut off: 5 bytes are left for its length and itself"
        );
        assert_eq!(
            error(Datatype::Bytes, &[2], &[0, 0, 0, 0, 1]),
            "element 1 is cut off: 1 bytes are left for its length and itself"
        );
    }
}

//! Conversion of tensor data between JSON lists and packed bytes.
//!
//! A list is read directly into the tensor's buffer. It is either flat or nested exactly like the shape. The depth of the recursion is
//! therefore the rank, and the allocated memory is bounded by the remaining text.

use std::ops::Range;

use half::{bf16, f16};
use packhorse_cluster::{Datatype, Shape};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use crate::{
    EncodeError, Tensor, TensorError,
    json::Cursor,
    number::Number,
    short_number::ShortNumber,
    tensor::{Element, append_byte_string},
};

/// Reads the list at the cursor and returns it as the packed bytes of a tensor.
pub(crate) fn read_data(
    cursor: &mut Cursor<'_>,
    datatype: Datatype,
    shape: &Shape,
) -> Result<Vec<u8>, TensorError> {
    match datatype {
        Datatype::Bool => read_lists(cursor, shape, 1, read_bool),
        Datatype::Uint8 => read_lists(cursor, shape, 1, integers::<u8>),
        Datatype::Uint16 => read_lists(cursor, shape, 2, integers::<u16>),
        Datatype::Uint32 => read_lists(cursor, shape, 4, integers::<u32>),
        Datatype::Uint64 => read_lists(cursor, shape, 8, integers::<u64>),
        Datatype::Int8 => read_lists(cursor, shape, 1, integers::<i8>),
        Datatype::Int16 => read_lists(cursor, shape, 2, integers::<i16>),
        Datatype::Int32 => read_lists(cursor, shape, 4, integers::<i32>),
        Datatype::Int64 => read_lists(cursor, shape, 8, integers::<i64>),
        Datatype::Fp16 | Datatype::Bf16 => Err(TensorError::BinaryOnly(datatype)),
        Datatype::Fp32 => read_lists(cursor, shape, 4, floats::<f32>),
        Datatype::Fp64 => read_lists(cursor, shape, 8, floats::<f64>),
        Datatype::Bytes => read_lists(cursor, shape, 4, read_string),
    }
}

/// Consumes one or more elements of a list whose length is not known, with the commas between them, and returns their number. Unlike tensors, rows
/// have numbers of `FP16` and `BF16`.
pub(crate) fn read_elements(
    cursor: &mut Cursor<'_>,
    datatype: Datatype,
    at_most: u64,
    bytes: &mut Vec<u8>,
) -> Result<u64, TensorError> {
    let indexes = 0..at_most;
    match datatype {
        Datatype::Bool => read_bool(cursor, indexes, bytes),
        Datatype::Uint8 => integers::<u8>(cursor, indexes, bytes),
        Datatype::Uint16 => integers::<u16>(cursor, indexes, bytes),
        Datatype::Uint32 => integers::<u32>(cursor, indexes, bytes),
        Datatype::Uint64 => integers::<u64>(cursor, indexes, bytes),
        Datatype::Int8 => integers::<i8>(cursor, indexes, bytes),
        Datatype::Int16 => integers::<i16>(cursor, indexes, bytes),
        Datatype::Int32 => integers::<i32>(cursor, indexes, bytes),
        Datatype::Int64 => integers::<i64>(cursor, indexes, bytes),
        Datatype::Fp16 => floats::<f16>(cursor, indexes, bytes),
        Datatype::Bf16 => floats::<bf16>(cursor, indexes, bytes),
        Datatype::Fp32 => floats::<f32>(cursor, indexes, bytes),
        Datatype::Fp64 => floats::<f64>(cursor, indexes, bytes),
        Datatype::Bytes => read_string(cursor, indexes, bytes),
    }
}

/// Consumes one or more integers.
fn integers<T: Element + TryFrom<i128>>(
    cursor: &mut Cursor<'_>,
    indexes: Range<u64>,
    bytes: &mut Vec<u8>,
) -> Result<u64, TensorError> {
    const EXPECTED: &str = "an integer";
    let short = |number: &ShortNumber| T::try_from(i128::from(number.integer()?)).ok();
    let append = |value: T| value.append_to(bytes);
    let count = cursor.short_numbers(indexes.end - indexes.start - 1, short, append);
    let index = indexes.start + count;
    let Some(number) = cursor.number() else {
        return Err(unexpected(
            index,
            EXPECTED,
            T::DATATYPE,
            cursor.describe_next(),
        ));
    };
    if !number.is_integer() {
        return Err(unexpected(index, EXPECTED, T::DATATYPE, number.excerpt()));
    }
    let Some(value) = number.integer().and_then(|value| T::try_from(value).ok()) else {
        return Err(out_of_range(index, T::DATATYPE, &number));
    };
    value.append_to(bytes);
    Ok(count + 1)
}

/// A float type that numbers are rounded to.
trait Float: Element {
    /// Returns the nearest float, where that is quick.
    fn of_short(number: &ShortNumber) -> Option<Self>;
    /// Returns the nearest float; `None` if the number is out of range.
    fn nearest(number: &Number<'_>) -> Option<Self>;
}

impl Float for f32 {
    #[inline]
    fn of_short(number: &ShortNumber) -> Option<Self> {
        number.f32()
    }

    #[inline]
    fn nearest(number: &Number<'_>) -> Option<Self> {
        number.f32()
    }
}

impl Float for f64 {
    #[inline]
    fn of_short(number: &ShortNumber) -> Option<Self> {
        number.f64()
    }

    #[inline]
    fn nearest(number: &Number<'_>) -> Option<Self> {
        number.f64()
    }
}

// Floats of 16 bits are rounded from one of 64.
macro_rules! half_floats {
    ($($rust:ty),*) => {$(
        impl Float for $rust {
            fn of_short(number: &ShortNumber) -> Option<Self> {
                number.f64().map(Self::from_f64).filter(|value| value.is_finite())
            }

            fn nearest(number: &Number<'_>) -> Option<Self> {
                number.f64().map(Self::from_f64).filter(|value| value.is_finite())
            }
        }
    )*};
}

half_floats!(f16, bf16);

/// Consumes one or more floats.
fn floats<T: Float>(
    cursor: &mut Cursor<'_>,
    indexes: Range<u64>,
    bytes: &mut Vec<u8>,
) -> Result<u64, TensorError> {
    let append = |value: T| value.append_to(bytes);
    let count = cursor.short_numbers(indexes.end - indexes.start - 1, T::of_short, append);
    let index = indexes.start + count;
    let Some(number) = cursor.number() else {
        return Err(unexpected(
            index,
            "a number",
            T::DATATYPE,
            cursor.describe_next(),
        ));
    };
    let Some(value) = T::nearest(&number) else {
        return Err(out_of_range(index, T::DATATYPE, &number));
    };
    value.append_to(bytes);
    Ok(count + 1)
}

fn read_bool(
    cursor: &mut Cursor<'_>,
    indexes: Range<u64>,
    bytes: &mut Vec<u8>,
) -> Result<u64, TensorError> {
    const EXPECTED: &str = "true, false, 0 or 1";
    let index = indexes.start;
    let value = if cursor.eat_word("true") {
        true
    } else if cursor.eat_word("false") {
        false
    } else {
        let Some(number) = cursor.number() else {
            return Err(unexpected(
                index,
                EXPECTED,
                Datatype::Bool,
                cursor.describe_next(),
            ));
        };
        match number.integer() {
            Some(0) => false,
            Some(1) => true,
            _ => {
                return Err(unexpected(
                    index,
                    EXPECTED,
                    Datatype::Bool,
                    number.excerpt(),
                ));
            }
        }
    };
    value.append_to(bytes);
    Ok(1)
}

fn read_string(
    cursor: &mut Cursor<'_>,
    indexes: Range<u64>,
    bytes: &mut Vec<u8>,
) -> Result<u64, TensorError> {
    if cursor.peek() != Some(b'"') {
        return Err(unexpected(
            indexes.start,
            "a string",
            Datatype::Bytes,
            cursor.describe_next(),
        ));
    }
    let value = cursor.string()?;
    append_byte_string(bytes, value.as_bytes())?;
    Ok(1)
}

#[cold]
fn unexpected(
    index: u64,
    expected: &'static str,
    datatype: Datatype,
    found: String,
) -> TensorError {
    TensorError::Value {
        index,
        expected,
        datatype,
        found,
    }
}

#[cold]
fn out_of_range(index: u64, datatype: Datatype, number: &Number<'_>) -> TensorError {
    TensorError::OutOfRange {
        index,
        datatype,
        found: number.excerpt(),
    }
}

/// Reads one flat list, or lists nested like the shape. `elements` consumes one or more elements and the commas between them, given the
/// row-major indexes of those that the list has left. It appends their bytes, at least `width` of each, and returns their number.
fn read_lists<F>(
    cursor: &mut Cursor<'_>,
    shape: &Shape,
    width: usize,
    elements: F,
) -> Result<Vec<u8>, TensorError>
where
    F: FnMut(&mut Cursor<'_>, Range<u64>, &mut Vec<u8>) -> Result<u64, TensorError>,
{
    let mut inside = *cursor;
    let nested = inside.eat(b'[') && inside.peek() == Some(b'[') && shape.rank() > 1;
    // An element and its separator have at least two bytes of text.
    let count = shape.elements().min(cursor.remaining() as u64 / 2 + 1) as usize;
    let mut reader = ListReader {
        shape,
        elements,
        read: 0,
        bytes: Vec::with_capacity(count * width),
    };
    if nested {
        reader.list(cursor, shape.dims(), 1)?;
    } else {
        reader.list(cursor, &[shape.elements()], 1)?;
    }
    Ok(reader.bytes)
}

struct ListReader<'s, F> {
    shape: &'s Shape,
    elements: F,
    /// The number of elements read so far.
    read: u64,
    bytes: Vec<u8>,
}

impl<F> ListReader<'_, F>
where
    F: FnMut(&mut Cursor<'_>, Range<u64>, &mut Vec<u8>) -> Result<u64, TensorError>,
{
    /// Consumes a list of `dims[0]` lists of the remaining dimensions, or of elements if none remain.
    fn list(
        &mut self,
        cursor: &mut Cursor<'_>,
        dims: &[u64],
        depth: usize,
    ) -> Result<(), TensorError> {
        let (&len, inner) = dims.split_first().expect("there is a dimension to read");
        if !cursor.eat(b'[') {
            return Err(TensorError::Nesting {
                depth,
                found: cursor.describe_next(),
                shape: self.shape.clone(),
            });
        }
        if inner.is_empty() {
            let mut index = 0;
            while index < len {
                self.separator(cursor, index, len)?;
                let left = self.read + index..self.read + len;
                index += (self.elements)(cursor, left, &mut self.bytes)?;
            }
            self.read += len;
        } else {
            for index in 0..len {
                self.separator(cursor, index, len)?;
                self.list(cursor, inner, depth + 1)?;
            }
        }
        if cursor.eat(b']') {
            return Ok(());
        }
        Err(match cursor.peek() {
            Some(b',') => self.length_error(format!("more than {len}"), len),
            _ if len == 0 => self.length_error("more than 0".to_owned(), len),
            _ => TensorError::Json(cursor.expected("\",\" or \"]\"")),
        })
    }

    /// Consumes the separator before an item of a list of `len` items. The end of the list is an error.
    #[inline]
    fn separator(&self, cursor: &mut Cursor<'_>, index: u64, len: u64) -> Result<(), TensorError> {
        if index > 0 && cursor.eat(b',') {
            return Ok(());
        }
        match cursor.peek() {
            Some(b']') => Err(self.length_error(index.to_string(), len)),
            _ if index > 0 => Err(TensorError::Json(cursor.expected("\",\" or \"]\""))),
            _ => Ok(()),
        }
    }

    #[cold]
    fn length_error(&self, found: String, expected: u64) -> TensorError {
        TensorError::ListLength {
            found,
            expected,
            shape: self.shape.clone(),
        }
    }
}

/// The way in which JSON represents an infinity or a NaN, for which it has no number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// Not at all: the message cannot be encoded.
    #[default]
    Error,
    /// As `null`.
    Null,
}

/// Returns the largest size in bytes of the JSON list of this many bytes of a tensor. A list of `FP16` or `BF16` does not exist.
pub fn json_list_bound(datatype: Datatype, bytes: u64) -> u64 {
    // The longest text of an element, with its comma, and the element's width.
    let (text, width) = match datatype {
        Datatype::Bool => ("false,".len(), 1),
        Datatype::Uint8 => ("255,".len(), 1),
        Datatype::Int8 => ("-128,".len(), 1),
        Datatype::Uint16 => ("65535,".len(), 2),
        Datatype::Int16 => ("-32768,".len(), 2),
        Datatype::Uint32 => ("4294967295,".len(), 4),
        Datatype::Int32 => ("-2147483648,".len(), 4),
        Datatype::Uint64 => ("18446744073709551615,".len(), 8),
        Datatype::Int64 => ("-9223372036854775808,".len(), 8),
        Datatype::Fp32 => ("-1.17549435e-38,".len(), 4),
        Datatype::Fp64 => ("-2.2250738585072014e-308,".len(), 8),
        // Every byte may become a six-byte escape; the four bytes of a length pay for quotes and comma.
        Datatype::Bytes => (6, 1),
        Datatype::Fp16 | Datatype::Bf16 => return 0,
    };
    "[]".len() as u64 + (bytes / width).saturating_mul(text as u64)
}

/// The data of a tensor as a flat JSON list. Floats are written with the fewest digits that restore them; one that is not finite is
/// written as `null`, if the constructor allows it.
pub(crate) struct JsonData<'a>(&'a Tensor);

impl<'a> JsonData<'a> {
    /// Creates the list after checking that JSON can represent every element.
    pub(crate) fn new(tensor: &'a Tensor, non_finite: NonFinite) -> Result<Self, EncodeError> {
        let name = || tensor.name().to_owned();
        match tensor.datatype() {
            datatype @ (Datatype::Fp16 | Datatype::Bf16) => {
                return Err(EncodeError::BinaryOnly {
                    name: name(),
                    datatype,
                });
            }
            Datatype::Fp32 | Datatype::Fp64 if non_finite == NonFinite::Null => {}
            Datatype::Fp32 => check_finite(tensor, f32::is_finite)?,
            Datatype::Fp64 => check_finite(tensor, f64::is_finite)?,
            Datatype::Bytes => {
                let strings = tensor.byte_strings().unwrap_or_default();
                if let Some(index) = strings
                    .iter()
                    .position(|bytes| str::from_utf8(bytes).is_err())
                {
                    return Err(EncodeError::NotUtf8 {
                        name: name(),
                        index,
                    });
                }
            }
            _ => {}
        }
        Ok(Self(tensor))
    }
}

fn check_finite<T: Element + std::fmt::Display>(
    tensor: &Tensor,
    finite: fn(T) -> bool,
) -> Result<(), EncodeError> {
    match elements::<T>(tensor)
        .enumerate()
        .find(|(_, value)| !finite(*value))
    {
        None => Ok(()),
        Some((index, value)) => Err(EncodeError::NotFinite {
            name: tensor.name().to_owned(),
            index,
            value: value.to_string(),
        }),
    }
}

fn elements<T: Element>(tensor: &Tensor) -> impl Iterator<Item = T> {
    let bytes = tensor.data().to_bytes();
    (0..bytes.len() / T::WIDTH)
        .map(move |i| T::from_bytes(&bytes[i * T::WIDTH..(i + 1) * T::WIDTH]))
}

impl Serialize for JsonData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.datatype() {
            Datatype::Bool => write_list(serializer, elements::<bool>(self.0)),
            Datatype::Uint8 => write_list(serializer, elements::<u8>(self.0)),
            Datatype::Uint16 => write_list(serializer, elements::<u16>(self.0)),
            Datatype::Uint32 => write_list(serializer, elements::<u32>(self.0)),
            Datatype::Uint64 => write_list(serializer, elements::<u64>(self.0)),
            Datatype::Int8 => write_list(serializer, elements::<i8>(self.0)),
            Datatype::Int16 => write_list(serializer, elements::<i16>(self.0)),
            Datatype::Int32 => write_list(serializer, elements::<i32>(self.0)),
            Datatype::Int64 => write_list(serializer, elements::<i64>(self.0)),
            Datatype::Fp16 | Datatype::Bf16 => unreachable!("refused by the constructor"),
            Datatype::Fp32 => write_list(serializer, elements::<f32>(self.0)),
            Datatype::Fp64 => write_list(serializer, elements::<f64>(self.0)),
            Datatype::Bytes => {
                let strings = self.0.byte_strings().unwrap_or_default();
                let text = |bytes: &bytes::Bytes| {
                    str::from_utf8(bytes)
                        .expect("checked by the constructor")
                        .to_owned()
                };
                write_list(serializer, strings.iter().map(text))
            }
        }
    }
}

fn write_list<S: Serializer, T: Serialize>(
    serializer: S,
    values: impl Iterator<Item = T>,
) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(None)?;
    for value in values {
        list.serialize_element(&value)?;
    }
    list.end()
}

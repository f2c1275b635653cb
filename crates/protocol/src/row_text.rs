//! Rows of outputs as JSON: lists nested like the shape, as clients of TensorFlow Serving and `KServe`, version 1, expect them.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use half::{bf16, f16};
use packhorse_cluster::Datatype;
use serde::Serialize;

use crate::{EncodeError, NonFinite, tensor::Element};

/// The rows of an output that have not been written yet.
#[derive(Clone, Debug)]
pub struct RowWriter<'a> {
    name: &'a str,
    datatype: Datatype,
    /// The shape of a row.
    row: &'a [u64],
    /// The bytes of the rows that are left.
    left: &'a [u8],
    non_finite: NonFinite,
    written: usize,
}

impl<'a> RowWriter<'a> {
    /// Creates the writer of an output, whose bytes are those of rows of this shape.
    pub fn new(
        name: &'a str,
        datatype: Datatype,
        row: &'a [u64],
        data: &'a [u8],
        non_finite: NonFinite,
    ) -> Self {
        Self {
            name,
            datatype,
            row,
            left: data,
            non_finite,
            written: 0,
        }
    }

    /// Appends the next row, of which there must be one. Floats have the fewest digits that restore them; bytes that are no text are `{"b64": "..."}`.
    ///
    /// # Errors
    /// [`EncodeError::NotFinite`] for an infinity or a NaN, unless they are written as null.
    pub fn write(&mut self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.nested(self.row, out)
    }

    fn nested(&mut self, dims: &[u64], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let Some((length, inner)) = dims.split_first() else {
            return self.element(out);
        };
        out.push(b'[');
        for index in 0..*length {
            if index > 0 {
                out.push(b',');
            }
            self.nested(inner, out)?;
        }
        out.push(b']');
        Ok(())
    }

    fn element(&mut self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let index = self.written;
        self.written += 1;
        match self.datatype {
            Datatype::Bool => append(&self.take::<bool>(), out),
            Datatype::Uint8 => append(&self.take::<u8>(), out),
            Datatype::Uint16 => append(&self.take::<u16>(), out),
            Datatype::Uint32 => append(&self.take::<u32>(), out),
            Datatype::Uint64 => append(&self.take::<u64>(), out),
            Datatype::Int8 => append(&self.take::<i8>(), out),
            Datatype::Int16 => append(&self.take::<i16>(), out),
            Datatype::Int32 => append(&self.take::<i32>(), out),
            Datatype::Int64 => append(&self.take::<i64>(), out),
            Datatype::Fp16 => {
                let value = self.take::<f16>().to_f32();
                return self.float(value, value.is_finite(), index, out);
            }
            Datatype::Bf16 => {
                let value = self.take::<bf16>().to_f32();
                return self.float(value, value.is_finite(), index, out);
            }
            Datatype::Fp32 => {
                let value = self.take::<f32>();
                return self.float(value, value.is_finite(), index, out);
            }
            Datatype::Fp64 => {
                let value = self.take::<f64>();
                return self.float(value, value.is_finite(), index, out);
            }
            Datatype::Bytes => {
                let length = self.take::<u32>() as usize;
                let (bytes, left) = self.left.split_at(length);
                self.left = left;
                if let Ok(text) = str::from_utf8(bytes) {
                    append(text, out);
                } else {
                    out.extend_from_slice(br#"{"b64":"#);
                    append(&BASE64_STANDARD.encode(bytes), out);
                    out.push(b'}');
                }
            }
        }
        Ok(())
    }

    /// Returns the next element. The data are those of the shape.
    fn take<T: Element>(&mut self) -> T {
        let (element, left) = self.left.split_at(T::WIDTH);
        self.left = left;
        T::from_bytes(element)
    }

    fn float<T: Serialize + std::fmt::Display>(
        &self,
        value: T,
        is_finite: bool,
        index: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        if is_finite || self.non_finite == NonFinite::Null {
            append(&value, out);
            return Ok(());
        }
        Err(EncodeError::NotFinite {
            name: self.name.to_owned(),
            index,
            value: value.to_string(),
        })
    }
}

/// Appends a number or a text as JSON; what is not finite becomes null.
fn append<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("numbers and texts have a form in JSON");
}

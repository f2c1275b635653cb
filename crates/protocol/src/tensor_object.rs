//! The JSON object of a tensor in a message, which contains the data inline or the number of its bytes in the binary part.

use std::fmt;

use packhorse_cluster::{Datatype, Shape};
use serde::Serialize;

use crate::{
    ByteRope, EncodeError, Form, Limits, MessageError, Tensor, TensorError,
    field_path::FieldPath,
    json::Cursor,
    json_tensor::{JsonData, NonFinite, read_data},
    message::{read_text, set_once},
    region::{RangeParameters, RegionRange, Regions},
};

/// A tensor that the JSON part declares. Its data may still be in the binary part.
pub(crate) struct DeclaredTensor {
    name: String,
    datatype: Datatype,
    shape: Shape,
    data: DeclaredData,
}

enum DeclaredData {
    /// Data in the JSON part, as packed bytes.
    Inline(Vec<u8>),
    /// Data of this size in the binary part.
    Binary { size: u64 },
    /// Data in shared memory.
    Shared(RegionRange),
}

impl DeclaredTensor {
    /// Reads the object at the cursor. `path` is its place in the message, for errors.
    pub(crate) fn read(
        cursor: &mut Cursor<'_>,
        path: &FieldPath<'_>,
        limits: &Limits,
    ) -> Result<Self, MessageError> {
        let mut name = None;
        let mut fields = Fields {
            name_bytes: limits.name_bytes,
            ..Fields::default()
        };
        let read = cursor.object(|cursor, key| {
            if key == "name" {
                let field = path.member("name");
                let text = read_text(cursor, field, limits.name_bytes)?;
                return set_once(&mut name, field, text);
            }
            fields
                .read(cursor, key)
                .map_err(|problem| tensor_error(path, name.as_deref(), problem))
        });
        read.and_then(|()| {
            let known = name.as_deref();
            let (datatype, shape, data) = fields
                .finish()
                .map_err(|problem| tensor_error(path, known, problem))?;
            match name {
                Some(name) => Ok(Self {
                    name,
                    datatype,
                    shape,
                    data,
                }),
                None => Err(tensor_error(path, None, TensorError::MissingField("name"))),
            }
        })
    }

    /// Returns the tensor. Its binary data, if it has any, is removed from the front of the binary part.
    fn complete(
        self,
        side: &str,
        binary: &mut ByteRope,
        regions: &mut dyn Regions,
    ) -> Result<Tensor, MessageError> {
        let (data, form) = match self.data {
            DeclaredData::Inline(bytes) => (Ok(ByteRope::from(bytes)), Form::Json),
            DeclaredData::Binary { size } => {
                let left = binary.len() as u64;
                let data = if size <= left {
                    Ok(binary.split_to(size as usize))
                } else {
                    Err(TensorError::Truncated { size, left })
                };
                (data, Form::Binary)
            }
            DeclaredData::Shared(range) => {
                let data = regions.read(&range).map_err(|problem| TensorError::Region {
                    region: range.region,
                    problem,
                });
                (data.map(ByteRope::from), Form::Shared)
            }
        };
        let name = self.name.clone();
        data.and_then(|data| Tensor::new(name, self.datatype, self.shape, data))
            .map(|tensor| tensor.in_form(form))
            .map_err(|problem| MessageError::Tensor {
                tensor: format!("{side} {:?}", self.name),
                problem,
            })
    }
}

/// Gives each tensor its data from the binary part, in their order, or from shared memory. Bytes that are left are an error.
pub(crate) fn complete_all(
    tensors: Vec<DeclaredTensor>,
    side: &str,
    mut binary: ByteRope,
    regions: &mut dyn Regions,
) -> Result<Vec<Tensor>, MessageError> {
    let mut complete = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        complete.push(tensor.complete(side, &mut binary, regions)?);
    }
    if binary.is_empty() {
        Ok(complete)
    } else {
        Err(MessageError::LeftOver {
            left: binary.len() as u64,
        })
    }
}

/// Returns the error of a tensor, with its name if that was read already, else its place: `inputs[0]`.
#[cold]
fn tensor_error(path: &FieldPath<'_>, name: Option<&str>, problem: TensorError) -> MessageError {
    let tensor = match (path, name) {
        (FieldPath::Item(list, _), Some(name)) => {
            format!("{} {name:?}", list.trim_end_matches('s'))
        }
        _ => path.to_string(),
    };
    MessageError::Tensor { tensor, problem }
}

/// The fields of a tensor that have been read so far.
#[derive(Default)]
struct Fields<'a> {
    datatype: Option<Datatype>,
    shape: Option<Shape>,
    binary_size: Option<u64>,
    range: RangeParameters,
    /// The most bytes of a region's name.
    name_bytes: usize,
    data: Option<Vec<u8>>,
    /// The position of data that came before datatype or shape and can be read only after them.
    deferred_data: Option<Cursor<'a>>,
}

impl<'a> Fields<'a> {
    fn read(&mut self, cursor: &mut Cursor<'a>, key: &str) -> Result<(), TensorError> {
        let twice = |field| TensorError::Field {
            field,
            problem: "given twice".to_owned(),
        };
        match key {
            "datatype" => {
                let datatype = cursor.string().map_err(|e| field("datatype", &e))?;
                let datatype = datatype.parse().map_err(|e| field("datatype", &e))?;
                self.datatype
                    .replace(datatype)
                    .map_or(Ok(()), |_| Err(twice("datatype")))
            }
            "shape" => {
                let shape = read_shape(cursor)?;
                self.shape
                    .replace(shape)
                    .map_or(Ok(()), |_| Err(twice("shape")))
            }
            "parameters" => self.read_parameters(cursor),
            "data" if self.data.is_some() || self.deferred_data.is_some() => Err(twice("data")),
            "data" => {
                if let (Some(datatype), Some(shape)) = (self.datatype, &self.shape) {
                    self.data = Some(read_data(cursor, datatype, shape)?);
                } else {
                    self.deferred_data = Some(*cursor);
                    cursor.skip()?;
                }
                Ok(())
            }
            _ => Ok(cursor.skip()?),
        }
    }

    fn read_parameters(&mut self, cursor: &mut Cursor<'a>) -> Result<(), TensorError> {
        if cursor.peek() != Some(b'{') {
            return Err(field("parameters", &cursor.expected("an object")));
        }
        cursor.object(|cursor, key| {
            if self.range.read(cursor, key, self.name_bytes)? {
                return Ok(());
            }
            if key != "binary_data_size" {
                return Ok(cursor.skip()?);
            }
            let size = cursor
                .read::<u64>()
                .map_err(|e| field("parameters.binary_data_size", &e))?;
            match self.binary_size.replace(size) {
                None => Ok(()),
                Some(_) => Err(field("parameters.binary_data_size", "given twice")),
            }
        })
    }

    fn finish(self) -> Result<(Datatype, Shape, DeclaredData), TensorError> {
        let datatype = self.datatype.ok_or(TensorError::MissingField("datatype"))?;
        let shape = self.shape.ok_or(TensorError::MissingField("shape"))?;
        let data = match self.deferred_data {
            Some(mut cursor) => Some(read_data(&mut cursor, datatype, &shape)?),
            None => self.data,
        };
        let data = match (data, self.binary_size, self.range.finish()?) {
            (Some(bytes), None, None) => DeclaredData::Inline(bytes),
            (None, Some(size), None) => DeclaredData::Binary { size },
            (None, None, Some(range)) => DeclaredData::Shared(range),
            (None, None, None) => return Err(TensorError::NoData),
            _ => return Err(TensorError::DataTwice),
        };
        Ok((datatype, shape, data))
    }
}

fn field(field: &'static str, problem: &(impl fmt::Display + ?Sized)) -> TensorError {
    TensorError::Field {
        field,
        problem: problem.to_string(),
    }
}

/// Reads a list of dimensions, at most as many as a shape may have.
fn read_shape(cursor: &mut Cursor<'_>) -> Result<Shape, TensorError> {
    let mut dims = Vec::new();
    if cursor.peek() != Some(b'[') {
        return Err(field("shape", &cursor.expected("a list of integers")));
    }
    cursor.list(|cursor, index| {
        if index == Shape::MAX_RANK {
            return Err(field(
                "shape",
                &format!("the rank is over the limit of {}", Shape::MAX_RANK),
            ));
        }
        dims.push(cursor.read::<i64>().map_err(|e| field("shape", &e))?);
        Ok(())
    })?;
    Shape::new(&dims).map_err(TensorError::Shape)
}

/// The JSON object of a tensor. It has no parameters but with binary data, because C++ clients expect a size in any parameters.
#[derive(Serialize)]
pub(crate) struct TensorHead<'a> {
    name: &'a str,
    shape: &'a Shape,
    datatype: Datatype,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<JsonData<'a>>,
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

impl<'a> TensorHead<'a> {
    pub(crate) fn new(tensor: &'a Tensor, non_finite: NonFinite) -> Result<Self, EncodeError> {
        let (parameters, data) = match tensor.form() {
            Form::Json => (None, Some(JsonData::new(tensor, non_finite)?)),
            Form::Binary => (
                Some(BinarySize {
                    binary_data_size: tensor.data().len(),
                }),
                None,
            ),
            Form::Shared => (None, None),
        };
        Ok(Self {
            name: tensor.name(),
            shape: tensor.shape(),
            datatype: tensor.datatype(),
            parameters,
            data,
        })
    }
}

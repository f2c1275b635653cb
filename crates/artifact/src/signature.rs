//! The inputs and outputs of a program, as far as its file tells them.

use std::fmt;

use packhorse_cluster::Datatype;

/// The format of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// TorchScript with the inputs that it was traced with.
    Traced,
    /// TorchScript without example inputs: scripted, or frozen after it was traced.
    Scripted,
    /// A package that `AOTInductor` has compiled.
    Package,
    /// A program of `torch.export.save`.
    Exported,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Traced => "TorchScript, traced",
            Self::Scripted => "TorchScript, scripted",
            Self::Package => "an AOTInductor package",
            Self::Exported => "an exported program",
        })
    }
}

/// The inputs and outputs of a program, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// The inputs in the order of the program's arguments; `None` if not even their number is known.
    pub inputs: Option<Vec<Tensor>>,
    /// The outputs in the order of the program's results; `None` if not even their number is known.
    pub outputs: Option<Vec<Tensor>>,
}

/// An input or output, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tensor {
    /// The name.
    pub name: Option<String>,
    /// The datatype.
    pub datatype: Option<Datatype>,
    /// The size of each dimension.
    pub shape: Option<Vec<Size>>,
    /// The name of each dimension that varies, if the program tells which of them share a size; empty if not.
    pub dim_names: Vec<Option<String>>,
}

/// The size of a dimension, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The only one that the program is made for.
    Fixed(u64),
    /// The one that the program was traced with. Nobody knows if it may have another.
    Example(u64),
    /// A dimension that varies.
    Varies {
        /// The smallest size, at least 1.
        min: u64,
        /// The largest size, if the program has one.
        max: Option<u64>,
        /// The size that the program was made with, if it is known.
        example: Option<u64>,
    },
}

impl Signature {
    /// The most inputs, and the most outputs, that are read. Registrations have fewer.
    pub const MAX_TENSORS: usize = 256;
    /// The largest number of dimensions that is read. Registrations have fewer.
    pub const MAX_RANK: usize = 64;
}

impl Tensor {
    /// Returns a tensor of which only the name is known.
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..Self::default()
        }
    }
}

/// Writes a shape with -1 for what varies and `?` behind what an example only had: `[-1,16?]`.
pub(crate) fn write_shape(f: &mut fmt::Formatter<'_>, shape: &[Size]) -> fmt::Result {
    f.write_str("[")?;
    for (axis, size) in shape.iter().enumerate() {
        if axis > 0 {
            f.write_str(",")?;
        }
        match size {
            Size::Fixed(size) => write!(f, "{size}")?,
            Size::Example(size) => write!(f, "{size}?")?,
            Size::Varies { .. } => f.write_str("-1")?,
        }
    }
    f.write_str("]")
}

impl fmt::Display for Tensor {
    /// Writes the tensor as `--input` takes it, with `?` for what is unknown: `x=FP32[2?,16]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_deref().unwrap_or("?"))?;
        f.write_str("=")?;
        match self.datatype {
            Some(datatype) => write!(f, "{datatype}")?,
            None => f.write_str("?")?,
        }
        match &self.shape {
            Some(shape) => write_shape(f, shape),
            None => f.write_str("[?]"),
        }
    }
}

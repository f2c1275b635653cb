//! Datatypes and signatures of a model's inputs and outputs.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer};

#[cfg(feature = "openapi")]
use crate::typical_shapes::TypicalShapesSchema;
use crate::{Dim, Shape, TypicalShapes, shape::write_dims};

/// A datatype of the Open Inference Protocol, version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    Bytes,
}

/// The error for a text that names no datatype.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown datatype {0:?}: expected one of BOOL, UINT8..64, INT8..64, FP16, BF16, FP32, FP64, BYTES"
)]
pub struct UnknownDatatype(String);

impl Datatype {
    /// All datatypes, in the protocol's order.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// Returns the protocol's spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// Returns the bytes per element; `None` for `BYTES`, whose elements contain their own length.
    pub const fn width(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }
}

impl Datatype {
    /// The largest integer of an example in absolute value: up to it each is a number of 64-bit floating point.
    const MAX_INTEGER: f64 = 9_007_199_254_740_992.0;

    /// Returns the smallest and largest number that an example of this datatype may have; `None` for `BYTES`.
    pub fn range(self) -> Option<(f64, f64)> {
        let signed = |max: f64| Some((-max - 1.0, max));
        let symmetric = |max: f64| Some((-max, max));
        match self {
            Self::Bool => Some((0.0, 1.0)),
            Self::Uint8 => Some((0.0, u8::MAX.into())),
            Self::Uint16 => Some((0.0, u16::MAX.into())),
            Self::Uint32 => Some((0.0, u32::MAX.into())),
            Self::Uint64 => Some((0.0, Self::MAX_INTEGER)),
            Self::Int8 => signed(i8::MAX.into()),
            Self::Int16 => signed(i16::MAX.into()),
            Self::Int32 => signed(i32::MAX.into()),
            Self::Int64 => symmetric(Self::MAX_INTEGER),
            Self::Fp16 => symmetric(65_504.0),
            Self::Bf16 | Self::Fp32 => symmetric(f32::MAX.into()),
            Self::Fp64 => symmetric(f64::MAX),
            Self::Bytes => None,
        }
    }

    /// Returns true if the elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Fp16 | Self::Bf16 | Self::Fp32 | Self::Fp64)
    }

    /// Returns true if an element can have this number.
    pub fn holds(self, number: f64) -> bool {
        let range = self.range();
        range.is_some_and(|(least, most)| (least..=most).contains(&number))
            && (self.is_float() || number.fract() == 0.0)
    }
}

impl FromStr for Datatype {
    type Err = UnknownDatatype;

    fn from_str(text: &str) -> Result<Self, UnknownDatatype> {
        Self::ALL
            .into_iter()
            .find(|datatype| datatype.as_str() == text)
            .ok_or_else(|| UnknownDatatype(text.chars().take(32).collect()))
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The padding by which requests of different sizes along one axis share a batch: the shorter ones are filled up at their end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Padding {
    /// The padded axis, counted with the batch dimension; not 0.
    pub axis: usize,
    /// The value that is filled in, converted to the input's datatype.
    #[serde(default)]
    pub value: f64,
}

/// The signature of an input or output tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TensorSpec {
    /// The tensor's name.
    pub name: String,
    /// The tensor's element type.
    pub datatype: Datatype,
    /// The tensor's dimensions, -1 for a variable one; the first is the batch dimension if the model has one.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<i64>))]
    pub shape: Vec<Dim>,
    /// The padding by which inputs of different lengths share a batch; not for outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<Padding>,
    /// The largest size of each dimension of an input, -1 for one without a declared limit; a list as long as `shape`. Without limits
    /// for all of its variable dimensions, a row of the input has at most 4194304 elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<i64>>))]
    pub max_shape: Option<Vec<Dim>>,
    /// The smallest size of each dimension of an input, -1 for one without a declared limit; a list as long as `shape`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<i64>>))]
    pub min_shape: Option<Vec<Dim>>,
    /// The name of each dimension of an input, null for one without; a list as long as `shape`. Dimensions of the same name have the
    /// same size in each request, such as the length of tokens and of their mask. An `AOTInductor` package checks that itself nowhere: those of
    /// its variable dimensions that have no name must be equal where they are at the same place in several inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dim_names: Option<Vec<Option<String>>>,
    /// The usual size of each dimension of an input, -1 for one without a declared size; a list as long as `shape`. With these sizes
    /// the program is tried, measured and warmed up; without them with 16 in each variable dimension, until requests have shown another size.
    /// Up to 8 shapes with weights may be given instead, as in `[{"shape": [-1, 32], "weight": 9}, {"shape": [-1, 512], "weight": 1}]`: a batch is
    /// planned with the mean of their times. Inputs with several have as many with the same weights, and those of the same place belong together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<TypicalShapesSchema>))]
    pub typical_shape: Option<TypicalShapes>,
    /// The elements of a usual row of an input, where those that the program is tried with do not suit it: at most 4096 numbers, and 16384 for all
    /// inputs; integers up to 2^53, 1 and 0 for BOOL. They are repeated until a row is full.
    #[serde(
        default,
        serialize_with = "serialize_numbers",
        skip_serializing_if = "Option::is_none"
    )]
    pub example: Option<Vec<f64>>,
}

/// A dimension of an input that is smaller than its model allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndersizedDim {
    /// The index of the dimension, counted with the batch dimension.
    pub axis: usize,
    /// The given size.
    pub size: u64,
    /// The smallest size.
    pub limit: u64,
}

impl fmt::Display for UndersizedDim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { axis, size, limit } = self;
        write!(
            f,
            "dimension {axis} is {size}, below the limit of {limit} that the model declares (min_shape)"
        )
    }
}

/// A dimension of an input that is larger than its model allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OversizedDim {
    /// The index of the dimension, counted with the batch dimension.
    pub axis: usize,
    /// The given size.
    pub size: u64,
    /// The largest size, with the input's other dimensions as they are.
    pub limit: u64,
    /// True if the model declares the limit, false if it follows from [`TensorSpec::MAX_ROW_ELEMENTS`].
    pub declared: bool,
}

impl fmt::Display for OversizedDim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            axis, size, limit, ..
        } = self;
        write!(f, "dimension {axis} is {size}, over the limit of {limit}")?;
        if self.declared {
            f.write_str(" that the model declares (max_shape)")
        } else {
            let most = TensorSpec::MAX_ROW_ELEMENTS;
            write!(
                f,
                ": a row has at most {most} elements where the model declares no max_shape"
            )
        }
    }
}

impl TensorSpec {
    /// The largest number of elements of one row of an input that has a variable dimension without a declared limit.
    pub const MAX_ROW_ELEMENTS: u64 = 4 << 20;

    /// The largest number of elements of an example.
    pub const MAX_EXAMPLE: usize = 4096;
    /// The largest number of elements of the examples of all inputs of a model.
    pub const MAX_EXAMPLES: usize = 4 * Self::MAX_EXAMPLE;

    /// The size with which a variable dimension is tried and measured where no usual one is declared: the tokens of a short sentence.
    pub const ASSUMED_DIM: u64 = 16;

    /// Creates a signature that says nothing but what it must.
    pub fn new(name: impl Into<String>, datatype: Datatype, shape: Vec<Dim>) -> Self {
        Self {
            name: name.into(),
            datatype,
            shape,
            pad: None,
            max_shape: None,
            min_shape: None,
            dim_names: None,
            typical_shape: None,
            example: None,
        }
    }

    /// Returns the declared limit of a dimension.
    pub fn max_dim(&self, axis: usize) -> Option<u64> {
        declared(self.max_shape.as_deref(), axis)
    }

    /// Returns the declared smallest size of a dimension.
    pub fn min_dim(&self, axis: usize) -> Option<u64> {
        declared(self.min_shape.as_deref(), axis)
    }

    /// Returns the declared usual size of a dimension; of several that with the largest weight.
    pub fn typical_dim(&self, axis: usize) -> Option<u64> {
        let shapes = self.typical_shape.as_ref();
        declared(shapes.map(TypicalShapes::heaviest), axis)
    }

    /// Returns the size with which a variable dimension is tried and measured: the declared one, else [`TensorSpec::ASSUMED_DIM`], or the next
    /// one within the limits.
    pub fn tried_dim(&self, axis: usize) -> u64 {
        self.typical_dim(axis)
            .unwrap_or_else(|| self.assumed_dim(axis))
    }

    /// Returns the size of a variable dimension without a usual one: [`TensorSpec::ASSUMED_DIM`], or the next one within the limits.
    pub(crate) fn assumed_dim(&self, axis: usize) -> u64 {
        self.limited_dim(axis, Self::ASSUMED_DIM)
    }

    /// Returns a size of a variable dimension, or the next one within its declared limits.
    pub fn limited_dim(&self, axis: usize, size: u64) -> u64 {
        let least = self.min_dim(axis).unwrap_or(0);
        size.max(least).min(self.max_dim(axis).unwrap_or(u64::MAX))
    }

    /// Returns the usual shapes if there are several.
    pub(crate) fn several_shapes(&self) -> Option<&TypicalShapes> {
        let shapes = self.typical_shape.as_ref();
        shapes.filter(|shapes| shapes.are_several())
    }

    /// Returns the variable dimension that is too small in an input of an accepted shape, if there is one.
    pub fn undersized_dim(&self, shape: &Shape) -> Option<UndersizedDim> {
        let sizes = self.shape.iter().zip(shape.dims()).enumerate();
        let mut variable = sizes.filter(|(_, (dim, _))| **dim == Dim::Any);
        variable.find_map(|(axis, (_, &size))| {
            let limit = self.min_dim(axis).filter(|limit| size < *limit)?;
            Some(UndersizedDim { axis, size, limit })
        })
    }

    /// Returns the variable dimension by which an input of an accepted shape is too large, if there is one. The dimensions before
    /// `first` are not examined: 1 for a model with a batch dimension, which has a limit of its own, else 0.
    pub fn oversized_dim(&self, shape: &Shape, first: usize) -> Option<OversizedDim> {
        let variable = || {
            let dims = self.shape.iter().zip(shape.dims()).enumerate().skip(first);
            dims.filter_map(|(axis, (dim, size))| (*dim == Dim::Any).then_some((axis, *size)))
        };
        let over_declared = variable().find_map(|(axis, size)| {
            let limit = self.max_dim(axis).filter(|limit| size > *limit)?;
            Some(OversizedDim {
                axis,
                size,
                limit,
                declared: true,
            })
        });
        if over_declared.is_some() {
            return over_declared;
        }
        let without_limit = variable().filter(|(axis, _)| self.max_dim(*axis).is_none());
        let (axis, size) = without_limit.max_by_key(|(_, size)| *size)?;
        let others = |(other, size): (usize, &u64)| if other == axis { 1 } else { (*size).max(1) };
        // No overflow: `Shape` limits the product of its dimensions, counting those of 0 as 1.
        let others: u64 = shape
            .dims()
            .iter()
            .enumerate()
            .skip(first)
            .map(others)
            .product();
        let limit = Self::MAX_ROW_ELEMENTS / others;
        (size > limit).then_some(OversizedDim {
            axis,
            size,
            limit,
            declared: false,
        })
    }

    /// Returns true if a tensor of this shape matches the signature.
    pub fn accepts(&self, shape: &Shape) -> bool {
        self.shape.len() == shape.rank()
            && self
                .shape
                .iter()
                .zip(shape.dims())
                .all(|(dim, &size)| match dim {
                    Dim::Any => true,
                    Dim::Fixed(fixed) => *fixed == size,
                })
    }

    /// Returns the dimensions in the protocol's notation, -1 for a variable one.
    pub fn dims(&self) -> Vec<i64> {
        self.shape.iter().map(|&dim| dim.into()).collect()
    }

    /// Returns the dimensions as text: `[-1,3,224,224]`.
    pub fn shape_text(&self) -> String {
        struct Dims<'a>(&'a [Dim]);
        impl fmt::Display for Dims<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_dims(f, self.0.iter())
            }
        }
        Dims(&self.shape).to_string()
    }
}

/// Writes whole numbers as integers, as people give them.
#[expect(clippy::ref_option, reason = "serde passes it so")]
fn serialize_numbers<S: Serializer>(
    numbers: &Option<Vec<f64>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Number {
        Integer(i64),
        Float(f64),
    }
    let number = |number: &f64| {
        let is_integer = number.fract() == 0.0 && number.abs() <= Datatype::MAX_INTEGER;
        // -0 is no integer.
        if is_integer && (*number != 0.0 || number.is_sign_positive()) {
            Number::Integer(*number as i64)
        } else {
            Number::Float(*number)
        }
    };
    serializer.collect_seq(numbers.iter().flatten().map(number))
}

/// Returns the size that a list declares for a dimension.
fn declared(sizes: Option<&[Dim]>, axis: usize) -> Option<u64> {
    match sizes?.get(axis)? {
        Dim::Any => None,
        Dim::Fixed(size) => Some(*size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_of_an_example_are_written_as_integers() {
        for numbers in ["[101,-7,0,9007199254740992]", "[0.5,1,-0.0,1e+300]", "[]"] {
            let text =
                format!(r#"{{"name":"x","datatype":"FP32","shape":[-1],"example":{numbers}}}"#);
            let spec: TensorSpec = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&spec).unwrap(), text);
        }
    }

    #[test]
    fn a_signature_accepts_any_size_only_in_variable_dimensions() {
        let spec: TensorSpec =
            serde_json::from_str(r#"{"name":"x","datatype":"FP32","shape":[-1,3,224]}"#).unwrap();
        assert!(spec.accepts(&Shape::new(&[9, 3, 224]).unwrap()));
        assert!(!spec.accepts(&Shape::new(&[9, 4, 224]).unwrap()));
        assert!(!spec.accepts(&Shape::new(&[9, 3]).unwrap()));
        assert_eq!(spec.shape_text(), "[-1,3,224]");
        assert!(
            serde_json::from_str::<TensorSpec>(r#"{"name":"x","datatype":"FP32","shape":[-2]}"#)
                .is_err()
        );
        assert!(
            serde_json::from_str::<TensorSpec>(r#"{"name":"x","datatype":"FP33","shape":[]}"#)
                .is_err()
        );
    }

    #[test]
    fn a_variable_dimension_has_its_declared_limit_or_shares_that_of_a_row() {
        let spec = |json: &str| -> TensorSpec { serde_json::from_str(json).unwrap() };
        let oversized = |spec: &TensorSpec, dims: &[i64], first| {
            spec.oversized_dim(&Shape::new(dims).unwrap(), first)
                .map(|dim| (dim.axis, dim.limit, dim.declared))
        };
        let open = spec(r#"{"name":"x","datatype":"FP32","shape":[-1,-1,2]}"#);
        let most = (TensorSpec::MAX_ROW_ELEMENTS / 2).cast_signed();
        assert_eq!(oversized(&open, &[64, most, 2], 1), None);
        let limit = most.cast_unsigned();
        assert_eq!(
            oversized(&open, &[1, most + 1, 2], 1),
            Some((1, limit, false))
        );
        // Without a batch dimension the first dimension is one like the others.
        assert_eq!(
            oversized(&open, &[64, most, 2], 0),
            Some((1, limit / 64, false))
        );
        // An empty dimension does not hide an absurd other one.
        let flat = spec(r#"{"name":"x","datatype":"FP32","shape":[-1,-1,-1]}"#);
        assert_eq!(
            oversized(&flat, &[1, 0, 1 << 39], 1),
            Some((2, 4 << 20, false))
        );

        let limited =
            spec(r#"{"name":"x","datatype":"FP32","shape":[-1,-1,-1],"max_shape":[-1,512,-1]}"#);
        assert_eq!(oversized(&limited, &[8, 512, 8192], 1), None);
        assert_eq!(oversized(&limited, &[8, 513, 1], 1), Some((1, 512, true)));
        assert_eq!(
            oversized(&limited, &[8, 512, 8193], 1),
            Some((2, 8192, false))
        );
        // Where all variable dimensions have declared limits, only these count.
        let large =
            spec(r#"{"name":"x","datatype":"FP32","shape":[-1,-1,4],"max_shape":[-1,9000000,4]}"#);
        assert_eq!(oversized(&large, &[8, 9_000_000, 4], 1), None);
        let fixed = spec(r#"{"name":"x","datatype":"FP32","shape":[-1,9000000]}"#);
        assert_eq!(oversized(&fixed, &[8, 9_000_000], 1), None);
    }

    #[test]
    fn a_datatype_holds_the_numbers_of_its_range() {
        for (datatype, held, other) in [
            (Datatype::Bool, &[0.0, 1.0][..], &[2.0, 0.5, -1.0][..]),
            (Datatype::Int8, &[-128.0, 127.0], &[-129.0, 128.0, 1.5]),
            (Datatype::Uint16, &[65_535.0], &[-1.0, 65_536.0]),
            (Datatype::Int64, &[-9e15], &[1e16, f64::NAN]),
            (Datatype::Fp16, &[0.1, -65_504.0], &[65_505.0]),
            (Datatype::Fp32, &[1e38], &[1e39, f64::INFINITY]),
            (Datatype::Fp64, &[1e300], &[f64::NAN]),
            (Datatype::Bytes, &[], &[0.0]),
        ] {
            assert!(held.iter().all(|n| datatype.holds(*n)), "{datatype}");
            assert!(!other.iter().any(|n| datatype.holds(*n)), "{datatype}");
        }
    }

    #[test]
    fn datatypes_print_as_they_are_read() {
        for datatype in Datatype::ALL {
            assert_eq!(datatype.as_str().parse(), Ok(datatype));
            assert_eq!(
                serde_json::to_string(&datatype).unwrap(),
                format!("\"{datatype}\"")
            );
        }
    }
}

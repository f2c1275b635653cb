//! Shapes of tensors, and the dimensions of signatures.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The error for a list of dimensions that is not a valid shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// There are more dimensions than [`Shape::MAX_RANK`].
    #[error("rank {0} is over the limit of {max}", max = Shape::MAX_RANK)]
    Rank(usize),
    /// A dimension is negative, or below -1 in a signature.
    #[error("dimension {index} is {value}")]
    Dimension {
        /// The index of the dimension, from 0.
        index: usize,
        /// The given value.
        value: i64,
    },
    /// The product of the dimensions is more than [`Shape::MAX_ELEMENTS`].
    #[error("the product of the dimensions is over the limit of {max} elements", max = Shape::MAX_ELEMENTS)]
    Elements,
}

/// The concrete shape of a tensor: its dimensions, slowest first (row-major).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Shape(Vec<u64>);

impl Shape {
    /// The largest number of dimensions of a tensor.
    pub const MAX_RANK: usize = 16;
    /// The largest number of elements of a tensor: 2^40, far above any body limit and far below overflow of the size in bytes.
    pub const MAX_ELEMENTS: u64 = 1 << 40;

    /// Creates a shape after checking the rank, the signs and the number of elements.
    pub fn new(dims: &[i64]) -> Result<Self, ShapeError> {
        if dims.len() > Self::MAX_RANK {
            return Err(ShapeError::Rank(dims.len()));
        }
        let mut checked = Vec::with_capacity(dims.len());
        for (index, &value) in dims.iter().enumerate() {
            checked.push(u64::try_from(value).map_err(|_| ShapeError::Dimension { index, value })?);
        }
        // A dimension of 0 makes the product 0, but must not hide an absurd other dimension.
        let bound = checked
            .iter()
            .try_fold(1_u64, |product, &dim| product.checked_mul(dim.max(1)));
        match bound {
            Some(elements) if elements <= Self::MAX_ELEMENTS => Ok(Self(checked)),
            _ => Err(ShapeError::Elements),
        }
    }

    /// Returns the dimensions.
    pub fn dims(&self) -> &[u64] {
        &self.0
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of elements; 1 for a scalar.
    pub fn elements(&self) -> u64 {
        self.0.iter().product()
    }

    /// Returns the shape with dimension `axis` replaced. Panics if there is no such axis.
    #[must_use]
    pub fn with_dim(&self, axis: usize, size: u64) -> Self {
        let mut dims = self.0.clone();
        dims[axis] = size;
        Self(dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_dims(f, self.0.iter())
    }
}

/// Writes dimensions in the protocol's notation: `[-1,3,224,224]`.
pub(crate) fn write_dims<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    dims: impl Iterator<Item = T>,
) -> fmt::Result {
    f.write_str("[")?;
    for (i, dim) in dims.enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        write!(f, "{dim}")?;
    }
    f.write_str("]")
}

/// A dimension of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub enum Dim {
    /// A dimension of any size, written -1.
    Any,
    /// A dimension of this size.
    Fixed(u64),
}

impl TryFrom<i64> for Dim {
    type Error = ShapeError;

    fn try_from(value: i64) -> Result<Self, ShapeError> {
        match value {
            -1 => Ok(Self::Any),
            _ => u64::try_from(value)
                .map(Self::Fixed)
                .map_err(|_| ShapeError::Dimension { index: 0, value }),
        }
    }
}

impl From<Dim> for i64 {
    fn from(dim: Dim) -> i64 {
        match dim {
            Dim::Any => -1,
            Dim::Fixed(size) => i64::try_from(size).unwrap_or(i64::MAX),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        i64::from(*self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn absurd_shapes_are_refused_before_their_product_overflows() {
        assert_eq!(Shape::new(&[i64::MAX, 2]), Err(ShapeError::Elements));
        assert_eq!(
            Shape::new(&[0, i64::MAX, i64::MAX]),
            Err(ShapeError::Elements)
        );
        assert_eq!(
            Shape::new(&[3, -1]),
            Err(ShapeError::Dimension {
                index: 1,
                value: -1
            })
        );
        assert_eq!(Shape::new(&[1; 17]), Err(ShapeError::Rank(17)));
        assert_eq!(Shape::new(&[]).unwrap().elements(), 1);
        assert_eq!(Shape::new(&[0, 5]).unwrap().elements(), 0);
    }

    proptest! {
        #[test]
        fn no_list_of_dimensions_panics(dims in proptest::collection::vec(any::<i64>(), 0..20)) {
            if let Ok(shape) = Shape::new(&dims) {
                prop_assert!(shape.elements() <= Shape::MAX_ELEMENTS);
            }
        }
    }
}

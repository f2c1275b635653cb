//! The classes of operators, which differ in how much of a device they use.

/// A class of operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperatorClass {
    /// Convolutions with a window of 1 x 1, which are matrix products.
    Convolution1x1,
    /// Convolutions with a window of 3 x 3 and no stride, which Winograd's algorithm computes with fewer multiplications.
    Convolution3x3,
    /// All other convolutions in one group.
    Convolution,
    /// Convolutions in several groups.
    GroupedConvolution,
    /// Convolutions with a group for each channel.
    DepthwiseConvolution,
    /// Matrix products.
    Product,
    /// Products of many pairs of matrices.
    BatchedProduct,
    /// Normalisations.
    Normalization,
    /// Pooling, softmax, means and sums.
    Reduction,
    /// Operators that work element by element.
    Pointwise,
    /// Copies and concatenations.
    Copy,
    /// Lookups by an index.
    Lookup,
}

impl OperatorClass {
    /// The number of classes that multiply and add. They come first.
    pub(crate) const COMPUTING: usize = 7;

    /// Returns the class of an operator by its name in an [`OperatorGraph`](crate::OperatorGraph).
    pub fn of(name: &str) -> Self {
        match name.trim_end_matches('_') {
            "convolution_1x1" => Self::Convolution1x1,
            "convolution_3x3" => Self::Convolution3x3,
            "convolution" => Self::Convolution,
            "grouped_convolution" => Self::GroupedConvolution,
            "depthwise_convolution" => Self::DepthwiseConvolution,
            "mm" | "addmm" => Self::Product,
            "bmm" | "baddbmm" | "scaled_dot_product_attention" => Self::BatchedProduct,
            "embedding" | "index_select" | "gather" | "index" => Self::Lookup,
            "copy" | "cat" | "clone" | "constant_pad_nd" | "fill" | "arange" | "zeros" | "ones"
            | "full" => Self::Copy,
            "mean" | "sum" | "max" | "amax" | "cumsum" | "var" | "argmax" => Self::Reduction,
            other if other.contains("pool") || other.contains("softmax") => Self::Reduction,
            other if other.contains("norm") => Self::Normalization,
            _ => Self::Pointwise,
        }
    }

    /// Returns true for classes whose operators multiply and add.
    pub(crate) fn computes(self) -> bool {
        self.index() < Self::COMPUTING
    }

    pub(crate) fn is_convolution(self) -> bool {
        self <= Self::DepthwiseConvolution
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_classified_by_name_in_place_or_not() {
        for (name, class) in [
            ("convolution_3x3", OperatorClass::Convolution3x3),
            ("depthwise_convolution", OperatorClass::DepthwiseConvolution),
            ("addmm", OperatorClass::Product),
            ("bmm", OperatorClass::BatchedProduct),
            (
                "scaled_dot_product_attention",
                OperatorClass::BatchedProduct,
            ),
            ("native_layer_norm", OperatorClass::Normalization),
            ("max_pool2d_with_indices", OperatorClass::Reduction),
            ("_softmax", OperatorClass::Reduction),
            ("relu_", OperatorClass::Pointwise),
            ("copy_", OperatorClass::Copy),
            ("index_select", OperatorClass::Lookup),
            ("an_operator_of_tomorrow", OperatorClass::Pointwise),
        ] {
            assert_eq!(OperatorClass::of(name), class, "{name}");
        }
        assert!(OperatorClass::BatchedProduct.computes());
        assert!(!OperatorClass::Normalization.computes());
    }
}

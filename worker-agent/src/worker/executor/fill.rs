//! The content of synthetic inputs.

/// The content of synthetic inputs. Floating-point numbers are always zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Integers and booleans are one, because lengths and masks are usually not zero.
    Ones,
    /// All elements are zero, for programs to which a one is an index out of range.
    Zeros,
}

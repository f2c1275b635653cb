//! The content of synthetic inputs.

/// The content of synthetic inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// The elements of the examples, repeated; inputs without one as of [`Fill::Ones`].
    Examples,
    /// Integers and booleans are one, because lengths and masks are usually not zero; floating-point numbers are zero.
    Ones,
    /// All elements are zero, for programs to which a one is an index out of range.
    Zeros,
    /// Integers and booleans are one, and floating-point numbers are random ones below one, for programs that invert or divide by what they get.
    Fractions,
}

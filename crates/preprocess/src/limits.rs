//! The limits of pictures, which are refused by their heads.

/// The longest side of a picture, in pixels.
pub(crate) const MAX_SIDE: u32 = 16_384;
/// The most pixels of a picture.
pub(crate) const MAX_PIXELS: u64 = 50_000_000;

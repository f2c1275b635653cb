//! The kinds of pictures.

use std::fmt;

/// A kind of picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureKind {
    /// JPEG, baseline or progressive.
    Jpeg,
    /// PNG, of 8 bits a channel at most.
    Png,
    /// WebP, lossy or lossless.
    Webp,
}

impl fmt::Display for PictureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::Webp => "WebP",
        })
    }
}

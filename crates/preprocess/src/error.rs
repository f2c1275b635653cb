//! What is wrong with a picture.

use crate::{PictureKind, limits};

/// The reason why a picture is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// No bytes at all.
    #[error("the picture is empty")]
    Empty,
    /// Bytes that begin as no known kind of picture does.
    #[error("not a picture of JPEG, PNG or WebP: it begins with {0}")]
    Unknown(String),
    /// A side that is too long.
    #[error(
        "the {kind} has {width} x {height} pixels, over the limit of {} a side",
        limits::MAX_SIDE
    )]
    Side {
        /// The kind of picture.
        kind: PictureKind,
        /// The declared width.
        width: u32,
        /// The declared height.
        height: u32,
    },
    /// Too many pixels.
    #[error(
        "the {kind} has {width} x {height} pixels, over the limit of {} together",
        limits::MAX_PIXELS
    )]
    Pixels {
        /// The kind of picture.
        kind: PictureKind,
        /// The declared width.
        width: u32,
        /// The declared height.
        height: u32,
    },
    /// A picture that Pillow may read, but this crate does not.
    #[error("the {kind} is not supported: {what}")]
    Unsupported {
        /// The kind of picture.
        kind: PictureKind,
        /// The property that is not supported.
        what: &'static str,
    },
    /// A picture that ends early or contradicts itself.
    #[error("the {kind} is damaged: {problem}")]
    Damaged {
        /// The kind of picture.
        kind: PictureKind,
        /// What is wrong, and where as far as that is known.
        problem: String,
    },
}

impl PictureError {
    /// Returns the error of a damaged picture.
    pub(crate) fn damaged(kind: PictureKind, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self::Damaged { kind, problem }
    }
}

//! What a picture tells of itself, and the memory that it takes.

use packhorse_cluster::ImagePreprocess;

use crate::{PictureKind, exif::Orientation, limits};

/// What a picture tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind of picture.
    pub kind: PictureKind,
    /// The width, in pixels, before the picture is turned.
    pub width: u32,
    /// The height, in pixels, before the picture is turned.
    pub height: u32,
    /// The orientation that its EXIF declares.
    pub(crate) orientation: Orientation,
    /// The bytes that decoding takes for each pixel, beside the file and the pixels themselves.
    pub(crate) work: u64,
}

impl Head {
    /// The longest side of a picture, in pixels.
    pub const MAX_SIDE: u32 = limits::MAX_SIDE;
    /// The most pixels of a picture: 50 million, those of a telephone's largest photograph.
    pub const MAX_PIXELS: u64 = limits::MAX_PIXELS;

    /// Returns the number of pixels.
    pub fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Returns the most bytes that making a row of the picture takes, beside its file and the row.
    pub fn memory(&self, declared: &ImagePreprocess) -> u64 {
        let [height, width] = declared.size().map(u64::from);
        let turned = u64::from(declared.exif && self.orientation.is_turned());
        let pixels = self.pixels() * (3 + 3 * turned + self.work);
        // Between the two passes of the resize lie as many rows as the picture has.
        let between = u64::from(self.width.max(self.height)) * width * 3;
        // The weights of both axes: a window is at most as wide as the picture.
        let weights = (u64::from(self.width) + u64::from(self.height)) * 4 * 5;
        // Those of the columns are there once more, as pairs for each channel.
        let weights = weights + (u64::from(self.width) + width) * 16 * 5;
        pixels + between + weights + (width + height) * 64 + height * width * 3
    }
}

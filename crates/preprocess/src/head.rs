//! What the first bytes of a picture tell, before any pixel is decoded.

use std::fmt;

use packhorse_cluster::ImagePreprocess;

use crate::{PictureError, exif::Orientation, jpeg_head, png_head, webp_head};

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
    pub const MAX_SIDE: u32 = 16_384;
    /// The most pixels of a picture: 50 million, those of a telephone's largest photograph.
    pub const MAX_PIXELS: u64 = 50_000_000;

    /// Reads the head of a picture.
    ///
    /// # Errors
    /// The bytes are no picture of a known kind, or one that is too large or not supported.
    pub fn read(bytes: &[u8]) -> Result<Self, PictureError> {
        let head = match bytes {
            [] => return Err(PictureError::Empty),
            [0xff, 0xd8, ..] => jpeg_head::read(bytes)?,
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => png_head::read(bytes)?,
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => webp_head::read(bytes)?,
            _ => {
                let first: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
                return Err(PictureError::Unknown(first.join(" ")));
            }
        };
        let Self {
            kind,
            width,
            height,
            ..
        } = head;
        if width == 0 || height == 0 {
            let problem = format!("it has {width} x {height} pixels");
            return Err(PictureError::damaged(kind, problem));
        }
        if width > Self::MAX_SIDE || height > Self::MAX_SIDE {
            return Err(PictureError::Side {
                kind,
                width,
                height,
            });
        }
        if head.pixels() > Self::MAX_PIXELS {
            return Err(PictureError::Pixels {
                kind,
                width,
                height,
            });
        }
        Ok(head)
    }

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
        pixels + between + weights + (width + height) * 64 + height * width * 3
    }
}

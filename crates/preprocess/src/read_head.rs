//! The reading of what the first bytes of a picture tell, before any pixel is decoded.

use crate::{Head, PictureError, jpeg_head, png_head, webp_head};

impl Head {
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
}

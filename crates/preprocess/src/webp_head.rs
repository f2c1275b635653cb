//! The chunks of a WebP.
//!
//! Source: RFC 9649.

use crate::{
    Head, PictureError, PictureKind,
    exif::{self, Orientation},
};

const KIND: PictureKind = PictureKind::Webp;
/// The bytes that decoding takes for each pixel: planes of lossy ones, alpha and the tables of lossless ones.
const WORK: u64 = 12;

/// Reads the size and what decides whether it is supported.
pub(crate) fn read(bytes: &[u8]) -> Result<Head, PictureError> {
    let Some((name, content, mut at)) = chunk(bytes, 12) else {
        return Err(ends_early());
    };
    let (width, height) = match (name, content) {
        // A key frame: its tag, its start code, and 14 bits for each side.
        (b"VP8 ", [_, _, _, 0x9d, 0x01, 0x2a, w, idth, h, eight, ..]) => (
            u32::from(u16::from_le_bytes([*w, *idth]) & 0x3fff),
            u32::from(u16::from_le_bytes([*h, *eight]) & 0x3fff),
        ),
        (b"VP8L", [0x2f, a, b, c, d, ..]) => {
            let bits = u32::from_le_bytes([*a, *b, *c, *d]);
            ((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1)
        }
        (b"VP8X", [flags, _, _, _, w, id, th, h, eig, ht, ..]) => {
            if flags & 0x02 != 0 {
                let what = "animated";
                return Err(PictureError::Unsupported { kind: KIND, what });
            }
            (
                u32::from_le_bytes([*w, *id, *th, 0]) + 1,
                u32::from_le_bytes([*h, *eig, *ht, 0]) + 1,
            )
        }
        _ => return Err(ends_early()),
    };
    let mut orientation = Orientation::default();
    while let Some((name, content, end)) = chunk(bytes, at) {
        if name == b"EXIF" {
            orientation = exif::orientation(content.strip_prefix(b"Exif\0\0").unwrap_or(content));
        }
        at = end;
    }
    Ok(Head {
        kind: KIND,
        width,
        height,
        orientation,
        work: WORK,
    })
}

/// Returns the name, the content and the end of the chunk at this place; the content of one that ends early as far as it goes.
fn chunk(bytes: &[u8], at: usize) -> Option<(&[u8], &[u8], usize)> {
    let name = bytes.get(at..at.checked_add(4)?)?;
    let length = bytes.get(at + 4..at + 8)?.try_into().ok()?;
    let length = u32::from_le_bytes(length) as usize;
    let content = &bytes[at + 8..];
    let content = content.get(..length).unwrap_or(content);
    Some((name, content, (at + 8).saturating_add(length + length % 2)))
}

fn ends_early() -> PictureError {
    PictureError::damaged(KIND, "it ends before its size")
}

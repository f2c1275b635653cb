//! The chunks of a PNG, up to its pixels.

use crate::{
    Head, PictureError, PictureKind,
    exif::{self, Orientation},
};

const KIND: PictureKind = PictureKind::Png;

/// Reads the size and what decides whether it is supported.
pub(crate) fn read(bytes: &[u8]) -> Result<Head, PictureError> {
    let mut head = None;
    let mut orientation = Orientation::default();
    let mut at = 8;
    while let Some((name, content, end)) = chunk(bytes, at) {
        match (name, &head) {
            (b"IHDR", None) => head = Some(header(content)?),
            (_, None) | (b"IDAT", _) => break,
            (b"acTL", _) => return Err(unsupported("animated")),
            (b"eXIf", _) => orientation = exif::orientation(content),
            _ => {}
        }
        at = end;
    }
    let problem = "it does not begin with its size";
    let mut head: Head = head.ok_or_else(|| PictureError::damaged(KIND, problem))?;
    head.orientation = orientation;
    Ok(head)
}

/// Returns the name, the content and the end of the chunk at this place; the content of one that ends early as far as it goes.
fn chunk(bytes: &[u8], at: usize) -> Option<(&[u8], &[u8], usize)> {
    let length = bytes.get(at..at + 4)?.try_into().ok()?;
    let length = u32::from_be_bytes(length) as usize;
    let name = bytes.get(at + 4..at + 8)?;
    let content = &bytes[at + 8..];
    let content = content.get(..length).unwrap_or(content);
    Some((name, content, (at + 12).saturating_add(length)))
}

fn header(content: &[u8]) -> Result<Head, PictureError> {
    let sides = content.split_first_chunk::<4>();
    let sides = sides.and_then(|(width, rest)| Some((width, rest.split_first_chunk::<4>()?)));
    let Some((width, (height, &[bits, ..]))) = sides else {
        return Err(PictureError::damaged(KIND, "its header ends early"));
    };
    if bits == 16 {
        return Err(unsupported("16 bits a channel"));
    }
    Ok(Head {
        kind: KIND,
        width: u32::from_be_bytes(*width),
        height: u32::from_be_bytes(*height),
        orientation: Orientation::default(),
        work: 4,
    })
}

fn unsupported(what: &'static str) -> PictureError {
    PictureError::Unsupported { kind: KIND, what }
}

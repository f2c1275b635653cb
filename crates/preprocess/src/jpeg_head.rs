//! The markers of a JPEG, up to its end.
//!
//! Source: ITU-T T.81, annex B.

use memchr::memchr;

use crate::{
    Head, PictureError, PictureKind,
    exif::{self, Orientation},
};

/// The most scans of a progressive picture. Cameras and encoders write about ten; each of them goes through the whole picture.
const MAX_SCANS: u32 = 100;

const KIND: PictureKind = PictureKind::Jpeg;

/// Reads the size and what decides whether it is supported.
pub(crate) fn read(bytes: &[u8]) -> Result<Head, PictureError> {
    let mut head = None;
    let mut orientation = Orientation::default();
    let (mut at, mut scans) = (2, 0);
    while let Some((marker, after)) = next_marker(bytes, at) {
        at = after;
        match marker {
            // Restarts and what stands alone.
            0x01 | 0xd0..=0xd8 => continue,
            0xd9 => break,
            _ => {}
        }
        let Some(segment) = segment(bytes, at) else {
            return Err(damaged(at, "a segment ends early"));
        };
        match marker {
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                if head.is_some() {
                    return Err(damaged(at, "a second frame begins"));
                }
                head = Some(frame(marker, segment, at)?);
            }
            0xda => {
                scans += 1;
                if scans > MAX_SCANS {
                    return Err(unsupported("more than 100 scans"));
                }
            }
            0xe1 => {
                if let Some(exif) = segment.strip_prefix(b"Exif\0\0") {
                    orientation = exif::orientation(exif);
                }
            }
            _ => {}
        }
        at += 2 + segment.len();
    }
    let mut head: Head = head.ok_or_else(|| damaged(bytes.len(), "it ends before its size"))?;
    head.orientation = orientation;
    Ok(head)
}

/// Returns the next marker and the place after it; entropy-coded data before it is skipped.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += memchr(0xff, bytes.get(at..)?)?;
        // Any number of fill bytes precedes a marker, and 0 is data.
        while bytes.get(at)? == &0xff {
            at += 1;
        }
        let marker = bytes[at];
        at += 1;
        if marker != 0 {
            return Some((marker, at));
        }
    }
}

/// Returns the content of the segment whose length is at this place.
fn segment(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let length = u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]);
    bytes.get(at + 2..at + usize::from(length).max(2))
}

/// Reads the header of a frame.
fn frame(marker: u8, segment: &[u8], at: usize) -> Result<Head, PictureError> {
    if !matches!(marker, 0xc0..=0xc2) {
        let what = "lossless, hierarchical or with arithmetic coding";
        return Err(unsupported(what));
    }
    let &[bits, h, eight, w, idth, components, ..] = segment else {
        return Err(damaged(at, "the header of its frame ends early"));
    };
    if bits != 8 {
        return Err(unsupported("other than 8 bits a channel"));
    }
    match components {
        1 | 3 => {}
        4 => return Err(unsupported("CMYK; convert it to RGB")),
        _ => return Err(unsupported("neither grey nor of three channels")),
    }
    // A progressive picture is kept as coefficients of 2 bytes until its last scan.
    let work = if marker == 0xc2 { 6 } else { 0 };
    Ok(Head {
        kind: KIND,
        width: u16::from_be_bytes([w, idth]).into(),
        height: u16::from_be_bytes([h, eight]).into(),
        orientation: Orientation::default(),
        work,
    })
}

fn damaged(at: usize, problem: &str) -> PictureError {
    PictureError::damaged(KIND, format!("{problem} at byte {at}"))
}

fn unsupported(what: &'static str) -> PictureError {
    PictureError::Unsupported { kind: KIND, what }
}

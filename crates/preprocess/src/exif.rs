//! The orientation of a picture: one tag of its EXIF.

/// The way in which a picture is turned and mirrored to be seen upright, 1 to 8 as EXIF has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orientation(u8);

impl Default for Orientation {
    fn default() -> Self {
        Self(1)
    }
}

const ORIENTATION: u16 = 0x0112;
const SHORT: u16 = 3;

/// Reads the orientation from the TIFF of an EXIF. One that does not tell it, or is damaged, tells the usual one.
pub(crate) fn orientation(tiff: &[u8]) -> Orientation {
    let value = read(tiff).unwrap_or(1);
    Orientation(
        u8::try_from(value)
            .ok()
            .filter(|o| (1..=8).contains(o))
            .unwrap_or(1),
    )
}

fn read(tiff: &[u8]) -> Option<u16> {
    let is_little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little {
            u16::from_le_bytes(bytes)
        } else {
            u16::from_be_bytes(bytes)
        })
    };
    let long = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if is_little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        })
    };
    let directory = long(4)? as usize;
    let entries = short(directory)?;
    let entry = |index: u16| directory.saturating_add(2 + 12 * usize::from(index));
    let at = { (0..entries).map(entry) }.find(|at| short(*at) == Some(ORIENTATION))?;
    (short(at + 2)? == SHORT).then(|| short(at + 8))?
}

impl Orientation {
    /// Returns true if the picture is not upright as it is.
    pub(crate) fn is_turned(self) -> bool {
        self.0 != 1
    }

    /// Returns the upright picture of RGB pixels, with its width and height.
    pub(crate) fn upright(
        self,
        pixels: Vec<u8>,
        width: usize,
        height: usize,
    ) -> (Vec<u8>, usize, usize) {
        if !self.is_turned() {
            return (pixels, width, height);
        }
        let (across, down) = if self.0 >= 5 {
            (height, width)
        } else {
            (width, height)
        };
        let (right, bottom) = (width - 1, height - 1);
        let mut upright = Vec::with_capacity(pixels.len());
        for y in 0..down {
            for x in 0..across {
                let (from_x, from_y) = match self.0 {
                    2 => (right - x, y),
                    3 => (right - x, bottom - y),
                    4 => (x, bottom - y),
                    5 => (y, x),
                    6 => (y, bottom - x),
                    7 => (right - y, bottom - x),
                    _ => (right - y, x),
                };
                let at = (from_y * width + from_x) * 3;
                upright.extend_from_slice(&pixels[at..at + 3]);
            }
        }
        (upright, across, down)
    }
}

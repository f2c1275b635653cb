//! From a picture to a row of a tensor.

use half::f16;
use packhorse_cluster::{Channels, CropRounding, Datatype, ImageLayout, ImagePreprocess, Resize};

use crate::{
    Head, PictureError,
    decode::decode,
    resize::{Picture, resize},
    weights::Extent,
};

/// Appends the row of a tensor that a picture becomes: FP32 or FP16, little-endian, or UINT8.
///
/// # Errors
/// The picture is damaged.
pub fn write_row(
    bytes: &[u8],
    head: &Head,
    declared: &ImagePreprocess,
    datatype: Datatype,
    row: &mut Vec<u8>,
) -> Result<(), PictureError> {
    let pixels = decode(bytes, head)?;
    let (width, height) = (head.width as usize, head.height as usize);
    let (pixels, width, height) = if declared.exif {
        head.orientation.upright(pixels, width, height)
    } else {
        (pixels, width, height)
    };
    let picture = Picture {
        pixels: &pixels,
        width,
        height,
    };
    let (x, y) = extents(declared, width, height);
    let cropped = resize(picture, x, y, declared.filter);
    drop(pixels);
    match datatype {
        Datatype::Uint8 => write(&cropped, declared, row, |_, value| [value]),
        Datatype::Fp16 => {
            let table = table(declared);
            write(&cropped, declared, row, |channel, value| {
                f16::from_f32(table[channel][usize::from(value)]).to_le_bytes()
            });
        }
        _ => {
            let table = table(declared);
            write(&cropped, declared, row, |channel, value| {
                table[channel][usize::from(value)].to_le_bytes()
            });
        }
    }
    Ok(())
}

/// Returns the part of the resized picture that is wanted, for both dimensions.
fn extents(declared: &ImagePreprocess, width: usize, height: usize) -> (Extent, Extent) {
    let (to_width, to_height) = match declared.resize {
        Resize::Exact([height, width]) => (width as usize, height as usize),
        Resize::Shortest(side) => {
            let side = side as usize;
            // The longer side is rounded down.
            let longer = |long: usize, short: usize| (side * long) as f64 / short as f64;
            if width <= height {
                (side, longer(height, width) as usize)
            } else {
                (longer(width, height) as usize, side)
            }
        }
    };
    let [wanted_height, wanted_width] = declared.size().map(|side| side as usize);
    let extent = |size: usize, wanted: usize| {
        let left = size.saturating_sub(wanted);
        let from = match declared.crop_rounding {
            CropRounding::Floor => left / 2,
            CropRounding::HalfEven => (left / 2) + usize::from(left % 4 == 3),
        };
        Extent {
            size,
            from,
            count: wanted,
        }
    };
    (
        extent(to_width, wanted_width),
        extent(to_height, wanted_height),
    )
}

/// Returns the number of each value of each channel, in the declared order of the channels.
fn table(declared: &ImagePreprocess) -> [[f32; 256]; 3] {
    let channel = |channel: usize| {
        let (mean, std) = (declared.mean[channel] as f32, declared.std[channel] as f32);
        std::array::from_fn(|value| {
            let scaled = (value as f64 * declared.rescale) as f32;
            (scaled - mean) / std
        })
    };
    std::array::from_fn(channel)
}

/// Appends the elements of RGB pixels in the declared order.
fn write<const N: usize>(
    pixels: &[u8],
    declared: &ImagePreprocess,
    row: &mut Vec<u8>,
    element: impl Fn(usize, u8) -> [u8; N],
) {
    let order = match declared.channels {
        Channels::Rgb => [0, 1, 2],
        Channels::Bgr => [2, 1, 0],
    };
    let begin = row.len();
    row.resize(begin + pixels.len() * N, 0);
    let elements = &mut row[begin..];
    match declared.layout {
        ImageLayout::Nhwc => {
            let rows = elements.chunks_exact_mut(3 * N);
            for (out, pixel) in rows.zip(pixels.chunks_exact(3)) {
                for (channel, (out, from)) in out.chunks_exact_mut(N).zip(order).enumerate() {
                    out.copy_from_slice(&element(channel, pixel[from]));
                }
            }
        }
        ImageLayout::Nchw => {
            let planes = elements.chunks_exact_mut(pixels.len() / 3 * N);
            for (channel, (plane, from)) in planes.zip(order).enumerate() {
                let plane = plane.chunks_exact_mut(N);
                for (out, pixel) in plane.zip(pixels.chunks_exact(3)) {
                    out.copy_from_slice(&element(channel, pixel[from]));
                }
            }
        }
    }
}

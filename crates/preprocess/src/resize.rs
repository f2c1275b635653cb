//! The resize of Pillow, to the bit, of a window of its result.
//!
//! Two passes of whole numbers: weights of 22 bits after the point, and 8 bits between the passes.
//!
//! Source: Pillow, `src/libImaging/Resample.c`, `precompute_coeffs`, `normalize_coeffs_8bpc` and `ImagingResampleHorizontal_8bpc`.

use packhorse_cluster::ImageFilter;

use crate::{
    horizontal::Columns,
    weights::{Axis, Extent, HALF, clip},
};

/// A picture of RGB pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picture<'a> {
    /// The pixels, three bytes each, row by row.
    pub(crate) pixels: &'a [u8],
    /// The width, in pixels.
    pub(crate) width: usize,
    /// The height, in pixels.
    pub(crate) height: usize,
}

/// Returns a window of the resized picture.
pub(crate) fn resize(picture: Picture<'_>, x: Extent, y: Extent, filter: ImageFilter) -> Vec<u8> {
    let across = Axis::new(picture.width, x, filter);
    let down = Axis::new(picture.height, y, filter);
    let (columns, rows) = (across.needed(), down.needed());
    let weighted = Columns::new(&across);
    let line = |row: usize| &picture.pixels[(row * picture.width + columns.start) * 3..];
    if is_vertical_first(picture, x, y) {
        let width = columns.len() * 3;
        let mut sums = vec![0; width];
        let mut between = vec![0; width];
        let mut out = vec![0; x.count * y.count * 3];
        for (window, out) in down.windows().zip(out.chunks_exact_mut(x.count * 3)) {
            vertical(window, line, &mut sums, &mut between);
            weighted.row(&between, columns.start, out);
        }
        return out;
    }
    let width = x.count * 3;
    let mut between = vec![0; rows.len() * width];
    for (row, out) in rows.clone().zip(between.chunks_exact_mut(width)) {
        weighted.row(line(row), columns.start, out);
    }
    let line = |row: usize| &between[(row - rows.start) * width..][..width];
    let mut sums = vec![0; width];
    let mut out = vec![0; y.count * width];
    for (window, out) in down.windows().zip(out.chunks_exact_mut(width)) {
        vertical(window, line, &mut sums, out);
    }
    out
}

/// Returns true if the rows become fewer before the columns do. The order decides about single bits. Pillow 13 has it so, as random sizes of
/// pictures show; before, the columns always went first.
fn is_vertical_first(picture: Picture<'_>, x: Extent, y: Extent) -> bool {
    picture.height > y.size && 2 * picture.width + y.size < picture.height + 2 * x.size
}

/// Makes a row of the result from those of a window.
fn vertical<'a>(
    (start, weights): (usize, &[i32]),
    line: impl Fn(usize) -> &'a [u8],
    sums: &mut [i32],
    out: &mut [u8],
) {
    sums.fill(HALF);
    let weights = { (start..).zip(weights) }.filter(|(_, weight)| **weight != 0);
    for (row, &weight) in weights {
        for (sum, &value) in sums.iter_mut().zip(line(row)) {
            *sum += i32::from(value) * weight;
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = clip(*sum);
    }
}

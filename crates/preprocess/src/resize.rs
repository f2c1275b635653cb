//! The resize of Pillow, to the bit, of a window of its result.
//!
//! Two passes of whole numbers: weights of 22 bits after the point, and 8 bits between the passes.
//!
//! Source: Pillow, `src/libImaging/Resample.c`, `precompute_coeffs`, `normalize_coeffs_8bpc` and `ImagingResampleHorizontal_8bpc`.

use packhorse_cluster::ImageFilter;

/// The bits of a weight after the point.
const BITS: u32 = 22;
const HALF: i32 = 1 << (BITS - 1);

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

/// One dimension of a resize.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The size of the result.
    pub(crate) size: usize,
    /// The first pixel of the result that is wanted.
    pub(crate) from: usize,
    /// The number of pixels that are wanted.
    pub(crate) count: usize,
}

/// Returns a window of the resized picture.
pub(crate) fn resize(picture: Picture<'_>, x: Extent, y: Extent, filter: ImageFilter) -> Vec<u8> {
    let across = Axis::new(picture.width, x, filter);
    let down = Axis::new(picture.height, y, filter);
    let (columns, rows) = (across.needed(), down.needed());
    let line = |row: usize| {
        let at = |column: usize| (row * picture.width + column) * 3;
        &picture.pixels[at(columns.start)..at(columns.end)]
    };
    if is_vertical_first(picture, x, y) {
        let width = columns.len() * 3;
        let mut sums = vec![0; width];
        let mut between = vec![0; width];
        let mut out = vec![0; x.count * y.count * 3];
        for (window, out) in down.windows().zip(out.chunks_exact_mut(x.count * 3)) {
            vertical(window, line, &mut sums, &mut between);
            horizontal(&between, columns.start, &across, out);
        }
        return out;
    }
    let width = x.count * 3;
    let mut between = vec![0; rows.len() * width];
    for (row, out) in rows.clone().zip(between.chunks_exact_mut(width)) {
        horizontal(line(row), columns.start, &across, out);
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

/// Makes a row of the result from a row whose first pixel is that of column `first`.
fn horizontal(row: &[u8], first: usize, axis: &Axis, out: &mut [u8]) {
    for ((start, weights), out) in axis.windows().zip(out.chunks_exact_mut(3)) {
        let pixels = &row[(start - first) * 3..][..weights.len() * 3];
        let (mut r, mut g, mut b) = (HALF, HALF, HALF);
        for (pixel, &weight) in pixels.chunks_exact(3).zip(weights) {
            r += i32::from(pixel[0]) * weight;
            g += i32::from(pixel[1]) * weight;
            b += i32::from(pixel[2]) * weight;
        }
        out.copy_from_slice(&[clip(r), clip(g), clip(b)]);
    }
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

fn clip(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// The weights by which pixels of a dimension become those of the result.
struct Axis {
    /// The first pixel of each window.
    starts: Vec<usize>,
    /// The width of a window; those at the edges are filled with zeros.
    length: usize,
    /// The weights, window by window.
    weights: Vec<i32>,
}

impl Axis {
    fn new(size: usize, extent: Extent, filter: ImageFilter) -> Self {
        let scale = size as f64 / extent.size as f64;
        let stretch = scale.max(1.0);
        let (support, weigh): (f64, fn(f64) -> f64) = match filter {
            ImageFilter::Bilinear => (1.0, bilinear),
            ImageFilter::Bicubic => (2.0, bicubic),
        };
        let support = support * stretch;
        let length = (support.ceil() as usize * 2 + 1).min(size);
        let mut axis = Self {
            starts: Vec::with_capacity(extent.count),
            length,
            weights: vec![0; length * extent.count],
        };
        let mut window = Vec::with_capacity(length);
        let lines = axis.weights.chunks_exact_mut(length);
        for (pixel, weights) in (extent.from..extent.from + extent.count).zip(lines) {
            let center = (pixel as f64 + 0.5) * scale;
            let low = (center - support + 0.5).max(0.0) as usize;
            let high = ((center + support + 0.5) as usize).min(size);
            let at = |x: usize| (x as f64 - center + 0.5) * (1.0 / stretch);
            window.clear();
            window.extend((low..high).map(|x| weigh(at(x))));
            let sum: f64 = window.iter().sum();
            let start = low.min(size - length);
            for (weight, share) in weights[low - start..].iter_mut().zip(&window) {
                let share = if sum == 0.0 { *share } else { share / sum };
                *weight = rounded(share * f64::from(1 << BITS));
            }
            axis.starts.push(start);
        }
        axis
    }

    /// Returns the pixels that any window has.
    fn needed(&self) -> std::ops::Range<usize> {
        let first = self.starts.first().copied().unwrap_or_default();
        let last = self.starts.last().copied().unwrap_or_default();
        first..last + self.length
    }

    fn windows(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let weights = self.weights.chunks_exact(self.length);
        self.starts.iter().copied().zip(weights)
    }
}

fn rounded(weight: f64) -> i32 {
    if weight < 0.0 {
        (weight - 0.5) as i32
    } else {
        (weight + 0.5) as i32
    }
}

fn bilinear(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 { 1.0 - x } else { 0.0 }
}

fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

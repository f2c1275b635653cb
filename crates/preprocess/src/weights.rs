//! The weights of a resize, and the sums that they make of the pixels of a row.
//!
//! Source: Pillow, `src/libImaging/Resample.c`, `precompute_coeffs`, `normalize_coeffs_8bpc` and `ImagingResampleHorizontal_8bpc`.

use packhorse_cluster::ImageFilter;

/// The bits of a weight after the point.
pub(crate) const BITS: u32 = 22;
/// Half a level, so that a sum is rounded.
pub(crate) const HALF: i32 = 1 << (BITS - 1);

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

/// Returns the level of a sum of weighted levels.
pub(crate) fn clip(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// The weights by which pixels of a dimension become those of the result.
pub(crate) struct Axis {
    /// The first pixel of each window.
    starts: Vec<usize>,
    /// The width of a window; those at the edges are filled with zeros.
    length: usize,
    /// The weights, window by window.
    weights: Vec<i32>,
}

impl Axis {
    pub(crate) fn new(size: usize, extent: Extent, filter: ImageFilter) -> Self {
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
    pub(crate) fn needed(&self) -> std::ops::Range<usize> {
        let first = self.starts.first().copied().unwrap_or_default();
        let last = self.starts.last().copied().unwrap_or_default();
        first..last + self.length
    }

    /// Returns the width of a window.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the first pixel of each window.
    pub(crate) fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Returns the first pixel and the weights of each window.
    pub(crate) fn windows(&self) -> impl Iterator<Item = (usize, &[i32])> {
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

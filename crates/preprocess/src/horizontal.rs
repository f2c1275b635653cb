//! The horizontal pass of a resize: sums of weighted pixels of a row.
//!
//! Two pixels are multiplied at once, in all channels. Processors have an instruction for that with factors of 16 bits, so a weight is its lowest 15 bits and the
//! rest; the sums of both make those of the whole weights, to the bit.

use wide::{i16x8, i32x4, u8x16};

use crate::weights::{Axis, HALF, clip};

/// The lower bits of a weight, so many that they are a positive number of 16 bits.
const LOW: u32 = 15;

/// Two weights, repeated for each channel: their lower bits, and the rest.
struct Pair {
    low: i16x8,
    high: i16x8,
}

/// The weights of the columns.
pub(crate) struct Columns<'a> {
    axis: &'a Axis,
    /// The pairs of all windows, one after the other.
    pairs: Vec<Pair>,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(axis: &'a Axis) -> Self {
        let of_window = |(_, weights): (usize, &'a [i32])| weights.chunks(2);
        let pair = |weights: &[i32]| {
            let both = |part: fn(i32) -> i32| {
                let weight = |i: usize| weights.get(i).map_or(0, |weight| part(*weight) as i16);
                let [first, second] = [0, 1].map(weight);
                i16x8::new([first, second, first, second, first, second, 0, 0])
            };
            Pair {
                low: both(|weight| weight & ((1 << LOW) - 1)),
                high: both(|weight| weight >> LOW),
            }
        };
        Self {
            axis,
            pairs: axis.windows().flat_map(of_window).map(pair).collect(),
        }
    }

    /// Makes a row of the result from a row whose first pixel is that of column `first`. More bytes may follow it.
    pub(crate) fn row(&self, row: &[u8], first: usize, out: &mut [u8]) {
        let windows = self.pairs.chunks_exact(self.axis.length().div_ceil(2));
        let starts = self.axis.starts().iter().zip(windows);
        for ((start, pairs), out) in starts.zip(out.chunks_exact_mut(3)) {
            let (mut low, mut high) = (i32x4::splat(HALF), i32x4::splat(0));
            let mut at = (start - first) * 3;
            for pair in pairs {
                let levels = two_pixels(&row[at..]);
                low += levels.dot(pair.low);
                high += levels.dot(pair.high);
                at += 6;
            }
            let [r, g, b, _] = (low + (high << LOW)).to_array();
            out.copy_from_slice(&[clip(r), clip(g), clip(b)]);
        }
    }
}

/// Returns the levels of the first two pixels, channel by channel. Behind the end of a row they are zero; their weights are, too.
fn two_pixels(row: &[u8]) -> i16x8 {
    match row.first_chunk::<19>() {
        Some(bytes) => levels(bytes),
        None => last_pixels(row),
    }
}

fn levels(bytes: &[u8; 19]) -> i16x8 {
    let from = |begin: usize| {
        let mut pixels = [0; 16];
        pixels.copy_from_slice(&bytes[begin..begin + 16]);
        u8x16::new(pixels)
    };
    i16x8::from_u8x16_low(u8x16::unpack_low(from(0), from(3)))
}

#[cold]
fn last_pixels(row: &[u8]) -> i16x8 {
    let mut bytes = [0; 19];
    bytes[..row.len()].copy_from_slice(row);
    levels(&bytes)
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::ImageFilter;
    use proptest::prelude::*;

    use super::*;
    use crate::weights::Extent;

    /// Makes a row one product at a time.
    fn by_one(row: &[u8], axis: &Axis, out: &mut [u8]) {
        for ((start, weights), out) in axis.windows().zip(out.chunks_exact_mut(3)) {
            let sum = |channel: usize| {
                let pixels = row[start * 3..].chunks_exact(3).zip(weights);
                let products = pixels.map(|(pixel, weight)| i32::from(pixel[channel]) * weight);
                clip(HALF + products.sum::<i32>())
            };
            out.copy_from_slice(&[0, 1, 2].map(sum));
        }
    }

    proptest! {
        #[test]
        fn both_ways_make_the_same_row(
            pixels in prop::collection::vec(any::<[u8; 3]>(), 1..150),
            size in 1_usize..200,
            is_bicubic: bool,
        ) {
            let row = pixels.as_flattened();
            let filter = if is_bicubic { ImageFilter::Bicubic } else { ImageFilter::Bilinear };
            let all = Extent { size, from: 0, count: size };
            let axis = Axis::new(pixels.len(), all, filter);
            let (mut one, mut other) = (vec![0; size * 3], vec![0; size * 3]);
            by_one(row, &axis, &mut one);
            Columns::new(&axis).row(row, 0, &mut other);
            prop_assert_eq!(one, other);
        }
    }
}

//! A quick hash for numbers that this process hands out itself.

use std::hash::{BuildHasherDefault, Hasher};

/// For maps that are keyed by our own numbers, which nobody outside can choose so that they collide.
pub(crate) type NumberHasher = BuildHasherDefault<Number>;

/// Spreads a number by one multiplication.
///
/// Source: Knuth, "The Art of Computer Programming", volume 3, section 6.4, Fibonacci hashing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Number(u64);

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let spread = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Tables take the low bits, and multiplication mixes upwards.
        self.0 = spread ^ (spread >> 32);
    }
}

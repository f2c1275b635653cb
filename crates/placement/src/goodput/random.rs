//! Pseudorandom numbers that are the same in every run.

/// A linear congruential generator.
///
/// Source: Knuth, "The Art of Computer Programming", volume 2, section 3.3.4, table 1 (MMIX).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        Self(1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    /// Returns a whole number from 0, below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() as usize * limit) >> 32
    }

    /// Returns a number from 0 to 1.
    pub(super) fn unit(&mut self) -> f64 {
        self.next() as f64 / 4_294_967_296.0
    }
}

//! Random numbers from a seed: `SplitMix64` (G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA
//! 2014).

use std::time::Duration;

use crate::settings::Jitter;

/// A generator whose numbers follow from its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a whole number from 0 to below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        (self.unit() * count as f64) as usize
    }

    /// Returns true with this probability.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns a time between two others.
    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + most.saturating_sub(least).mul_f64(self.unit())
    }

    /// Returns the time until the next of events that come at this rate, in events/s, independently of each other.
    pub(crate) fn exponential(&mut self, rate: f64) -> Duration {
        Duration::from_secs_f64(-(1.0 - self.unit()).ln() / rate)
    }

    /// Returns a time that a message takes of which this is the longest.
    pub(crate) fn delay(&mut self, longest: Duration) -> Duration {
        if longest.is_zero() {
            return longest;
        }
        self.between(longest / 4, longest)
    }

    /// Returns a batch time of which this is the expected one.
    pub(crate) fn jittered(&mut self, time: Duration, jitter: Jitter) -> Duration {
        match jitter {
            Jitter::None => time,
            Jitter::UpTo(part) => time.mul_f64(1.0 + part * self.unit()),
            Jitter::Exponential => time.mul_f64(self.exponential(1.0).as_secs_f64()),
        }
    }
}

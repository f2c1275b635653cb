//! The index of dispersion of arrivals by time scale.
//!
//! The index of dispersion is the variance of the number of arrivals in an interval over its mean: 1 for a Poisson process, above 1 for
//! bursts. It grows with the length of the interval while that is shorter than the bursts, so that it is estimated on a ladder of
//! scales. On each scale three consecutive blocks of arrivals are compared: their second difference, unlike the variance about one mean,
//! contains nothing of a rate that rises or falls steadily.
//!
//! Sources: R. Gusella, "Characterizing the variability of arrival processes with indexes of dispersion", IEEE JSAC 9(2), 1991; R. A. Baugh,
//! "Frequency modulation analysis with the Hadamard variance", 25th Annual Symposium on Frequency Control, 1971, for second differences.

/// The number of scales: 1, 2, 4, … 64 s.
const SCALES: usize = 7;
/// The largest weight of the earlier samples of a scale, in samples. Older ones are forgotten exponentially.
const MEMORY: f64 = 96.0;
/// The weight of the next finer scale's estimate in that of a scale, in samples.
const PRIOR_SAMPLES: f64 = 4.0;
/// The largest sample, as a multiple of the estimate so far. A single change of the rate therefore changes the estimate little, and
/// repeated ones become noise.
const LARGEST_SAMPLE: f64 = 16.0;
/// The largest index of dispersion.
const LARGEST: f64 = 1e6;

/// The index of dispersion of arrivals on scales of 1 s to 64 s.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Dispersion {
    scales: [ScaleEstimate; SCALES],
}

/// A number of arrivals in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Block {
    seconds: f64,
    arrivals: f64,
}

/// The estimate on one scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ScaleEstimate {
    /// The block that is not complete.
    growing: Block,
    /// The last two complete blocks, the older one first.
    last: [Block; 2],
    /// The mean of the samples.
    mean: f64,
    /// The weight of the mean, in samples.
    weight: f64,
}

impl Dispersion {
    /// Counts a period.
    pub(super) fn observe(&mut self, seconds: f64, arrivals: f64) {
        let mut block = Block { seconds, arrivals };
        let mut finer = 1.0;
        for (i, scale) in self.scales.iter_mut().enumerate() {
            // A period that is longer than a block says nothing on its scale.
            if block.seconds < 1.5 * scale_seconds(i) {
                scale.growing.seconds += block.seconds;
                scale.growing.arrivals += block.arrivals;
                if scale.growing.seconds < 0.999 * scale_seconds(i) {
                    return;
                }
                block = std::mem::take(&mut scale.growing);
                scale.complete(block, finer);
            }
            finer = scale.estimate(finer);
        }
    }

    /// Returns the index of dispersion of the arrivals in intervals of this length: the largest up to that scale, and at least 1.
    pub(super) fn at(&self, seconds: f64) -> f64 {
        self.up_to(seconds).max(1.0)
    }

    /// Returns the largest index of dispersion up to a scale. It is below 1 for arrivals that are more regular than a Poisson process.
    pub(super) fn up_to(&self, seconds: f64) -> f64 {
        let mut finer = 1.0;
        let mut largest = None;
        for (i, scale) in self.scales.iter().enumerate() {
            finer = scale.estimate(finer);
            if scale.weight > 0.0 {
                largest = Some(finer.max(largest.unwrap_or(0.0)));
            }
            if scale_seconds(i + 1) > seconds && largest.is_some() {
                break;
            }
        }
        largest.unwrap_or(1.0)
    }
}

impl Block {
    fn rate(self) -> f64 {
        self.arrivals / self.seconds
    }
}

impl ScaleEstimate {
    /// Returns the estimate, given that of the next finer scale.
    fn estimate(&self, finer: f64) -> f64 {
        (PRIOR_SAMPLES * finer + self.weight * self.mean) / (PRIOR_SAMPLES + self.weight)
    }

    /// Compares a complete block with the two before.
    fn complete(&mut self, block: Block, finer: f64) {
        let [first, second] = self.last;
        self.last = [second, block];
        let arrivals = first.arrivals + second.arrivals + block.arrivals;
        if first.seconds == 0.0 || arrivals == 0.0 {
            return;
        }
        let rate = arrivals / (first.seconds + second.seconds + block.seconds);
        let difference = first.rate() - 2.0 * second.rate() + block.rate();
        let expected = rate * (1.0 / first.seconds + 4.0 / second.seconds + 1.0 / block.seconds);
        let limit = (LARGEST_SAMPLE * self.estimate(finer).max(1.0)).min(LARGEST);
        let sample = (difference * difference / expected).min(limit);
        self.weight = (self.weight + 1.0).min(MEMORY);
        self.mean += (sample - self.mean) / self.weight;
    }
}

/// Returns the length of the blocks of a scale, in seconds.
fn scale_seconds(scale: usize) -> f64 {
    (1_u32 << scale).into()
}

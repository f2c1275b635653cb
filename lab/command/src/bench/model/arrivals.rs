//! The times at which the requests of an open loop are due: they follow from rate, kind and seed alone, and not from any answer.

use std::time::Duration;

/// The kind of the gaps between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Arrivals {
    /// Independent requests of many clients: exponential gaps
    Poisson,
    /// Equal gaps
    Uniform,
}

/// An endless list of ascending times since the start.
///
/// The generator is `SplitMix64` (G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), so that a
/// seed stands for the same times in every version.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    arrivals: Arrivals,
    /// The mean gap, in seconds.
    gap: f64,
    /// The last time, in seconds.
    now: f64,
    state: u64,
}

impl Schedule {
    /// Returns the times for this many requests per second.
    pub(super) fn new(arrivals: Arrivals, rate_rps: f64, seed: u64) -> Self {
        Self {
            arrivals,
            gap: 1.0 / rate_rps,
            now: 0.0,
            state: seed,
        }
    }

    /// Draws from the uniform distribution above 0 and at most 1.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.now += match self.arrivals {
            Arrivals::Uniform => self.gap,
            Arrivals::Poisson => -self.uniform().ln() * self.gap,
        };
        Duration::try_from_secs_f64(self.now).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uniform_gaps_are_those_of_the_rate() {
        let times: Vec<Duration> = Schedule::new(Arrivals::Uniform, 4.0, 7).take(4).collect();
        assert_eq!(times, [250, 500, 750, 1000].map(Duration::from_millis));
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_deviation_of_the_rate() {
        let times: Vec<f64> = Schedule::new(Arrivals::Poisson, 50.0, 1)
            .take(100_000)
            .map(|time| time.as_secs_f64())
            .collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // An exponential distribution's standard deviation is its mean, here 20 ms; 1 % is three standard errors.
        assert!((mean / 0.02 - 1.0).abs() < 0.01, "{mean}");
        assert!((variance.sqrt() / 0.02 - 1.0).abs() < 0.02, "{variance}");
    }

    proptest! {
        #[test]
        fn a_seed_stands_for_its_times_which_ascend(seed: u64, rate in 0.1..1e6_f64) {
            let times = |arrivals| Schedule::new(arrivals, rate, seed).take(50).collect::<Vec<_>>();
            for arrivals in [Arrivals::Poisson, Arrivals::Uniform] {
                let first = times(arrivals);
                prop_assert!(first.is_sorted());
                prop_assert_eq!(first, times(arrivals));
            }
        }
    }
}

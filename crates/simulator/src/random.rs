//! A random number generator of our own, because reports must be the same on every machine and with every version of a library.

/// A generator for one purpose, so that more draws for one purpose change no others.
///
/// Source: xoshiro256++ 1.0 and `SplitMix64`, Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators", 2021.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    state: [u64; 4],
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Generator {
    /// Returns the generator of a seed for the `purpose`-th purpose.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut start = seed;
        let mut state = split_mix(&mut start) ^ purpose.wrapping_mul(0xd134_2543_de82_ef95);
        Self {
            state: [(); 4].map(|()| split_mix(&mut state)),
        }
    }

    fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Draws from the uniform distribution above 0 and at most 1.
    fn uniform(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Draws from the exponential distribution with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// Draws from the standard normal distribution, by the method of Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Draws from the gamma distribution with mean 1 and this coefficient of variation, above 0.
    ///
    /// Source: Marsaglia and Tsang, "A Simple Method for Generating Gamma Variables", 2000.
    pub(crate) fn gamma(&mut self, variation: f64) -> f64 {
        let shape = 1.0 / (variation * variation);
        if shape < 1.0 {
            // The paper's note on small shapes: gamma(a) = gamma(a + 1) · U^(1/a).
            let boost = self.uniform().powf(1.0 / shape);
            return self.gamma_of_shape(shape + 1.0) * boost / shape;
        }
        self.gamma_of_shape(shape) / shape
    }

    fn gamma_of_shape(&mut self, shape: f64) -> f64 {
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.uniform().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_variation(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let draws: Vec<f64> = (0..200_000).map(|_| draw()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn draws_have_mean_one_and_the_given_coefficient_of_variation() {
        let mut generator = Generator::new(7, 0);
        let (mean, variation) = mean_and_variation(|| generator.exponential());
        assert!((mean - 1.0).abs() < 0.01 && (variation - 1.0).abs() < 0.01);
        for asked in [0.3, 1.0, 2.0] {
            let (mean, variation) = mean_and_variation(|| generator.gamma(asked));
            assert!((mean - 1.0).abs() < 0.03, "{asked}: mean {mean}");
            assert!(
                (variation / asked - 1.0).abs() < 0.03,
                "{asked}: {variation}"
            );
        }
    }

    #[test]
    fn each_seed_and_each_purpose_has_its_own_stream() {
        let first = |seed, purpose| Generator::new(seed, purpose).next_u64();
        let mut all: Vec<u64> = (0..20)
            .flat_map(|i| (0..20).map(move |j| (i, j)))
            .map(|(i, j)| first(i, j))
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 400);
    }
}

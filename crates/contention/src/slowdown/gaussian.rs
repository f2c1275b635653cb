//! A joint Gaussian of numbered quantities that are uncorrelated until something is learned of their sums.

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gaussian {
    mean: Vec<f64>,
    covariance: Vec<Vec<f64>>,
}

impl Gaussian {
    /// The expectations.
    pub(super) fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The variance of `Σ weight · quantity`.
    pub(super) fn variance(&self, weights: &[(usize, f64)]) -> f64 {
        let row = |(a, weight): &(usize, f64)| {
            let row = &self.covariance[*a];
            weight
                * weights
                    .iter()
                    .map(|(b, other)| row[*b] * other)
                    .sum::<f64>()
        };
        weights.iter().map(row).sum::<f64>().max(0.0)
    }

    /// Adds a quantity around zero that has nothing to do with the others.
    pub(super) fn add(&mut self, variance: f64) {
        for row in &mut self.covariance {
            row.push(0.0);
        }
        self.mean.push(0.0);
        let mut row = vec![0.0; self.mean.len()];
        row[self.mean.len() - 1] = variance;
        self.covariance.push(row);
    }

    /// Drops a quantity; the last one takes its number. The others stay as they are.
    pub(super) fn remove(&mut self, number: usize) {
        self.mean.swap_remove(number);
        self.covariance.swap_remove(number);
        for row in &mut self.covariance {
            row.swap_remove(number);
        }
    }

    /// Moves a quantity back towards zero, keeping `kept` of it, with as much noise as leaves it with its first variance if it has that:
    /// `m ← Dm`, `P ← DPD + (I − D²)P₀` with `D` the identity but for `kept`.
    pub(super) fn fade(&mut self, number: usize, kept: f64, first: f64) {
        self.mean[number] *= kept;
        for row in &mut self.covariance {
            row[number] *= kept;
        }
        for cell in &mut self.covariance[number] {
            *cell *= kept;
        }
        self.covariance[number][number] += (1.0 - kept * kept) * first;
    }

    /// Some of the quantities by themselves, in the order given.
    pub(super) fn part(&self, numbers: &[usize]) -> Self {
        let row = |a: &usize| numbers.iter().map(|b| self.covariance[*a][*b]).collect();
        Self {
            mean: numbers.iter().map(|number| self.mean[*number]).collect(),
            covariance: numbers.iter().map(row).collect(),
        }
    }

    /// Changes the expectations of some of the quantities and nothing else.
    pub(super) fn expect(&mut self, numbers: &[usize], mean: &[f64]) {
        for (number, mean) in numbers.iter().zip(mean) {
            self.mean[*number] = *mean;
        }
    }

    /// Conditions on `Σ weight · (quantity − at) = seen`, up to noise of a standard deviation.
    pub(super) fn condition(
        &mut self,
        weights: &[(usize, f64)],
        at: &[f64],
        seen: f64,
        noise: f64,
    ) {
        // Covariance of every quantity with the sum.
        let with: Vec<f64> = self
            .covariance
            .iter()
            .map(|row| weights.iter().map(|(b, weight)| row[*b] * weight).sum())
            .collect();
        let sum = |of: &[f64]| {
            weights
                .iter()
                .map(|(b, weight)| weight * of[*b])
                .sum::<f64>()
        };
        let surprise = seen - (sum(&self.mean) - sum(at));
        let variance = sum(&with) + noise * noise;
        for (a, with_a) in with.iter().enumerate() {
            let gain = with_a / variance;
            self.mean[a] += gain * surprise;
            for (cell, with_b) in self.covariance[a].iter_mut().zip(&with) {
                *cell -= gain * with_b;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sum_seen_twice_is_split_by_what_was_uncertain() {
        let mut belief = Gaussian::default();
        belief.add(4.0);
        belief.add(1.0);
        belief.add(9.0);
        let sum = [(0, 1.0), (1, 1.0)];
        // By hand: gain 4/10 and 1/10 with noise variance 5.
        belief.condition(&sum, &[0.0; 3], 10.0, 5.0_f64.sqrt());
        assert!((belief.mean()[0] - 4.0).abs() < 1e-12 && (belief.mean()[1] - 1.0).abs() < 1e-12);
        assert!((belief.variance(&[(0, 1.0)]) - 2.4).abs() < 1e-12);
        assert!((belief.variance(&sum) - 2.5).abs() < 1e-12);
        assert!((belief.variance(&[(2, 2.0)]) - 36.0).abs() < 1e-12);
        belief.remove(0);
        assert!((belief.mean()[1] - 1.0).abs() < 1e-12);
        assert!((belief.variance(&[(1, 1.0)]) - 0.9).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn no_history_makes_a_variance_negative_or_larger_than_it_was_at_first(
            steps in proptest::collection::vec(
                (proptest::collection::vec((0_usize..4, -2.0..2.0_f64), 1..4), -5.0..5.0_f64, 0.001..1.0_f64),
                1..100,
            ),
        ) {
            let priors = [0.1, 1.0, 4.0, 0.01];
            let mut belief = Gaussian::default();
            for prior in priors {
                belief.add(prior);
            }
            for (weights, seen, noise) in steps {
                for (number, prior) in priors.into_iter().enumerate() {
                    belief.fade(number, 0.99, prior);
                }
                belief.condition(&weights, &[0.0; 4], seen, noise);
                for (number, prior) in priors.into_iter().enumerate() {
                    let variance = belief.variance(&[(number, 1.0)]);
                    prop_assert!((0.0..=prior * (1.0 + 1e-9)).contains(&variance), "{variance}");
                    prop_assert!(belief.mean()[number].is_finite());
                }
            }
        }
    }
}

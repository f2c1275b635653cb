//! A multivariate normal distribution whose variables are independent until it is conditioned on sums of them.

/// A multivariate normal distribution.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gaussian {
    mean: Vec<f64>,
    covariance: Vec<Vec<f64>>,
}

impl Gaussian {
    /// The variables' means.
    pub(super) fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The variance of `Σ weight · variable`.
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

    /// Appends an independent variable of mean 0.
    pub(super) fn push(&mut self, variance: f64) {
        for row in &mut self.covariance {
            row.push(0.0);
        }
        self.mean.push(0.0);
        let mut row = vec![0.0; self.mean.len()];
        row[self.mean.len() - 1] = variance;
        self.covariance.push(row);
    }

    /// Marginalises a variable out. The last variable takes its index; the others keep theirs.
    pub(super) fn swap_remove(&mut self, index: usize) {
        self.mean.swap_remove(index);
        self.covariance.swap_remove(index);
        for row in &mut self.covariance {
            row.swap_remove(index);
        }
    }

    /// Shrinks a variable towards 0 by the factor `kept` and adds process noise such that a variance of `prior` stays as it is:
    /// `m ← Dm`, `P ← DPD + (I − D²)P₀` with `D` the identity but for `kept`.
    pub(super) fn shrink(&mut self, index: usize, kept: f64, prior: f64) {
        self.mean[index] *= kept;
        for row in &mut self.covariance {
            row[index] *= kept;
        }
        for cell in &mut self.covariance[index] {
            *cell *= kept;
        }
        self.covariance[index][index] += (1.0 - kept * kept) * prior;
    }

    /// The marginal distribution of some variables, in the order given.
    pub(super) fn marginal(&self, indices: &[usize]) -> Self {
        let row = |a: &usize| indices.iter().map(|b| self.covariance[*a][*b]).collect();
        Self {
            mean: indices.iter().map(|index| self.mean[*index]).collect(),
            covariance: indices.iter().map(row).collect(),
        }
    }

    /// Sets the means of some variables and changes nothing else.
    pub(super) fn set_mean(&mut self, indices: &[usize], mean: &[f64]) {
        for (index, mean) in indices.iter().zip(mean) {
            self.mean[*index] = *mean;
        }
    }

    /// Conditions on the measurement `Σ weight · (variable − at) = observed` with noise of the standard deviation `noise_std`.
    pub(super) fn condition(
        &mut self,
        weights: &[(usize, f64)],
        at: &[f64],
        observed: f64,
        noise_std: f64,
    ) {
        // The covariance of each variable with the sum.
        let with_sum: Vec<f64> = self
            .covariance
            .iter()
            .map(|row| weights.iter().map(|(b, weight)| row[*b] * weight).sum())
            .collect();
        let sum = |values: &[f64]| {
            weights
                .iter()
                .map(|(b, weight)| weight * values[*b])
                .sum::<f64>()
        };
        let innovation = observed - (sum(&self.mean) - sum(at));
        let variance = sum(&with_sum) + noise_std * noise_std;
        for (a, a_with_sum) in with_sum.iter().enumerate() {
            let gain = a_with_sum / variance;
            self.mean[a] += gain * innovation;
            for (cell, b_with_sum) in self.covariance[a].iter_mut().zip(&with_sum) {
                *cell -= gain * b_with_sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_measured_sum_is_attributed_in_proportion_to_the_prior_variances() {
        let mut gaussian = Gaussian::default();
        gaussian.push(4.0);
        gaussian.push(1.0);
        gaussian.push(9.0);
        let sum = [(0, 1.0), (1, 1.0)];
        // By hand: gain 4/10 and 1/10 with noise variance 5.
        gaussian.condition(&sum, &[0.0; 3], 10.0, 5.0_f64.sqrt());
        assert!(
            (gaussian.mean()[0] - 4.0).abs() < 1e-12 && (gaussian.mean()[1] - 1.0).abs() < 1e-12
        );
        assert!((gaussian.variance(&[(0, 1.0)]) - 2.4).abs() < 1e-12);
        assert!((gaussian.variance(&sum) - 2.5).abs() < 1e-12);
        assert!((gaussian.variance(&[(2, 2.0)]) - 36.0).abs() < 1e-12);
        gaussian.swap_remove(0);
        assert!((gaussian.mean()[1] - 1.0).abs() < 1e-12);
        assert!((gaussian.variance(&[(1, 1.0)]) - 0.9).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn no_history_makes_a_variance_negative_or_larger_than_its_prior(
            steps in proptest::collection::vec(
                (proptest::collection::vec((0_usize..4, -2.0..2.0_f64), 1..4), -5.0..5.0_f64, 0.001..1.0_f64),
                1..100,
            ),
        ) {
            let priors = [0.1, 1.0, 4.0, 0.01];
            let mut gaussian = Gaussian::default();
            for prior in priors {
                gaussian.push(prior);
            }
            for (weights, observed, noise_std) in steps {
                for (index, prior) in priors.into_iter().enumerate() {
                    gaussian.shrink(index, 0.99, prior);
                }
                gaussian.condition(&weights, &[0.0; 4], observed, noise_std);
                for (index, prior) in priors.into_iter().enumerate() {
                    let variance = gaussian.variance(&[(index, 1.0)]);
                    prop_assert!((0.0..=prior * (1.0 + 1e-9)).contains(&variance), "{variance}");
                    prop_assert!(gaussian.mean()[index].is_finite());
                }
            }
        }
    }
}

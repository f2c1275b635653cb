//! Means over seeds with their confidence intervals.

use std::fmt;

/// The 97.5 % quantiles of Student's t distribution with 1, 2, … degrees of freedom.
const T_QUANTILES: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The 97.5 % quantile of the normal distribution.
const NORMAL_QUANTILE: f64 = 1.960;

/// A mean with the half of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) mean: f64,
    /// `None` with a single value.
    pub(crate) half: Option<f64>,
}

impl Interval {
    /// Returns the interval of the mean of independent values. Panics without a value.
    pub(crate) fn new(values: &[f64]) -> Self {
        assert!(!values.is_empty(), "a mean needs a value");
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let half = (values.len() > 1).then(|| {
            let squares = values.iter().map(|value| (value - mean).powi(2));
            let variance = squares.sum::<f64>() / (count - 1.0);
            let quantile = T_QUANTILES.get(values.len() - 2);
            quantile.unwrap_or(&NORMAL_QUANTILE) * (variance / count).sqrt()
        });
        Self { mean, half }
    }

    /// Returns the interval of the mean difference of values that belong together.
    pub(crate) fn of_differences(a: &[f64], b: &[f64]) -> Self {
        let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        Self::new(&differences)
    }

    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self {
            mean: self.mean * factor,
            half: self.half.map(|half| half * factor),
        }
    }

    /// Returns true if the whole interval is below a value.
    pub(crate) fn is_below(self, value: f64) -> bool {
        self.mean + self.half.unwrap_or(0.0) < value
    }

    /// Returns true if the whole interval is above a value.
    pub(crate) fn is_above(self, value: f64) -> bool {
        self.mean - self.half.unwrap_or(0.0) > value
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A value that rounds to zero has no sign.
        let mean = (self.mean * 10.0).round() / 10.0 + 0.0;
        match self.half {
            Some(half) => write!(f, "{mean:.1} ± {half:.1}"),
            None => write!(f, "{mean:.1}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_that_worked_out_by_hand() {
        // Mean 3, deviation √2.5, four degrees of freedom: 2.776 · √(2.5 / 5).
        let interval = Interval::new(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((interval.mean - 3.0).abs() < 1e-12);
        assert!((interval.half.unwrap() - 2.776 * 0.5_f64.sqrt()).abs() < 1e-12);
        assert!(interval.is_above(1.0) && !interval.is_above(2.0) && interval.is_below(5.0));
        assert_eq!(
            Interval::new(&[7.0]),
            Interval {
                mean: 7.0,
                half: None
            }
        );
        let paired = Interval::of_differences(&[3.0, 5.0, 9.0], &[1.0, 3.0, 7.0]);
        assert_eq!(
            paired,
            Interval {
                mean: 2.0,
                half: Some(0.0)
            }
        );
        assert_eq!(
            Interval {
                mean: -0.01,
                half: None
            }
            .to_string(),
            "0.0"
        );
    }
}

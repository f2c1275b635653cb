//! Locally weighted regression of the time of a batch over its size and its share.

use std::num::NonZeroU32;

/// A measured batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegressionPoint {
    /// The rows of the batch.
    pub batch: u32,
    /// The share of the multiprocessors, in percent.
    pub share: f64,
    /// The time in seconds.
    pub seconds: f64,
}

/// The reason why points give no regression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegressionError {
    /// There is no point.
    #[error("a regression needs at least one measured batch")]
    Empty,
    /// A point has a size, a share or a time that is not a number above 0.
    #[error("the batch size, the share and the time of a measured batch must be above 0")]
    OutOfRange,
}

/// The fraction of the points that a prediction uses: the nearest ones.
const SPAN: f64 = 0.3;

/// The least number of points that a prediction uses, if there are as many.
const LEAST_POINTS: usize = 5;

/// The weight of a slope of zero, relative to the weight of all points: it decides where the points near a prediction have only one
/// batch size or one share, and is too small to matter elsewhere.
const SLOPE_PRIOR: f64 = 1e-6;

/// The distance to the farthest used point over that of the kernel's edge, at which the weight is zero.
const EDGE: f64 = 1.05;

/// A locally weighted regression of the time of a batch over its size and its share.
///
/// A prediction is the value at its place of a plane through the nearest points, fitted by least squares with tricube weights.
///
/// Source: Cleveland and Devlin, "Locally Weighted Regression: An Approach to Regression Analysis by Local Fitting", Journal of the
/// American Statistical Association, 1988. InSS, section 4.1, uses it without naming kernel, degree and width. Here the degree is 1,
/// the kernel is that of the source, and size, share and time are logarithms: the time is nearly a product of powers of the other two,
/// so that a plane in logarithms fits where a plane in the numbers would cut the corner of a hyperbola, and no time is below zero.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalRegression {
    points: Vec<RegressionPoint>,
    /// The points' logarithms of size, share and time.
    logs: Vec<[f64; 3]>,
    /// The factors of the distances in size and share.
    scale: [f64; 2],
}

impl LocalRegression {
    /// Creates a regression over measured batches.
    ///
    /// # Errors
    /// If there is none, or one with a number that is not above 0.
    pub fn new(points: Vec<RegressionPoint>) -> Result<Self, RegressionError> {
        let is_positive = |value: f64| value.is_finite() && value > 0.0;
        let valid = |point: &RegressionPoint| {
            NonZeroU32::new(point.batch).is_some()
                && is_positive(point.share)
                && is_positive(point.seconds)
        };
        if points.is_empty() {
            return Err(RegressionError::Empty);
        }
        if !points.iter().all(valid) {
            return Err(RegressionError::OutOfRange);
        }
        let log = |point: &RegressionPoint| {
            [
                f64::from(point.batch).ln(),
                point.share.ln(),
                point.seconds.ln(),
            ]
        };
        let logs: Vec<[f64; 3]> = points.iter().map(log).collect();
        let scale = [0, 1].map(|feature| {
            let values = || logs.iter().map(|log| log[feature]);
            let range =
                values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min);
            if range > 0.0 { range.recip() } else { 1.0 }
        });
        Ok(Self {
            points,
            logs,
            scale,
        })
    }

    /// Returns the measured batches.
    pub fn points(&self) -> &[RegressionPoint] {
        &self.points
    }

    /// Returns the predicted time of a batch of at least one row under a share above 0, in seconds.
    pub fn seconds(&self, batch: u32, share: f64) -> f64 {
        let place = [
            f64::from(batch.max(1)).ln(),
            share.max(f64::MIN_POSITIVE).ln(),
        ];
        // Relative to the place, so that the plane's value there is its constant.
        let mut near: Vec<(f64, [f64; 3])> = self
            .logs
            .iter()
            .map(|[size, share, time]| {
                let (dx, dy) = (size - place[0], share - place[1]);
                let distance = (dx * self.scale[0]).hypot(dy * self.scale[1]);
                (distance, [dx, dy, *time])
            })
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        let span = (SPAN * near.len() as f64).ceil() as usize;
        near.truncate(span.max(LEAST_POINTS));
        let farthest = near.last().map_or(0.0, |point| point.0);
        let weight = |distance: f64| {
            if farthest == 0.0 {
                return 1.0;
            }
            (1.0 - (distance / (EDGE * farthest)).powi(3)).powi(3)
        };
        let weighted: Vec<(f64, [f64; 3])> = near
            .into_iter()
            .map(|(distance, point)| (weight(distance), point))
            .collect();
        fitted_constant(&weighted).exp()
    }
}

/// Returns the constant `c` of the plane `c + a · dx + b · dy` with the smallest weighted squares of the error.
fn fitted_constant(points: &[(f64, [f64; 3])]) -> f64 {
    let total: f64 = points.iter().map(|point| point.0).sum();
    let mean = |index: usize| {
        let weighted = points.iter().map(|(weight, point)| weight * point[index]);
        weighted.sum::<f64>() / total
    };
    let (mx, my, mt) = (mean(0), mean(1), mean(2));
    let prior = SLOPE_PRIOR * total;
    let (mut xx, mut xy, mut yy, mut xt, mut yt) = (prior, 0.0, prior, 0.0, 0.0);
    for (weight, [dx, dy, time]) in points {
        let (x, y, t) = (dx - mx, dy - my, time - mt);
        xx += weight * x * x;
        xy += weight * x * y;
        yy += weight * y * y;
        xt += weight * x * t;
        yt += weight * y * t;
    }
    // The prior keeps the determinant above zero.
    let determinant = xx * yy - xy * xy;
    let (a, b) = (
        (yy * xt - xy * yt) / determinant,
        (xx * yt - xy * xt) / determinant,
    );
    mt - a * mx - b * my
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point(batch: u32, share: f64, seconds: f64) -> RegressionPoint {
        RegressionPoint {
            batch,
            share,
            seconds,
        }
    }

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-3
    }

    #[test]
    fn a_product_of_powers_is_found_inside_and_outside_the_measurements() {
        let time = |batch: u32, share: f64| 0.002 * f64::from(batch).powf(0.8) / share.powf(0.6);
        let mut points = Vec::new();
        for batch in [1, 4, 8, 16] {
            for share in [10.0, 30.0, 50.0, 100.0] {
                points.push(point(batch, share, time(batch, share)));
            }
        }
        let regression = LocalRegression::new(points).unwrap();
        for (batch, share) in [(1, 10.0), (3, 20.0), (8, 50.0), (12, 77.0), (32, 100.0)] {
            let predicted = regression.seconds(batch, share);
            assert!(
                close(predicted, time(batch, share)),
                "{batch} at {share}: {predicted}"
            );
        }
    }

    #[test]
    fn one_measured_share_gives_no_slope_over_shares() {
        let points = vec![
            point(1, 100.0, 0.010),
            point(4, 100.0, 0.020),
            point(16, 100.0, 0.040),
        ];
        let regression = LocalRegression::new(points).unwrap();
        // The time doubles with each four times as many rows.
        assert!(close(regression.seconds(4, 30.0), 0.020));
        assert!(close(regression.seconds(64, 100.0), 0.080));
    }

    #[test]
    fn one_point_is_its_own_prediction_and_none_is_an_error() {
        let one = LocalRegression::new(vec![point(4, 50.0, 0.010)]).unwrap();
        assert!(close(one.seconds(4, 50.0), 0.010));
        assert!(close(one.seconds(1, 100.0), 0.010));
        assert_eq!(
            LocalRegression::new(Vec::new()),
            Err(RegressionError::Empty)
        );
        for bad in [
            point(0, 50.0, 0.01),
            point(1, 0.0, 0.01),
            point(1, 50.0, f64::NAN),
        ] {
            assert_eq!(
                LocalRegression::new(vec![bad]),
                Err(RegressionError::OutOfRange)
            );
        }
    }

    proptest! {
        #[test]
        fn a_prediction_is_a_time(
            points in proptest::collection::vec((1_u32..200, 1.0..100.0, 1e-6..10.0), 1..30),
            batch in 1_u32..500,
            share in 1.0..100.0,
        ) {
            let points = points.into_iter().map(|(batch, share, seconds)| point(batch, share, seconds)).collect();
            let seconds = LocalRegression::new(points).unwrap().seconds(batch, share);
            prop_assert!(seconds.is_finite() && seconds > 0.0, "{seconds}");
        }
    }
}

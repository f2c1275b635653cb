//! The fit of coefficients to measurements: ridge regression of the logarithms, by Gauss and Newton with Levenberg's damping.

/// A function that predicts a value from coefficients.
pub(crate) type Prediction<'a> = Box<dyn Fn(&[f64]) -> f64 + 'a>;

/// A measurement, and the function that predicts it from the coefficients.
pub(crate) struct Observation<'a> {
    /// The measured value.
    pub(crate) measured: f64,
    /// The weight of the measurement's square.
    pub(crate) weight: f64,
    /// Returns the predicted value.
    pub(crate) predict: Prediction<'a>,
}

/// The step of a numerical derivative, in the logarithm of a coefficient.
const STEP: f64 = 1e-4;
/// The most steps of a fit.
const MAX_STEPS: usize = 60;
/// The relative change of the sum of squares at which a fit has converged.
const CONVERGED: f64 = 1e-9;
/// The relative error from which on a measurement counts linearly and not by its square (Huber's loss), so that a few that the form cannot
/// describe do not decide.
const HUBER: f64 = 0.25;

/// Returns the coefficients with the least sum of the squared logarithms of predicted over measured, and of `ridge` times the squared
/// logarithms of coefficient over prior. The measurements' weights are scaled so that their mean is one.
pub(crate) fn fit(prior: &[f64], observations: &[Observation<'_>], ridge: f64) -> Vec<f64> {
    let mean_weight =
        observations.iter().map(|o| o.weight).sum::<f64>() / observations.len() as f64;
    let log_prior: Vec<f64> = prior.iter().map(|value| value.ln()).collect();
    let residuals = |logs: &[f64]| -> Vec<f64> {
        let values: Vec<f64> = logs.iter().map(|log| log.exp()).collect();
        let of_observations = observations.iter().map(|observation| {
            let error = ((observation.predict)(&values) / observation.measured).ln();
            (observation.weight / mean_weight).sqrt() * huber(error)
        });
        let of_priors = logs
            .iter()
            .zip(&log_prior)
            .map(|(log, prior)| ridge.sqrt() * (log - prior));
        of_observations.chain(of_priors).collect()
    };
    let squares = |residuals: &[f64]| residuals.iter().map(|r| r * r).sum::<f64>();
    let mut logs = log_prior.clone();
    let mut current = residuals(&logs);
    let mut damping = 1e-2;
    for _ in 0..MAX_STEPS {
        let columns: Vec<Vec<f64>> = (0..logs.len())
            .map(|i| {
                let mut moved = logs.clone();
                moved[i] += STEP;
                let moved = residuals(&moved);
                moved
                    .iter()
                    .zip(&current)
                    .map(|(a, b)| (a - b) / STEP)
                    .collect()
            })
            .collect();
        let before = squares(&current);
        let step = loop {
            let direction = descent(&columns, &current, damping);
            let moved: Vec<f64> = logs
                .iter()
                .zip(&direction)
                .map(|(log, d)| log + d)
                .collect();
            let next = residuals(&moved);
            if squares(&next) < before {
                break Some((moved, next));
            }
            damping *= 4.0;
            if damping > 1e9 {
                break None;
            }
        };
        let Some((moved, next)) = step else { break };
        let gain = before - squares(&next);
        (logs, current) = (moved, next);
        damping = f64::max(damping / 3.0, 1e-9);
        if gain < CONVERGED * before {
            break;
        }
    }
    logs.into_iter().map(f64::exp).collect()
}

/// Returns the number whose square is Huber's loss.
fn huber(error: f64) -> f64 {
    let size = error.abs();
    if size <= HUBER {
        return error;
    }
    (2.0 * HUBER * size - HUBER * HUBER).sqrt().copysign(error)
}

/// Returns the step that solves the damped normal equations.
fn descent(columns: &[Vec<f64>], residuals: &[f64], damping: f64) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut rows: Vec<Vec<f64>> = columns
        .iter()
        .enumerate()
        .map(|(i, column)| {
            let mut row: Vec<f64> = columns.iter().map(|other| dot(column, other)).collect();
            row[i] += damping;
            row.push(-dot(column, residuals));
            row
        })
        .collect();
    // The matrix is positive definite, and needs no pivots.
    let size = rows.len();
    for i in 0..size {
        for j in 0..size {
            if i != j {
                let factor = rows[j][i] / rows[i][i];
                let pivot = rows[i].clone();
                for (cell, above) in rows[j].iter_mut().zip(pivot) {
                    *cell -= factor * above;
                }
            }
        }
    }
    (0..size).map(|i| rows[i][size] / rows[i][i]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(x: f64, measured: f64) -> Observation<'static> {
        Observation {
            measured,
            weight: 1.0,
            predict: Box::new(move |values| values[0] + values[1] * x),
        }
    }

    #[test]
    fn a_line_is_found_again_and_a_ridge_draws_to_the_prior() {
        let points: Vec<Observation<'_>> = (1..20)
            .map(|x| line(f64::from(x), 3.0 + 0.5 * f64::from(x)))
            .collect();
        let found = fit(&[1.0, 1.0], &points, 1e-9);
        assert!(
            (found[0] - 3.0).abs() < 1e-3 && (found[1] - 0.5).abs() < 1e-3,
            "{found:?}"
        );
        let held = fit(&[1.0, 1.0], &points, 1e9);
        assert!(
            (held[0] - 1.0).abs() < 1e-3 && (held[1] - 1.0).abs() < 1e-3,
            "{held:?}"
        );
    }

    #[test]
    fn one_wild_measurement_moves_the_fit_little() {
        let mut points: Vec<Observation<'_>> = (1..20)
            .map(|x| line(f64::from(x), 2.0 + f64::from(x)))
            .collect();
        points.push(line(10.0, 1200.0));
        let found = fit(&[1.0, 1.0], &points, 1e-6);
        assert!((found[0] + 10.0 * found[1] - 12.0).abs() < 1.2, "{found:?}");
    }
}

//! Fitting by least squares.

/// Returns the coefficients `x` with the smallest `Σ (rowᵢ · x − yᵢ)²`, by the normal equations; `None` if the rows do not determine them.
pub(super) fn fit<const N: usize>(rows: &[([f64; N], f64)]) -> Option<[f64; N]> {
    let mut equations = [[0.0; N]; N];
    let mut right = [0.0; N];
    for (row, y) in rows {
        for i in 0..N {
            for j in 0..N {
                equations[i][j] += row[i] * row[j];
            }
            right[i] += row[i] * y;
        }
    }
    // Gauss-Jordan elimination with partial pivoting.
    for column in 0..N {
        let pivot = (column..N).max_by(|&a, &b| {
            equations[a][column]
                .abs()
                .total_cmp(&equations[b][column].abs())
        })?;
        equations.swap(column, pivot);
        right.swap(column, pivot);
        let pivot_row = equations[column];
        let head = pivot_row[column];
        if head.abs() < 1e-12 {
            return None;
        }
        for row in (0..N).filter(|&row| row != column) {
            let factor = equations[row][column] / head;
            for (cell, above) in equations[row].iter_mut().zip(pivot_row) {
                *cell -= factor * above;
            }
            right[row] -= factor * right[column];
        }
    }
    let mut solution = [0.0; N];
    for i in 0..N {
        solution[i] = right[i] / equations[i][i];
    }
    Some(solution)
}

/// Returns the error of a solution, `Σ (rowᵢ · x − yᵢ)²`.
pub(super) fn error<const N: usize>(rows: &[([f64; N], f64)], solution: &[f64; N]) -> f64 {
    let residual = |(row, y): &([f64; N], f64)| {
        let predicted: f64 = row.iter().zip(solution).map(|(a, x)| a * x).sum();
        (predicted - y).powi(2)
    };
    rows.iter().map(residual).sum()
}

/// Returns the slope and the intercept of the line with the smallest error; `None` if the points do not determine it.
pub(crate) fn fit_line(points: impl Iterator<Item = (f64, f64)>) -> Option<[f64; 2]> {
    fit(&points.map(|(x, y)| ([x, 1.0], y)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_through_points_is_found_and_one_point_determines_none() {
        let [slope, intercept] =
            fit_line([(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)].into_iter()).unwrap();
        assert!((slope - 2.0).abs() < 1e-12 && (intercept - 3.0).abs() < 1e-12);
        assert_eq!(fit_line([(1.0, 5.0)].into_iter()), None);
    }

    #[test]
    fn the_fit_has_the_smallest_error() {
        let rows = [([1.0, 1.0], 1.0), ([2.0, 1.0], 3.0), ([3.0, 1.0], 4.0)];
        let best = fit(&rows).unwrap();
        for change in [-0.01, 0.01] {
            assert!(error(&rows, &[best[0] + change, best[1]]) > error(&rows, &best));
            assert!(error(&rows, &[best[0], best[1] + change]) > error(&rows, &best));
        }
    }
}

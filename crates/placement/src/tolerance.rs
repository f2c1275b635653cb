//! The tolerances for rounding errors of floating-point numbers.

/// The relative rounding error of products and quotients: a value that misses a limit by less than this fraction of it meets the limit.
pub(crate) const ROUNDING: f64 = 1e-9;

/// The fraction of a rate that replicas must carry to carry all of it, as rates are quotients of rounded times.
pub(crate) const CARRIED: f64 = 1.0 - ROUNDING;

/// The rounding error of a sum of percentages, in percentage points.
pub(crate) const PERCENT_ROUNDING: f64 = 1e-9;

/// The rounding error of a sum of goodputs, in requests per second.
pub(crate) const GOODPUT_ROUNDING: f64 = 1e-9;

/// Rounds up, but treats a value that exceeds an integer by at most 1e-9 as that integer.
pub(crate) fn round_up(value: f64) -> f64 {
    (value - 1e-9).ceil()
}

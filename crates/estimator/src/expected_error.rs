//! The errors to expect of estimates.

/// The error to expect of the estimates of a quantity, in percent of the measured value. It is that of the 13 models of the thesis on a V100, each estimated
/// by coefficients that were fitted to the models of other families. On other kinds of device the error is not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedError {
    /// The error that half of the estimates are within.
    pub median_pct: f64,
    /// The error that nine of ten estimates are within.
    pub p90_pct: f64,
}

impl ExpectedError {
    /// The error of the time of a batch.
    pub const LATENCY: Self = Self {
        median_pct: 7.8,
        p90_pct: 27.2,
    };
    /// The error of the memory of a batch.
    pub const MEMORY: Self = Self {
        median_pct: 8.9,
        p90_pct: 29.6,
    };
    /// The error of the utilisation of the multiprocessors.
    pub const SM_UTILIZATION: Self = Self {
        median_pct: 2.6,
        p90_pct: 40.4,
    };
    /// The kind of device on which the errors were found.
    pub const MEASURED_ON: &'static str = "V100-SXM2-16GB";
}

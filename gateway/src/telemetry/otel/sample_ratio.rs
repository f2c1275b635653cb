//! The part of the traces that is exported.

use std::str::FromStr;

/// The part of the requests within their SLO that is exported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRatio(f64);

/// A text that is no ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number from 0 to 1")]
pub struct SampleRatioError;

impl SampleRatio {
    /// Creates a ratio; `None` if it is not between 0 and 1.
    pub fn new(ratio: f64) -> Option<Self> {
        (0.0..=1.0).contains(&ratio).then_some(Self(ratio))
    }

    /// Returns true for this part of all traces. All gateways agree about a trace: what decides is its last 7 bytes, which W3C Trace
    /// Context wants to be random, against the threshold of OpenTelemetry's consistent probability sampling.
    pub(super) fn includes(self, trace: u128) -> bool {
        const ALL: u64 = 1 << 56;
        let random = trace & u128::from(ALL - 1);
        let rejected = (1.0 - self.0) * ALL as f64;
        random >= rejected as u128
    }
}

impl FromStr for SampleRatio {
    type Err = SampleRatioError;

    fn from_str(text: &str) -> Result<Self, SampleRatioError> {
        let ratio = text.parse().ok().and_then(Self::new);
        ratio.ok_or(SampleRatioError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_a_number_from_0_to_1() {
        for text in ["0", "0.01", "1", "1e-3"] {
            assert!(text.parse::<SampleRatio>().is_ok(), "{text}");
        }
        for text in ["", "-0.1", "1.01", "NaN", "inf", "1%"] {
            assert_eq!(text.parse::<SampleRatio>(), Err(SampleRatioError), "{text}");
        }
        let ratio = SampleRatio::new(0.25).unwrap();
        let included = (0..4000).filter(|_| ratio.includes(rand::random()));
        let included = included.count();
        assert!((800..1200).contains(&included), "{included}");
        assert!(!SampleRatio::new(0.0).unwrap().includes(u128::MAX));
        assert!(SampleRatio::new(1.0).unwrap().includes(0));
    }
}

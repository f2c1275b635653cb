//! Latencies of many requests, and their CPU time.

use serde::Deserialize;

/// The measurements of one round.
#[derive(Deserialize)]
pub(crate) struct Sample {
    /// The latency of each request, in microseconds.
    pub(crate) latencies_us: Vec<f64>,
    /// CPU time of the serving side, in seconds.
    pub(crate) cpu_s: f64,
}

/// The summary of all rounds of one kind.
#[derive(Debug, PartialEq)]
pub(crate) struct Summary {
    /// Requests per second of wall time.
    pub(crate) rate: f64,
    /// Median latency in microseconds.
    pub(crate) p50_us: f64,
    /// The lowest and the highest median of a round, in microseconds: the noise of the machine.
    pub(crate) p50_range_us: (f64, f64),
    /// 99th percentile in microseconds.
    pub(crate) p99_us: f64,
    /// CPU time of the serving side per request, in microseconds.
    pub(crate) cpu_us: f64,
}

impl Summary {
    /// Summarises the rounds; each took `seconds`.
    pub(crate) fn new(mut rounds: Vec<Sample>, seconds: f64) -> Option<Self> {
        for round in &mut rounds {
            round.latencies_us.sort_by(f64::total_cmp);
        }
        let medians: Vec<f64> = rounds
            .iter()
            .filter_map(|round| quantile(&round.latencies_us, 0.5))
            .collect();
        let lowest = medians.iter().copied().reduce(f64::min)?;
        let highest = medians.iter().copied().reduce(f64::max)?;
        let cpu_s: f64 = rounds.iter().map(|round| round.cpu_s).sum();
        let length = seconds * rounds.len() as f64;
        let mut all: Vec<f64> = rounds
            .into_iter()
            .flat_map(|round| round.latencies_us)
            .collect();
        all.sort_by(f64::total_cmp);
        Some(Self {
            rate: all.len() as f64 / length,
            p50_us: quantile(&all, 0.5)?,
            p50_range_us: (lowest, highest),
            p99_us: quantile(&all, 0.99)?,
            cpu_us: cpu_s * 1e6 / all.len() as f64,
        })
    }
}

/// Returns element floor(p·n) of a sorted list.
fn quantile(sorted: &[f64], p: f64) -> Option<f64> {
    sorted.get((sorted.len() as f64 * p) as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_put_together() {
        let round = |latencies_us: &[f64]| Sample {
            latencies_us: latencies_us.to_vec(),
            cpu_s: 1.0,
        };
        let expected = Summary {
            rate: 1.0,
            p50_us: 3.0,
            p50_range_us: (2.0, 9.0),
            p99_us: 9.0,
            cpu_us: 500_000.0,
        };
        assert_eq!(
            Summary::new(vec![round(&[3.0, 1.0, 2.0]), round(&[9.0])], 2.0),
            Some(expected)
        );
        assert!(Summary::new(vec![round(&[])], 2.0).is_none());
    }
}

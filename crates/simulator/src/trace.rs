//! Recorded arrivals: moments of single requests, or counts per minute.

use packhorse_cluster::{ModelId, RequestsPerSecond, Time};
use serde::Deserialize;

use crate::scenario::Rate;

/// Why a text is no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// From 1, the header's.
    pub line: u64,
    /// What is wrong there.
    pub problem: String,
}

fn wrong<T>(line: u64, problem: impl Into<String>) -> Result<T, TraceError> {
    Err(TraceError {
        line,
        problem: problem.into(),
    })
}

/// The most lines of a trace.
const MAX_LINES: usize = 100_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    model: String,
    t_s: f64,
}

/// Reads a CSV with the header `model,t_s`: when, in seconds from the start and ascending, a request of which model arrives.
/// One list per model of `models`.
pub(crate) fn moments(text: &str, models: &[&ModelId]) -> Result<Vec<Vec<Time>>, TraceError> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let mut moments = vec![Vec::new(); models.len()];
    let mut last = 0.0;
    for (row, line) in reader.deserialize::<Row>().zip(2_u64..) {
        let Row { model, t_s } = row.or_else(|e| wrong(line, e.to_string()))?;
        let id: ModelId = model
            .parse()
            .or_else(|e| wrong(line, format!("model: {e}")))?;
        let Some(i) = models.iter().position(|known| **known == id) else {
            return wrong(line, format!("model: the scenario has no {model}"));
        };
        if !(0.0..=1e7).contains(&t_s) {
            return wrong(line, format!("t_s: expected between 0 and 1e7, not {t_s}"));
        }
        if t_s < last {
            return wrong(
                line,
                format!("t_s: {t_s} comes after {last}: the times must ascend"),
            );
        }
        if line as usize > MAX_LINES {
            return wrong(line, format!("a trace has at most {MAX_LINES} lines"));
        }
        last = t_s;
        moments[i].push(Time::from_nanos((t_s * 1e9).round() as u64));
    }
    if moments.iter().all(Vec::is_empty) {
        return wrong(1, "the trace has no arrivals");
    }
    Ok(moments)
}

/// Coefficient of variation of the gaps between arrivals, each relative to the mean gap of its model; 1 where there are none.
pub(crate) fn variation(moments: &[Vec<Time>]) -> f64 {
    let (mut squares, mut gaps) = (0.0, 0.0);
    for of_model in moments {
        let (Some(first), Some(last)) = (of_model.first(), of_model.last()) else {
            continue;
        };
        let mean = last.saturating_since(*first).as_secs_f64() / (of_model.len() - 1).max(1) as f64;
        if mean > 0.0 {
            let relative = |pair: &[Time]| pair[1].saturating_since(pair[0]).as_secs_f64() / mean;
            squares += of_model
                .windows(2)
                .map(|pair| (relative(pair) - 1.0).powi(2))
                .sum::<f64>();
            gaps += (of_model.len() - 1) as f64;
        }
    }
    if gaps > 0.0 {
        f64::sqrt(squares / gaps)
    } else {
        1.0
    }
}

/// Reads a CSV whose first column counts minutes and whose others count the requests of one model each in that minute; the
/// scenario's models take the columns in order. Scaled so that each model's mean over the trace is its rate in `rates`.
pub(crate) fn counts(text: &str, rates: &[RequestsPerSecond]) -> Result<Vec<Rate>, TraceError> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let mut columns = vec![Vec::new(); rates.len()];
    for (record, line) in reader.records().zip(2_u64..) {
        let record = record.or_else(|e| wrong(line, e.to_string()))?;
        if record.len() <= rates.len() {
            return wrong(
                line,
                format!(
                    "{} models want {} columns, not {}",
                    rates.len(),
                    rates.len() + 1,
                    record.len()
                ),
            );
        }
        for (column, cell) in columns.iter_mut().zip(record.iter().skip(1)) {
            let count: u32 = cell
                .parse()
                .or_else(|_| wrong(line, format!("{cell:?} is no number of requests")))?;
            column.push(f64::from(count));
        }
    }
    let scaled = |(i, (column, rate)): (usize, (&Vec<f64>, &RequestsPerSecond))| {
        let mean = column.iter().sum::<f64>() / column.len() as f64;
        // Not above 0 either where there is no line at all: that mean is no number.
        if mean.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
            return wrong(1, format!("column {} has no requests to scale", i + 2));
        }
        let at = |count: f64| {
            RequestsPerSecond::new(count / mean * rate.get())
                .or_else(|e| wrong(1, format!("column {}: {e}", i + 2)))
        };
        let mut steps = Rate::constant(at(column[0])?);
        for (minute, &count) in (1_u64..).zip(&column[1..]) {
            steps.push(Time::from_nanos(minute * 60_000_000_000), at(count)?);
        }
        Ok(steps)
    };
    columns.iter().zip(rates).enumerate().map(scaled).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn gaps_vary_relative_to_the_mean_of_their_model() {
        let at = |millis: &[u64]| -> Vec<Time> {
            let moment = |&ms| Time::ZERO + Duration::from_millis(ms);
            millis.iter().map(moment).collect()
        };
        let check = |moments: &[Vec<Time>], expected: f64| {
            let found = variation(moments);
            assert!(
                (found - expected).abs() < 1e-9,
                "{found}, expected {expected}"
            );
        };
        check(&[at(&[0, 10, 20, 30]), at(&[5, 505, 1005])], 0.0);
        // Gaps of 0, 0 and 3 means: the squares of -1, -1 and 2 over 3.
        check(&[at(&[0, 0, 0, 30])], f64::sqrt(2.0));
        check(&[at(&[]), at(&[7])], 1.0);
    }
}

//! Recorded arrivals in CSV: the times of single requests, or counts per minute.

use std::{collections::BTreeMap, time::Duration};

use csv::{ReaderBuilder, StringRecord, Trim};
use packhorse_cluster::{ModelId, RequestsPerSecond, Time};

use crate::rate::Rate;

/// The reason why a trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// The number of the line, from 1, which is the header's.
    pub line: u64,
    /// The reason why the line cannot be read.
    pub problem: String,
}

/// The largest size of a trace in bytes.
const MAX_BYTES: usize = 4 << 30;

/// A reader of a trace that finds the line of an error.
struct TraceReader<'a> {
    text: &'a str,
    reader: csv::Reader<&'a [u8]>,
}

/// A record below the header, and the byte at which it starts.
struct Row {
    start: u64,
    cells: StringRecord,
}

impl<'a> TraceReader<'a> {
    fn new(text: &'a str) -> Result<Self, TraceError> {
        let reader = ReaderBuilder::new()
            .trim(Trim::All)
            .from_reader(text.as_bytes());
        let trace = Self { text, reader };
        if text.len() > MAX_BYTES {
            let problem = format!("expected at most {MAX_BYTES} bytes, not {}", text.len());
            return trace.error_at(0, problem);
        }
        Ok(trace)
    }

    /// Returns an error with the line that contains this byte.
    fn error_at<T>(&self, start: u64, problem: impl Into<String>) -> Result<T, TraceError> {
        // A record starts at the end of the one before, so that empty lines between the two are skipped here.
        let rest = &self.text[start as usize..];
        let skipped = rest.len() - rest.trim_start_matches(['\r', '\n']).len();
        let before = &self.text[..start as usize + skipped];
        Err(TraceError {
            line: 1 + before.matches('\n').count() as u64,
            problem: problem.into(),
        })
    }

    fn header(&mut self) -> Result<StringRecord, TraceError> {
        match self.reader.headers() {
            Ok(header) => Ok(header.clone()),
            Err(error) => self.error_at(0, error.to_string()),
        }
    }

    fn next(&mut self) -> Result<Option<Row>, TraceError> {
        let start = self.reader.position().byte();
        let mut cells = StringRecord::new();
        match self.reader.read_record(&mut cells) {
            Ok(true) => Ok(Some(Row {
                start: cells.position().map_or(start, csv::Position::byte),
                cells,
            })),
            Ok(false) => Ok(None),
            Err(error) => {
                let start = error.position().map_or(start, csv::Position::byte);
                let problem = match error.kind() {
                    csv::ErrorKind::UnequalLengths {
                        expected_len, len, ..
                    } => format!("expected {expected_len} columns as in the header, not {len}"),
                    _ => error.to_string(),
                };
                self.error_at(start, problem)
            }
        }
    }
}

/// Reads a CSV with the header `model,t_s`: the model of each request, and its arrival in seconds from the start, ascending.
/// Returns the arrivals of each model of `models`.
pub(crate) fn parse_arrivals(
    text: &str,
    models: &[&ModelId],
) -> Result<Vec<Vec<Time>>, TraceError> {
    let mut trace = TraceReader::new(text)?;
    let header = trace.header()?;
    if header != vec!["model", "t_s"] {
        let found = header.iter().collect::<Vec<_>>().join(",");
        return trace.error_at(0, format!("expected the header model,t_s, not {found:?}"));
    }
    let indices: BTreeMap<&ModelId, usize> = models.iter().copied().zip(0..).collect();
    let mut arrivals = vec![Vec::new(); models.len()];
    let mut last = 0.0;
    while let Some(Row { start, cells }) = trace.next()? {
        let (model, t_s) = (&cells[0], &cells[1]);
        let id: ModelId = model
            .parse()
            .or_else(|e| trace.error_at(start, format!("model: {e}")))?;
        let Some(&i) = indices.get(&id) else {
            return trace.error_at(start, format!("model: the scenario has no model {model}"));
        };
        let t_s = match t_s.parse::<f64>() {
            Ok(t_s) if (0.0..=1e7).contains(&t_s) => t_s,
            _ => {
                let problem = format!("t_s: expected a number between 0 and 1e7, not {t_s:?}");
                return trace.error_at(start, problem);
            }
        };
        if t_s < last {
            return trace.error_at(
                start,
                format!("t_s: {t_s} comes after {last}: the times must ascend"),
            );
        }
        last = t_s;
        arrivals[i].push(Time::from_nanos((t_s * 1e9).round() as u64));
    }
    if arrivals.iter().all(Vec::is_empty) {
        return trace.error_at(0, "the trace has no arrivals");
    }
    Ok(arrivals)
}

/// The coefficient of variation of the gaps between arrivals, each relative to the mean gap of its model; 1 without gaps.
pub(crate) fn gap_variation(arrivals: &[Vec<Time>]) -> f64 {
    let (mut squares, mut gaps) = (0.0, 0.0);
    for of_model in arrivals {
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

/// Reads a CSV with the requests per minute of each model. The first column is the number of the minute, and the others belong to the
/// scenario's models in their order. The rates are scaled so that each model's mean over the trace is its rate in `rates`.
pub(crate) fn parse_counts(
    text: &str,
    rates: &[RequestsPerSecond],
) -> Result<Vec<Rate>, TraceError> {
    let mut trace = TraceReader::new(text)?;
    let mut columns = vec![Vec::new(); rates.len()];
    while let Some(Row { start, cells }) = trace.next()? {
        if cells.len() <= rates.len() {
            return trace.error_at(
                start,
                format!(
                    "expected at least {} columns, the minute and one per model, not {}",
                    rates.len() + 1,
                    cells.len()
                ),
            );
        }
        for (column, cell) in columns.iter_mut().zip(cells.iter().skip(1)) {
            let count: u32 = cell.parse().or_else(|_| {
                trace.error_at(
                    start,
                    format!("expected a number of requests, not {cell:?}"),
                )
            })?;
            column.push(f64::from(count));
        }
    }
    let scale = |(i, (column, rate)): (usize, (&Vec<f64>, &RequestsPerSecond))| {
        let mean = column.iter().sum::<f64>() / column.len() as f64;
        // Without any line the mean is NaN, which is not above 0 either.
        if mean.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
            return trace.error_at(
                0,
                format!("column {}: expected at least one request", i + 2),
            );
        }
        let scaled_rate = |count: f64| {
            RequestsPerSecond::new(count / mean * rate.get())
                .or_else(|e| trace.error_at(0, format!("column {}: {e}", i + 2)))
        };
        let mut steps = Rate::constant(scaled_rate(column[0])?);
        for (minute, &count) in (1_u64..).zip(&column[1..]) {
            let from = Time::from_nanos(minute * 60_000_000_000);
            steps.append_change(from, Duration::ZERO, scaled_rate(count)?);
        }
        Ok(steps)
    };
    columns.iter().zip(rates).enumerate().map(scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variation_of_gaps_is_relative_to_the_mean_gap_of_their_model() {
        let at = |millis: &[u64]| -> Vec<Time> {
            let moment = |&ms| Time::ZERO + Duration::from_millis(ms);
            millis.iter().map(moment).collect()
        };
        let check = |arrivals: &[Vec<Time>], expected: f64| {
            let found = gap_variation(arrivals);
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

//! Recorded arrivals: moments of single requests, or counts per minute.

use std::{collections::BTreeMap, time::Duration};

use csv::{ReaderBuilder, StringRecord, Trim};
use packhorse_cluster::{ModelId, RequestsPerSecond, Time};

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

/// The most bytes of a trace.
const MAX_BYTES: usize = 4 << 30;

/// The text of a trace while it is read.
struct Table<'a> {
    text: &'a str,
    reader: csv::Reader<&'a [u8]>,
}

/// A record under the header, and where it starts.
struct Row {
    start: u64,
    cells: StringRecord,
}

impl<'a> Table<'a> {
    fn new(text: &'a str) -> Result<Self, TraceError> {
        let reader = ReaderBuilder::new()
            .trim(Trim::All)
            .from_reader(text.as_bytes());
        let table = Self { text, reader };
        if text.len() > MAX_BYTES {
            return table.wrong(0, format!("a trace has at most {MAX_BYTES} bytes"));
        }
        Ok(table)
    }

    /// `problem` stands at this byte.
    fn wrong<T>(&self, start: u64, problem: impl Into<String>) -> Result<T, TraceError> {
        // Records begin where the one before ended: empty lines between them count as theirs.
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
            Err(error) => self.wrong(0, error.to_string()),
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
                self.wrong(start, problem)
            }
        }
    }
}

/// Reads a CSV with the header `model,t_s`: when, in seconds from the start and ascending, a request of which model arrives.
/// One list per model of `models`.
pub(crate) fn moments(text: &str, models: &[&ModelId]) -> Result<Vec<Vec<Time>>, TraceError> {
    let mut table = Table::new(text)?;
    let header = table.header()?;
    if header != vec!["model", "t_s"] {
        let found = header.iter().collect::<Vec<_>>().join(",");
        return table.wrong(0, format!("expected the header model,t_s, not {found:?}"));
    }
    let places: BTreeMap<&ModelId, usize> = models.iter().copied().zip(0..).collect();
    let mut moments = vec![Vec::new(); models.len()];
    let mut last = 0.0;
    while let Some(Row { start, cells }) = table.next()? {
        let (model, t_s) = (&cells[0], &cells[1]);
        let id: ModelId = model
            .parse()
            .or_else(|e| table.wrong(start, format!("model: {e}")))?;
        let Some(&i) = places.get(&id) else {
            return table.wrong(start, format!("model: the scenario has no {model}"));
        };
        let t_s = match t_s.parse::<f64>() {
            Ok(t_s) if (0.0..=1e7).contains(&t_s) => t_s,
            _ => {
                let problem = format!("t_s: expected a number between 0 and 1e7, not {t_s:?}");
                return table.wrong(start, problem);
            }
        };
        if t_s < last {
            return table.wrong(
                start,
                format!("t_s: {t_s} comes after {last}: the times must ascend"),
            );
        }
        last = t_s;
        moments[i].push(Time::from_nanos((t_s * 1e9).round() as u64));
    }
    if moments.iter().all(Vec::is_empty) {
        return table.wrong(0, "the trace has no arrivals");
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
    let mut table = Table::new(text)?;
    let mut columns = vec![Vec::new(); rates.len()];
    while let Some(Row { start, cells }) = table.next()? {
        if cells.len() <= rates.len() {
            return table.wrong(
                start,
                format!(
                    "{} models want {} columns, not {}",
                    rates.len(),
                    rates.len() + 1,
                    cells.len()
                ),
            );
        }
        for (column, cell) in columns.iter_mut().zip(cells.iter().skip(1)) {
            let count: u32 = cell
                .parse()
                .or_else(|_| table.wrong(start, format!("{cell:?} is no number of requests")))?;
            column.push(f64::from(count));
        }
    }
    let scaled = |(i, (column, rate)): (usize, (&Vec<f64>, &RequestsPerSecond))| {
        let mean = column.iter().sum::<f64>() / column.len() as f64;
        // Not above 0 either where there is no line at all: that mean is no number.
        if mean.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
            return table.wrong(0, format!("column {} has no requests to scale", i + 2));
        }
        let at = |count: f64| {
            RequestsPerSecond::new(count / mean * rate.get())
                .or_else(|e| table.wrong(0, format!("column {}: {e}", i + 2)))
        };
        let mut steps = Rate::constant(at(column[0])?);
        for (minute, &count) in (1_u64..).zip(&column[1..]) {
            let from = Time::from_nanos(minute * 60_000_000_000);
            steps.change(from, Duration::ZERO, at(count)?);
        }
        Ok(steps)
    };
    columns.iter().zip(rates).enumerate().map(scaled).collect()
}

#[cfg(test)]
mod tests {
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

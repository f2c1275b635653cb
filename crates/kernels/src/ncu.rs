//! What NVIDIA Nsight Compute measured of kernels: the CSV that `ncu --csv` prints.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Percent;

use crate::{MAX_KERNELS, launch::percent};

/// A kernel that ncu ran.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredKernel {
    /// What ncu calls it.
    pub name: String,
    /// Warps that were active on average, of those that a multiprocessor can hold.
    pub achieved_occupancy: Percent,
    /// How long it ran by itself, at the clock that ncu holds.
    pub duration: Duration,
}

/// The kernels that ncu ran, in the order of their launch.
#[derive(Clone, Debug, PartialEq)]
pub struct NcuReport {
    kernels: Vec<MeasuredKernel>,
}

/// Why a text is no report of ncu.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcuError {
    /// There is no table in it. What ncu says instead follows, where it says something.
    #[error("there are no measurements of ncu in it{0}")]
    NoTable(String),
    /// A line of the table cannot be read.
    #[error("line {line} of the measurements: {problem}")]
    Line {
        /// Its number from the table's header, which is 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// A kernel lacks a metric.
    #[error("kernel {id} lacks the metric {metric}")]
    Lacking {
        /// Its number.
        id: u64,
        /// What ncu calls the metric.
        metric: &'static str,
    },
    /// There are too many.
    #[error("the report has more than {MAX_KERNELS} kernels")]
    TooMany,
}

#[derive(serde::Deserialize)]
struct Row {
    #[serde(rename = "ID")]
    id: u64,
    #[serde(rename = "Kernel Name")]
    kernel: String,
    #[serde(rename = "Metric Name")]
    metric: String,
    #[serde(rename = "Metric Unit")]
    unit: String,
    #[serde(rename = "Metric Value")]
    value: String,
}

#[derive(Default)]
struct Metrics {
    name: String,
    occupancy: Option<f64>,
    nanos: Option<f64>,
}

impl NcuReport {
    /// The metric that is the achieved occupancy (thesis, section 5.2.1).
    pub const OCCUPANCY: &'static str = "sm__warps_active.avg.pct_of_peak_sustained_active";
    /// The metric that is a kernel's duration.
    pub const DURATION: &'static str = "gpu__time_duration.sum";

    /// Reads what `ncu --csv --metrics` with [`NcuReport::OCCUPANCY`] and [`NcuReport::DURATION`] prints, a row per kernel and metric;
    /// other metrics are passed over, and so is what stands before the table.
    ///
    /// # Errors
    /// If there is no table, a line of it cannot be read, or a kernel lacks one of the metrics.
    pub fn from_csv(text: &str) -> Result<Self, NcuError> {
        let begin = text
            .lines()
            .scan(0, |at, line| {
                let start = *at;
                *at += line.len() + 1;
                Some((start, line))
            })
            .find(|(_, line)| line.starts_with("\"ID\","));
        let Some((begin, _)) = begin else {
            return Err(NcuError::NoTable(complaint(text)));
        };
        // A line of ncu's own may also follow the table.
        let table: String = text[begin..]
            .lines()
            .take_while(|line| line.starts_with('"'))
            .flat_map(|line| [line, "\n"])
            .collect();
        let mut kernels: BTreeMap<u64, Metrics> = BTreeMap::new();
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        for (index, row) in reader.deserialize::<Row>().enumerate() {
            let error = |problem: String| NcuError::Line {
                line: index as u64 + 2,
                problem,
            };
            let row = row.map_err(|e| error(e.to_string()))?;
            let value =
                || number(&row.value).ok_or_else(|| error(format!("{:?} is no number", row.value)));
            let kernel = kernels.entry(row.id).or_default();
            if row.metric == Self::OCCUPANCY {
                kernel.occupancy = Some(value()?);
            } else if row.metric == Self::DURATION {
                let unit = nanos_of(&row.unit)
                    .ok_or_else(|| error(format!("{:?} is no unit of time", row.unit)))?;
                kernel.nanos = Some(value()? * unit);
            }
            kernel.name = row.kernel;
            if kernels.len() > MAX_KERNELS {
                return Err(NcuError::TooMany);
            }
        }
        let measured = kernels.into_iter().map(|(id, of)| {
            let lacking = |metric| NcuError::Lacking { id, metric };
            let nanos = of.nanos.ok_or_else(|| lacking(Self::DURATION))?;
            Ok(MeasuredKernel {
                name: of.name,
                achieved_occupancy: percent(of.occupancy.ok_or_else(|| lacking(Self::OCCUPANCY))?),
                duration: Duration::from_nanos(nanos.round() as u64),
            })
        });
        let kernels: Vec<MeasuredKernel> = measured.collect::<Result<_, _>>()?;
        if kernels.is_empty() {
            return Err(NcuError::NoTable(complaint(text)));
        }
        Ok(Self { kernels })
    }

    /// The kernels, at least one.
    pub fn kernels(&self) -> &[MeasuredKernel] {
        &self.kernels
    }

    /// The highest occupancy of a kernel. Kernels that overlap add up to more, but ncu runs them one after the other.
    pub fn max(&self) -> Percent {
        let all = self.kernels.iter().map(|of| of.achieved_occupancy.get());
        percent(all.fold(0.0, f64::max))
    }

    /// The mean weighted by duration, without pauses between kernels: ncu makes pauses of its own.
    pub fn mean(&self) -> Percent {
        let total: f64 = self
            .kernels
            .iter()
            .map(|of| of.duration.as_secs_f64())
            .sum();
        let weighted =
            |of: &MeasuredKernel| of.duration.as_secs_f64() * of.achieved_occupancy.get();
        percent(self.kernels.iter().map(weighted).sum::<f64>() / total)
    }
}

/// A number as ncu prints it, with commas between thousands.
fn number(text: &str) -> Option<f64> {
    let value: f64 = text.replace(',', "").parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value)
}

fn nanos_of(unit: &str) -> Option<f64> {
    match unit {
        "ns" | "nsecond" => Some(1.0),
        "us" | "usecond" => Some(1e3),
        "ms" | "msecond" => Some(1e6),
        "s" | "second" => Some(1e9),
        _ => None,
    }
}

/// The last of what ncu says to be wrong, as an addition to a sentence.
fn complaint(text: &str) -> String {
    let said = text
        .lines()
        .rfind(|line| line.starts_with("==ERROR==") || line.starts_with("==WARNING=="));
    said.map_or_else(String::new, |line| {
        format!(": {}", line.chars().take(300).collect::<String>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form of ncu 2025.3, command line `ncu --csv --metrics …`; the figures are made up.
    const REPORT: &str = include_str!("../tests/data/ncu.csv");

    #[test]
    fn kernels_have_their_occupancy_and_duration_in_the_order_of_launch() {
        let report = NcuReport::from_csv(REPORT).unwrap();
        let rows: Vec<_> = report
            .kernels()
            .iter()
            .map(|of| {
                (
                    of.name.as_str(),
                    of.achieved_occupancy.get(),
                    of.duration.as_nanos(),
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("void gemm<(int)4, float>(float *, int)", 12.34, 1_234_560),
                ("void relu<float>(float *)", 81.5, 2_048),
            ]
        );
        assert_eq!(report.max(), percent(81.5));
        // (1234560 * 12.34 + 2048 * 81.5) / (1234560 + 2048)
        assert!(
            (report.mean().get() - 12.454_54).abs() < 1e-4,
            "{}",
            report.mean().get()
        );
    }

    #[test]
    fn a_report_without_measurements_says_what_ncu_says() {
        let refused = "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU \
            Performance Counters\n";
        let message = NcuReport::from_csv(refused).unwrap_err().to_string();
        assert!(
            message
                .starts_with("there are no measurements of ncu in it: ==ERROR== ERR_NVGPUCTRPERM"),
            "{message}"
        );
        assert_eq!(
            NcuReport::from_csv("").unwrap_err().to_string(),
            "there are no measurements of ncu in it"
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (from, to, problem) in [
            (
                "81.50",
                "n/a",
                "line 4 of the measurements: \"n/a\" is no number",
            ),
            (
                "\"us\"",
                "\"cycle\"",
                "line 3 of the measurements: \"cycle\" is no unit of time",
            ),
            (
                NcuReport::OCCUPANCY,
                "other",
                "kernel 0 lacks the metric sm__warps_active.avg.pct_of_peak_sustained_active",
            ),
        ] {
            let text = REPORT.replace(from, to);
            assert_eq!(NcuReport::from_csv(&text).unwrap_err().to_string(), problem);
        }
    }
}

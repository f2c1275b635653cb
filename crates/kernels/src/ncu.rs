//! Measurements of kernels by NVIDIA Nsight Compute, in the CSV that `ncu --csv` prints.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Percent;

use crate::MAX_KERNELS;

/// A kernel that ncu measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredKernel {
    /// The kernel's name in ncu.
    pub name: String,
    /// The average of active warps, relative to those that a multiprocessor can hold.
    pub achieved_occupancy: Percent,
    /// The time that the kernel ran alone, at the clock that ncu sets.
    pub duration: Duration,
}

/// The kernels that ncu measured, in the order of their launch.
#[derive(Clone, Debug, PartialEq)]
pub struct NcuReport {
    kernels: Vec<MeasuredKernel>,
}

/// The error for a text that is not a report of ncu.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcuError {
    /// The text contains no table. The value is ncu's own error or warning, if there is one.
    #[error("the text contains no measurements of ncu{0}")]
    NoTable(String),
    /// A line of the table cannot be read.
    #[error("line {line} of the measurements: {problem}")]
    Line {
        /// The line number in the table; the header is line 1.
        line: u64,
        /// The problem in that line.
        problem: String,
    },
    /// A kernel lacks a metric.
    #[error("kernel {id} lacks the metric {metric}")]
    MissingMetric {
        /// The kernel's number.
        id: u64,
        /// The metric's name in ncu.
        metric: &'static str,
    },
    /// There are too many kernels.
    #[error("the report has more than {MAX_KERNELS} kernels")]
    TooMany,
}

#[derive(Default)]
struct Metrics {
    name: String,
    occupancy: Option<f64>,
    nanos: Option<f64>,
}

impl NcuReport {
    /// The name of the metric of achieved occupancy (thesis, section 5.2.1).
    pub const OCCUPANCY: &'static str = "sm__warps_active.avg.pct_of_peak_sustained_active";
    /// The name of the metric of a kernel's duration.
    pub const DURATION: &'static str = "gpu__time_duration.sum";

    /// Reads the output of `ncu --csv` with the metrics [`NcuReport::OCCUPANCY`] and [`NcuReport::DURATION`], or with sections that
    /// contain them: a row per kernel with a column per metric (`--page raw`), after a row of units; or a row per kernel and metric (the
    /// default page). Other metrics and text around the table are skipped.
    ///
    /// # Errors
    /// If there is no table, a line of it cannot be read, or a kernel lacks one of the metrics.
    pub fn from_csv(text: &str) -> Result<Self, NcuError> {
        let begins = |line: &&str| line.starts_with("\"ID\",");
        let lines = text.lines().skip_while(|line| !begins(line));
        // ncu prints messages before, inside and after the table.
        let table: String = lines
            .filter(|line| line.starts_with('"'))
            .flat_map(|line| [line, "\n"])
            .collect();
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .from_reader(table.as_bytes());
        let header = reader.headers().cloned().unwrap_or_default();
        let mut columns = Columns::new(&header);
        let mut kernels: BTreeMap<u64, Metrics> = BTreeMap::new();
        for (index, row) in reader.records().enumerate() {
            let error = |problem: String| NcuError::Line {
                line: index as u64 + 2,
                problem,
            };
            let row = row.map_err(|e| error(e.to_string()))?;
            columns.read(&row, &mut kernels).map_err(error)?;
            if kernels.len() > MAX_KERNELS {
                return Err(NcuError::TooMany);
            }
        }
        let measured = kernels.into_iter().map(|(id, metrics)| {
            let missing = |metric| NcuError::MissingMetric { id, metric };
            let nanos = metrics.nanos.ok_or_else(|| missing(Self::DURATION))?;
            let occupancy = metrics.occupancy.ok_or_else(|| missing(Self::OCCUPANCY))?;
            Ok(MeasuredKernel {
                name: metrics.name,
                achieved_occupancy: Percent::clamped(occupancy),
                duration: Duration::from_nanos(nanos.round() as u64),
            })
        });
        let kernels: Vec<MeasuredKernel> = measured.collect::<Result<_, _>>()?;
        if kernels.is_empty() {
            return Err(NcuError::NoTable(ncu_message(text)));
        }
        Ok(Self { kernels })
    }

    /// Returns the kernels, at least one.
    pub fn kernels(&self) -> &[MeasuredKernel] {
        &self.kernels
    }

    /// Returns the highest occupancy of a kernel. Overlapping kernels would add up to more, but ncu runs one kernel at a time.
    pub fn max(&self) -> Percent {
        let all = self
            .kernels
            .iter()
            .map(|kernel| kernel.achieved_occupancy.get());
        Percent::clamped(all.fold(0.0, f64::max))
    }

    /// Returns the mean occupancy weighted by duration, without pauses between kernels, because ncu itself causes pauses.
    pub fn mean(&self) -> Percent {
        let total: f64 = self
            .kernels
            .iter()
            .map(|kernel| kernel.duration.as_secs_f64())
            .sum();
        let weighted = |kernel: &MeasuredKernel| {
            kernel.duration.as_secs_f64() * kernel.achieved_occupancy.get()
        };
        Percent::clamped(self.kernels.iter().map(weighted).sum::<f64>() / total)
    }
}

/// The columns of a table.
struct Columns {
    id: Option<usize>,
    kernel: Option<usize>,
    metrics: MetricColumns,
}

enum MetricColumns {
    /// A row per kernel and metric.
    RowPerMetric {
        metric: usize,
        unit: Option<usize>,
        value: Option<usize>,
    },
    /// A column per metric; the unit is read from the first row.
    ColumnPerMetric {
        occupancy: Option<usize>,
        duration: Option<usize>,
        unit: String,
    },
}

impl Columns {
    fn new(header: &csv::StringRecord) -> Self {
        let column = |name: &str| header.iter().position(|cell| cell == name);
        let metrics = match column("Metric Name") {
            Some(metric) => MetricColumns::RowPerMetric {
                metric,
                unit: column("Metric Unit"),
                value: column("Metric Value"),
            },
            None => MetricColumns::ColumnPerMetric {
                occupancy: column(NcuReport::OCCUPANCY),
                duration: column(NcuReport::DURATION),
                unit: String::new(),
            },
        };
        Self {
            id: column("ID"),
            kernel: column("Kernel Name"),
            metrics,
        }
    }

    /// Adds the metrics of a row to their kernel.
    fn read(
        &mut self,
        row: &csv::StringRecord,
        kernels: &mut BTreeMap<u64, Metrics>,
    ) -> Result<(), String> {
        let cell = |column: Option<usize>| column.and_then(|at| row.get(at)).unwrap_or_default();
        let id = cell(self.id);
        if let (MetricColumns::ColumnPerMetric { duration, unit, .. }, true) =
            (&mut self.metrics, id.is_empty())
        {
            cell(*duration).clone_into(unit);
            return Ok(());
        }
        let id = id.parse().map_err(|_| format!("{id:?} is not an ID"))?;
        let metrics = kernels.entry(id).or_default();
        cell(self.kernel).clone_into(&mut metrics.name);
        match &self.metrics {
            MetricColumns::RowPerMetric {
                metric,
                unit,
                value,
            } => match cell(Some(*metric)) {
                // The second name is the metric's in the section Occupancy.
                NcuReport::OCCUPANCY | "Achieved Occupancy" => {
                    metrics.occupancy = Some(parse_number(cell(*value))?);
                }
                NcuReport::DURATION | "Duration" => {
                    metrics.nanos =
                        Some(parse_number(cell(*value))? * nanos_per_unit(cell(*unit))?);
                }
                _ => {}
            },
            MetricColumns::ColumnPerMetric {
                occupancy,
                duration,
                unit,
            } => {
                if occupancy.is_some() {
                    metrics.occupancy = Some(parse_number(cell(*occupancy))?);
                }
                if duration.is_some() {
                    metrics.nanos = Some(parse_number(cell(*duration))? * nanos_per_unit(unit)?);
                }
            }
        }
        Ok(())
    }
}

/// Parses a number of ncu, which has commas between thousands.
fn parse_number(text: &str) -> Result<f64, String> {
    let value = text.replace(',', "").parse().ok();
    value
        .filter(|value: &f64| value.is_finite() && *value >= 0.0)
        .ok_or_else(|| format!("{text:?} is not a number of at least 0"))
}

fn nanos_per_unit(unit: &str) -> Result<f64, String> {
    match unit {
        "ns" | "nsecond" => Ok(1.0),
        "us" | "usecond" => Ok(1e3),
        "ms" | "msecond" => Ok(1e6),
        "s" | "second" => Ok(1e9),
        _ => Err(format!("{unit:?} is not a unit of time")),
    }
}

/// Returns the reason that ncu gives, to be appended to a sentence: its first error, which causes the others, else its last warning.
fn ncu_message(text: &str) -> String {
    let error = text.lines().find(|line| line.starts_with("==ERROR=="));
    let warning = || text.lines().rfind(|line| line.starts_with("==WARNING=="));
    error.or_else(warning).map_or_else(String::new, |line| {
        format!(": {}", line.chars().take(300).collect::<String>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format of `ncu --csv --metrics …`, with invented numbers.
    const REPORT: &str = include_str!("../tests/data/ncu.csv");
    /// The same report in the format of `ncu --csv --page raw --metrics …`.
    const RAW: &str = include_str!("../tests/data/ncu-raw.csv");

    #[test]
    fn a_column_per_metric_is_read_like_a_row_per_metric() {
        let rows = NcuReport::from_csv(REPORT).unwrap();
        assert_eq!(NcuReport::from_csv(RAW), Ok(rows));
        let without = RAW.replace(NcuReport::OCCUPANCY, "sm__other.avg");
        let lacking = NcuReport::from_csv(&without).unwrap_err().to_string();
        assert_eq!(
            lacking,
            "kernel 0 lacks the metric sm__warps_active.avg.pct_of_peak_sustained_active"
        );
        let unknown = RAW.replace("\"us\"", "\"cycle\"");
        assert_eq!(
            NcuReport::from_csv(&unknown).unwrap_err().to_string(),
            "line 3 of the measurements: \"cycle\" is not a unit of time"
        );
    }

    #[test]
    fn metric_names_of_sections_are_read_and_messages_skipped() {
        let sections = REPORT
            .replace(NcuReport::OCCUPANCY, "Achieved Occupancy")
            .replace(NcuReport::DURATION, "Duration")
            .replace("\"us\"", "\"usecond\"")
            .replace("\"1\",\"4711\"", "==WARNING== slow\n\"1\",\"4711\"");
        let printed = format!("{sections}==PROF== Report: none\n");
        assert_eq!(NcuReport::from_csv(&printed), NcuReport::from_csv(REPORT));
    }

    #[test]
    fn kernels_have_their_occupancy_and_duration_in_the_order_of_launch() {
        let report = NcuReport::from_csv(REPORT).unwrap();
        let rows: Vec<_> = report
            .kernels()
            .iter()
            .map(|kernel| {
                (
                    kernel.name.as_str(),
                    kernel.achieved_occupancy.get(),
                    kernel.duration.as_nanos(),
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
        assert_eq!(report.max(), Percent::clamped(81.5));
        // (1234560 * 12.34 + 2048 * 81.5) / (1234560 + 2048)
        assert!(
            (report.mean().get() - 12.454_54).abs() < 1e-4,
            "{}",
            report.mean().get()
        );
    }

    #[test]
    fn the_error_of_a_report_without_measurements_contains_ncus_message() {
        let refused = "==PROF== Connected to process 7 (/usr/bin/packhorse-worker)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have \
            permission to access NVIDIA GPU Performance Counters on the target device 0.\n==ERROR== The application returned an error \
            code (1).\n==PROF== Disconnected from process 7\n==WARNING== No kernels were profiled.\n";
        let message = NcuReport::from_csv(refused).unwrap_err().to_string();
        assert!(
            message.starts_with(
                "the text contains no measurements of ncu: ==ERROR== ERR_NVGPUCTRPERM"
            ),
            "{message}"
        );
        assert_eq!(
            NcuReport::from_csv("").unwrap_err().to_string(),
            "the text contains no measurements of ncu"
        );
    }

    #[test]
    fn errors_name_the_text_that_cannot_be_read() {
        for (from, to, problem) in [
            (
                "81.50",
                "n/a",
                "line 4 of the measurements: \"n/a\" is not a number of at least 0",
            ),
            (
                "\"us\"",
                "\"cycle\"",
                "line 3 of the measurements: \"cycle\" is not a unit of time",
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

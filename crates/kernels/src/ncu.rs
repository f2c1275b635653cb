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

    /// Reads what `ncu --csv` prints with the metrics [`NcuReport::OCCUPANCY`] and [`NcuReport::DURATION`], or with sections that have
    /// them: a row per kernel with a column per metric (`--page raw`), under a row of units; or a row per kernel and metric (the page
    /// that is printed else). Other metrics are passed over, and so is what stands around the table.
    ///
    /// # Errors
    /// If there is no table, a line of it cannot be read, or a kernel lacks one of the metrics.
    pub fn from_csv(text: &str) -> Result<Self, NcuError> {
        let begins = |line: &&str| line.starts_with("\"ID\",");
        let lines = text.lines().skip_while(|line| !begins(line));
        // Lines of ncu's own may stand before the table, in it and after it.
        let table: String = lines
            .filter(|line| line.starts_with('"'))
            .flat_map(|line| [line, "\n"])
            .collect();
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .from_reader(table.as_bytes());
        let header = reader.headers().cloned().unwrap_or_default();
        let mut layout = Layout::new(&header);
        let mut kernels: BTreeMap<u64, Metrics> = BTreeMap::new();
        for (index, row) in reader.records().enumerate() {
            let error = |problem: String| NcuError::Line {
                line: index as u64 + 2,
                problem,
            };
            let row = row.map_err(|e| error(e.to_string()))?;
            layout.read(&row, &mut kernels).map_err(error)?;
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

/// Where the cells of a table are.
struct Layout {
    id: Option<usize>,
    kernel: Option<usize>,
    cells: Cells,
}

enum Cells {
    /// A row per kernel and metric.
    Rows {
        metric: usize,
        unit: Option<usize>,
        value: Option<usize>,
    },
    /// A column per metric; the units are known from the first row on.
    Columns {
        occupancy: Option<usize>,
        duration: Option<usize>,
        unit: String,
    },
}

impl Layout {
    fn new(header: &csv::StringRecord) -> Self {
        let column = |name: &str| header.iter().position(|cell| cell == name);
        let cells = match column("Metric Name") {
            Some(metric) => Cells::Rows {
                metric,
                unit: column("Metric Unit"),
                value: column("Metric Value"),
            },
            None => Cells::Columns {
                occupancy: column(NcuReport::OCCUPANCY),
                duration: column(NcuReport::DURATION),
                unit: String::new(),
            },
        };
        Self {
            id: column("ID"),
            kernel: column("Kernel Name"),
            cells,
        }
    }

    /// Adds what stands in a row.
    fn read(
        &mut self,
        row: &csv::StringRecord,
        kernels: &mut BTreeMap<u64, Metrics>,
    ) -> Result<(), String> {
        let cell = |column: Option<usize>| column.and_then(|at| row.get(at)).unwrap_or_default();
        let id = cell(self.id);
        if let (Cells::Columns { duration, unit, .. }, true) = (&mut self.cells, id.is_empty()) {
            cell(*duration).clone_into(unit);
            return Ok(());
        }
        let id = id.parse().map_err(|_| format!("{id:?} is no ID"))?;
        let metrics = kernels.entry(id).or_default();
        cell(self.kernel).clone_into(&mut metrics.name);
        match &self.cells {
            Cells::Rows {
                metric,
                unit,
                value,
            } => match cell(Some(*metric)) {
                // The latter is what the section Occupancy calls it.
                NcuReport::OCCUPANCY | "Achieved Occupancy" => {
                    metrics.occupancy = Some(number(cell(*value))?);
                }
                NcuReport::DURATION | "Duration" => {
                    metrics.nanos = Some(number(cell(*value))? * nanos_of(cell(*unit))?);
                }
                _ => {}
            },
            Cells::Columns {
                occupancy,
                duration,
                unit,
            } => {
                if occupancy.is_some() {
                    metrics.occupancy = Some(number(cell(*occupancy))?);
                }
                if duration.is_some() {
                    metrics.nanos = Some(number(cell(*duration))? * nanos_of(unit)?);
                }
            }
        }
        Ok(())
    }
}

/// A number as ncu prints it, with commas between thousands.
fn number(text: &str) -> Result<f64, String> {
    let value = text.replace(',', "").parse().ok();
    value
        .filter(|value: &f64| value.is_finite() && *value >= 0.0)
        .ok_or_else(|| format!("{text:?} is no number"))
}

fn nanos_of(unit: &str) -> Result<f64, String> {
    match unit {
        "ns" | "nsecond" => Ok(1.0),
        "us" | "usecond" => Ok(1e3),
        "ms" | "msecond" => Ok(1e6),
        "s" | "second" => Ok(1e9),
        _ => Err(format!("{unit:?} is no unit of time")),
    }
}

/// What ncu says to be wrong, as an addition to a sentence: its first error, for those behind it follow from it; else its last warning.
fn complaint(text: &str) -> String {
    let error = text.lines().find(|line| line.starts_with("==ERROR=="));
    let warning = || text.lines().rfind(|line| line.starts_with("==WARNING=="));
    error.or_else(warning).map_or_else(String::new, |line| {
        format!(": {}", line.chars().take(300).collect::<String>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form of `ncu --csv --metrics …`; the figures are made up.
    const REPORT: &str = include_str!("../tests/data/ncu.csv");
    /// The same in the form of `ncu --csv --page raw --metrics …`.
    const RAW: &str = include_str!("../tests/data/ncu-raw.csv");

    #[test]
    fn a_column_per_metric_says_the_same_as_a_row_per_metric() {
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
            "line 3 of the measurements: \"cycle\" is no unit of time"
        );
    }

    #[test]
    fn sections_call_the_metrics_by_other_names_and_ncu_speaks_in_between() {
        let sections = REPORT
            .replace(NcuReport::OCCUPANCY, "Achieved Occupancy")
            .replace(NcuReport::DURATION, "Duration")
            .replace("\"us\"", "\"usecond\"")
            .replace("\"1\",\"4711\"", "==WARNING== slow\n\"1\",\"4711\"");
        let said = format!("{sections}==PROF== Report: none\n");
        assert_eq!(NcuReport::from_csv(&said), NcuReport::from_csv(REPORT));
    }

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
        let refused = "==PROF== Connected to process 7 (/usr/bin/packhorse-worker)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have \
            permission to access NVIDIA GPU Performance Counters on the target device 0.\n==ERROR== The application returned an error \
            code (1).\n==PROF== Disconnected from process 7\n==WARNING== No kernels were profiled.\n";
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

//! The report: sections of rows, each with a value, possibly a target, and a verdict. It is printed as tables and written as JSON.

use std::{fmt, path::Path};

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table as PrintedTable, presets::NOTHING};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The results of all parts.
#[derive(Serialize)]
pub(crate) struct Report {
    /// The version of this program.
    pub(crate) version: &'static str,
    /// The checked devices: `nvidia` or `cpu`.
    pub(crate) device: String,
    /// True for small models and short runs, whose speeds have no target.
    pub(crate) quick: bool,
    /// The sections, in the order of the parts.
    pub(crate) sections: Vec<Section>,
}

/// The results of one part.
#[derive(Serialize)]
pub(crate) struct Section {
    /// The part's name for `--only`.
    pub(crate) part: &'static str,
    /// The time of the part, in seconds.
    pub(crate) seconds: f64,
    rows: Vec<Row>,
    tables: Vec<Table>,
}

/// The result of one check or measurement.
#[derive(Serialize)]
struct Row {
    what: String,
    value: RowValue,
    unit: &'static str,
    target: Option<Target>,
    #[serde(flatten)]
    verdict: Verdict,
}

/// The value of a row.
#[derive(Serialize)]
#[serde(untagged)]
enum RowValue {
    Number(f64),
    Text(String),
    Absent,
}

/// The target of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// At least this number.
    AtLeast(f64),
    /// At most this number.
    AtMost(f64),
    /// A condition, described in words.
    Condition(&'static str),
}

/// The verdict of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", content = "reason", rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The target is met.
    Met,
    /// The target is not met.
    Missed,
    /// There is no target: a fact, or a speed without a target.
    Measured,
    /// It cannot be checked on this host, for this reason.
    Unavailable(String),
    /// The check failed with this error.
    Failed(String),
}

/// A table of numbers.
#[derive(Serialize)]
pub(crate) struct Table {
    /// The title of the table.
    pub(crate) title: &'static str,
    /// The headers of the columns, with their units.
    pub(crate) columns: Vec<&'static str>,
    /// The rows, with one cell per column; null for no number.
    pub(crate) rows: Vec<Vec<Value>>,
}

/// The numbers of rows by verdict.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VerdictCounts {
    pub(crate) met: usize,
    pub(crate) missed_or_failed: usize,
    pub(crate) unavailable: usize,
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(value) => write!(f, "≥ {}", format_number(*value)),
            Self::AtMost(value) => write!(f, "≤ {}", format_number(*value)),
            Self::Condition(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Met => f.write_str("met"),
            Self::Missed => f.write_str("MISSED"),
            Self::Measured => Ok(()),
            Self::Unavailable(reason) => write!(f, "unavailable: {reason}"),
            Self::Failed(reason) => write!(f, "FAILED: {reason}"),
        }
    }
}

impl Target {
    /// Returns true if a number meets the target; a condition is met by no number.
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
            Self::Condition(_) => false,
        }
    }
}

impl Section {
    /// Creates an empty section.
    pub(crate) fn new(part: &'static str) -> Self {
        Self {
            part,
            seconds: 0.0,
            rows: Vec::new(),
            tables: Vec::new(),
        }
    }

    fn add(
        &mut self,
        what: impl Into<String>,
        (value, unit): (RowValue, &'static str),
        target: Option<Target>,
        verdict: Verdict,
    ) {
        self.rows.push(Row {
            what: what.into(),
            value,
            unit,
            target,
            verdict,
        });
    }

    /// Adds a fact.
    pub(crate) fn fact(&mut self, what: impl Into<String>, text: impl Into<String>) {
        let value = (RowValue::Text(text.into()), "");
        self.add(what, value, None, Verdict::Measured);
    }

    /// Adds a number, with the verdict of its target if it has one.
    pub(crate) fn number(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        target: Option<Target>,
    ) {
        let verdict = match target {
            None => Verdict::Measured,
            Some(target) if target.is_met_by(value) => Verdict::Met,
            Some(_) => Verdict::Missed,
        };
        self.add(what, (RowValue::Number(value), unit), target, verdict);
    }

    /// Adds a condition, with the observation and its verdict.
    pub(crate) fn condition(
        &mut self,
        what: impl Into<String>,
        target: &'static str,
        is_met: bool,
        observation: impl Into<String>,
    ) {
        let verdict = if is_met {
            Verdict::Met
        } else {
            Verdict::Missed
        };
        let value = (RowValue::Text(observation.into()), "");
        self.add(what, value, Some(Target::Condition(target)), verdict);
    }

    /// Adds a check that is not possible on this host.
    pub(crate) fn unavailable(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        let verdict = Verdict::Unavailable(reason.into());
        self.add(what, (RowValue::Absent, ""), None, verdict);
    }

    /// Adds a check that was not started before the time limit.
    pub(crate) fn out_of_time(&mut self, what: impl Into<String>) {
        self.unavailable(what, "the time limit of --minutes is over");
    }

    /// Adds a check that failed with an error.
    pub(crate) fn failed(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        let verdict = Verdict::Failed(reason.into());
        self.add(what, (RowValue::Absent, ""), None, verdict);
    }

    /// Adds a table.
    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Formats the section for the terminal.
    pub(crate) fn render(&self) -> String {
        let mut rows = new_table(["", "value", "target", "verdict"]);
        for row in &self.rows {
            let value = match &row.value {
                RowValue::Number(value) => format!("{} {}", format_number(*value), row.unit),
                RowValue::Text(text) => text.clone(),
                RowValue::Absent => String::new(),
            };
            let target = row.target.map(|target| target.to_string());
            let target = target.unwrap_or_default();
            rows.add_row([
                row.what.clone(),
                value.trim_end().to_owned(),
                target,
                row.verdict.to_string(),
            ]);
        }
        let mut text = format!("\n{} ({:.0} s)\n{rows}\n", self.part, self.seconds);
        for table in &self.tables {
            let mut printed = new_table(table.columns.iter().copied());
            for row in &table.rows {
                printed.add_row(row.iter().map(format_cell));
            }
            text.extend([table.title, "\n", &printed.to_string(), "\n"]);
        }
        text
    }
}

fn new_table<'a>(header: impl IntoIterator<Item = &'a str>) -> PrintedTable {
    let mut table = PrintedTable::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    table
}

fn format_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(value) => value.as_f64().map(format_number).unwrap_or_default(),
        other => other.to_string(),
    }
}

/// Formats a number with four significant digits and at most three decimal places.
fn format_number(value: f64) -> String {
    let magnitude = value.abs();
    if value.fract() == 0.0 && magnitude < 1e6 {
        format!("{value}")
    } else if !(1e-2..1e6).contains(&magnitude) {
        format!("{value:.2e}")
    } else {
        let decimals = (3 - magnitude.log10().floor() as i32).clamp(0, 3) as usize;
        format!("{value:.decimals$}")
    }
}

impl Report {
    /// Writes the report as JSON.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(self).context("write the report")?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Counts the rows by verdict.
    pub(crate) fn count_verdicts(&self) -> VerdictCounts {
        let rows = || self.sections.iter().flat_map(|section| &section.rows);
        let count =
            |wanted: fn(&Verdict) -> bool| rows().filter(|row| wanted(&row.verdict)).count();
        VerdictCounts {
            met: count(|verdict| *verdict == Verdict::Met),
            missed_or_failed: count(|verdict| {
                matches!(verdict, Verdict::Missed | Verdict::Failed(_))
            }),
            unavailable: count(|verdict| matches!(verdict, Verdict::Unavailable(_))),
        }
    }
}

/// Returns the middle one of values, or the greater of the two in the middle; not a number if there are none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_at_its_limit_and_missed_beyond_it() {
        let verdict = |value, target| {
            let mut section = Section::new("p");
            section.number("w", value, "", target);
            section.rows[0].verdict.clone()
        };
        assert_eq!(verdict(0.97, Some(Target::AtLeast(0.97))), Verdict::Met);
        assert_eq!(verdict(0.96, Some(Target::AtLeast(0.97))), Verdict::Missed);
        assert_eq!(verdict(1.2, Some(Target::AtMost(1.2))), Verdict::Met);
        assert_eq!(verdict(1.3, Some(Target::AtMost(1.2))), Verdict::Missed);
        assert_eq!(verdict(0.1, None), Verdict::Measured);
        assert_eq!(
            verdict(f64::NAN, Some(Target::AtLeast(0.97))),
            Verdict::Missed
        );
    }

    #[test]
    fn verdicts_are_counted_by_kind() {
        let mut section = Section::new("p");
        section.condition("a", "answers", true, "yes");
        section.condition("b", "answers", false, "no");
        section.failed("c", "broke");
        section.unavailable("d", "no MPS here");
        section.fact("e", "a fact");
        let report = Report {
            version: "1",
            device: "cpu".to_owned(),
            quick: true,
            sections: vec![section],
        };
        let expected = VerdictCounts {
            met: 1,
            missed_or_failed: 2,
            unavailable: 1,
        };
        assert_eq!(report.count_verdicts(), expected);
    }

    #[test]
    fn a_row_is_the_same_in_json_and_in_print() {
        let mut section = Section::new("copies");
        section.number(
            "host to device",
            0.912,
            "of pinned",
            Some(Target::AtLeast(0.9)),
        );
        section.unavailable("MPS", "no nvidia-cuda-mps-control");
        let json = serde_json::to_value(&section).unwrap();
        assert_eq!(json["rows"][0]["value"], 0.912);
        assert_eq!(json["rows"][0]["target"], "≥ 0.900");
        assert_eq!(json["rows"][0]["verdict"], "met");
        assert_eq!(json["rows"][1]["verdict"], "unavailable");
        assert_eq!(json["rows"][1]["reason"], "no nvidia-cuda-mps-control");
        let printed = section.render();
        assert!(printed.contains("0.912 of pinned"), "{printed}");
        assert!(printed.contains("unavailable: no nvidia-cuda-mps-control"));
    }

    #[test]
    fn numbers_have_four_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (128.0, "128"),
            (0.971_23, "0.971"),
            (12.345_6, "12.35"),
            (1234.5, "1234"),
            (0.000_012_3, "1.23e-5"),
            (2.5e10, "2.50e10"),
        ] {
            assert_eq!(format_number(value), text);
        }
    }
}

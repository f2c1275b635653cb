//! What comes of a check: sections of rows, each with a value, a target where there is one, and a verdict; printed as tables and
//! written as JSON.

use std::{fmt, path::Path};

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table as Printed, presets::NOTHING};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Everything that was checked.
#[derive(Serialize)]
pub(crate) struct Report {
    /// This program's version.
    pub(crate) version: &'static str,
    /// What was checked: `nvidia` or `cpu`.
    pub(crate) device: String,
    /// Small models and short runs, whose speed is not judged.
    pub(crate) quick: bool,
    /// In the order of the parts.
    pub(crate) sections: Vec<Section>,
}

/// What came of one part.
#[derive(Serialize)]
pub(crate) struct Section {
    /// The part's name, as `--only` takes it.
    pub(crate) part: &'static str,
    /// How long it took.
    pub(crate) seconds: f64,
    rows: Vec<Row>,
    tables: Vec<Table>,
}

/// One thing that was looked at.
#[derive(Serialize)]
struct Row {
    what: String,
    value: Measure,
    unit: &'static str,
    target: Option<Target>,
    #[serde(flatten)]
    verdict: Verdict,
}

/// What was found.
#[derive(Serialize)]
#[serde(untagged)]
enum Measure {
    Number(f64),
    Text(String),
    Absent,
}

/// What a value has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// This, or more.
    AtLeast(f64),
    /// This, or less.
    AtMost(f64),
    /// True, in words.
    Holds(&'static str),
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", content = "reason", rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The target is met.
    Met,
    /// It is not.
    Missed,
    /// There is no target: a fact, or a speed that nobody judges.
    Measured,
    /// It could not be looked at here, and why.
    Unavailable(String),
    /// Looking at it failed, and how.
    Failed(String),
}

/// Figures that belong beside each other.
#[derive(Serialize)]
pub(crate) struct Table {
    /// What they are.
    pub(crate) title: &'static str,
    /// What stands in each column, with its unit.
    pub(crate) columns: Vec<&'static str>,
    /// As many cells as columns in each; null where there is no figure.
    pub(crate) rows: Vec<Vec<Value>>,
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(value) => write!(f, "≥ {}", number(*value)),
            Self::AtMost(value) => write!(f, "≤ {}", number(*value)),
            Self::Holds(text) => f.write_str(text),
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
    /// Whether a value meets it; no number meets one in words.
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
            Self::Holds(_) => false,
        }
    }
}

impl Section {
    /// Without anything yet.
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
        (value, unit): (Measure, &'static str),
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

    /// Something that is as it is.
    pub(crate) fn fact(&mut self, what: impl Into<String>, text: impl Into<String>) {
        let value = (Measure::Text(text.into()), "");
        self.add(what, value, None, Verdict::Measured);
    }

    /// A number, and whether it meets its target if it has one.
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
        self.add(what, (Measure::Number(value), unit), target, verdict);
    }

    /// Something that has to be true, with what was seen of it.
    pub(crate) fn holds(
        &mut self,
        what: impl Into<String>,
        target: &'static str,
        holds: bool,
        seen: impl Into<String>,
    ) {
        let verdict = if holds { Verdict::Met } else { Verdict::Missed };
        let value = (Measure::Text(seen.into()), "");
        self.add(what, value, Some(Target::Holds(target)), verdict);
    }

    /// Something that cannot be looked at here.
    pub(crate) fn unavailable(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        let verdict = Verdict::Unavailable(reason.into());
        self.add(what, (Measure::Absent, ""), None, verdict);
    }

    /// Something that was not begun.
    pub(crate) fn out_of_time(&mut self, what: impl Into<String>) {
        self.unavailable(what, "the time is over (--minutes)");
    }

    /// Something that should have worked.
    pub(crate) fn failed(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        let verdict = Verdict::Failed(reason.into());
        self.add(what, (Measure::Absent, ""), None, verdict);
    }

    /// Figures beside the rows.
    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// As it is printed.
    pub(crate) fn render(&self) -> String {
        let mut rows = plain(["", "value", "target", "verdict"]);
        for row in &self.rows {
            let value = match &row.value {
                Measure::Number(value) => format!("{} {}", number(*value), row.unit),
                Measure::Text(text) => text.clone(),
                Measure::Absent => String::new(),
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
            let mut printed = plain(table.columns.iter().copied());
            for row in &table.rows {
                printed.add_row(row.iter().map(cell));
            }
            text.extend([table.title, "\n", &printed.to_string(), "\n"]);
        }
        text
    }
}

fn plain<'a>(header: impl IntoIterator<Item = &'a str>) -> Printed {
    let mut table = Printed::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    table
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(value) => value.as_f64().map(number).unwrap_or_default(),
        other => other.to_string(),
    }
}

/// Four digits that count, and no more than three after the point.
fn number(value: f64) -> String {
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
    /// Writes it as JSON.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(self).context("write the report")?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    /// How many rows came out so: met, missed or failed, unavailable.
    pub(crate) fn tally(&self) -> [usize; 3] {
        let rows = || self.sections.iter().flat_map(|section| &section.rows);
        let count =
            |wanted: fn(&Verdict) -> bool| rows().filter(|row| wanted(&row.verdict)).count();
        [
            count(|verdict| *verdict == Verdict::Met),
            count(|verdict| matches!(verdict, Verdict::Missed | Verdict::Failed(_))),
            count(|verdict| matches!(verdict, Verdict::Unavailable(_))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_at_its_very_limit_and_missed_beyond() {
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
    fn what_is_missed_or_has_failed_counts_against_a_run_and_what_is_unavailable_does_not() {
        let mut section = Section::new("p");
        section.holds("a", "answers", true, "yes");
        section.holds("b", "answers", false, "no");
        section.failed("c", "broke");
        section.unavailable("d", "no MPS here");
        section.fact("e", "a fact");
        let report = Report {
            version: "1",
            device: "cpu".to_owned(),
            quick: true,
            sections: vec![section],
        };
        assert_eq!(report.tally(), [1, 2, 1]);
    }

    #[test]
    fn a_row_says_in_json_what_it_says_in_print() {
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
    fn numbers_have_the_digits_that_count() {
        for (value, text) in [
            (0.0, "0"),
            (128.0, "128"),
            (0.971_23, "0.971"),
            (12.345_6, "12.35"),
            (1234.5, "1234"),
            (0.000_012_3, "1.23e-5"),
            (2.5e10, "2.50e10"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}

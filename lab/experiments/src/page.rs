//! Pages of results in Markdown, with their figures and tables in separate files.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Context as _;
use packhorse_cluster::Discipline;
use packhorse_figures::Figure;

use crate::{
    setting::Calibration,
    sweep::{DISCIPLINES, Sweep},
};

/// The heading of the section with planning times, which differ between runs.
pub(crate) const PLANNING_TIMES: &str = "Planning times";

/// A statement of the thesis, or a target, with the result here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    /// The statement in our words, with the thesis' numbers.
    thesis: String,
    /// The result here.
    here: String,
    /// True if the result agrees with the statement.
    agrees: bool,
}

impl Claim {
    pub(crate) fn new(thesis: impl Into<String>, here: impl Into<String>, agrees: bool) -> Self {
        Self {
            thesis: thesis.into(),
            here: here.into(),
            agrees,
        }
    }

    /// Creates a claim about a number of the thesis, with its tolerance in percent of the number.
    pub(crate) fn number(what: &str, thesis: f64, here: f64, tolerance_pct: f64) -> Self {
        let error = 100.0 * (here - thesis) / thesis;
        Self::new(
            format!("{what}: {thesis:.2}"),
            format!("{here:.2} ({error:+.1} %; within {tolerance_pct} % counts as agreement)"),
            error.abs() <= tolerance_pct,
        )
    }
}

/// A page of results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    /// The file name without the extension. The names of the page's figures begin with it.
    name: String,
    /// The Markdown text.
    text: String,
    /// The names and contents of the page's figures and tables.
    files: Vec<(String, String)>,
}

impl Page {
    pub(crate) fn new(name: &str, title: &str) -> Self {
        Self {
            name: name.to_owned(),
            text: format!("# {title}\n"),
            files: Vec::new(),
        }
    }

    pub(crate) fn heading(&mut self, heading: &str) {
        write!(self.text, "\n## {heading}\n").expect("writing to a string cannot fail");
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        write!(self.text, "\n{text}\n").expect("writing to a string cannot fail");
    }

    /// Adds a table in Markdown.
    pub(crate) fn table(&mut self, table: &str) {
        self.paragraph(table.trim_end());
    }

    pub(crate) fn figure(&mut self, name: &str, figure: &Figure) {
        let file = format!("{}-{name}.svg", self.name);
        self.paragraph(&format!("![{}]({file})", figure.title));
        self.files.push((file, figure.to_svg()));
    }

    /// Adds a file beside the page, and a sentence that names it.
    pub(crate) fn csv(&mut self, content: String) {
        let file = format!("{}.csv", self.name);
        self.paragraph(&format!("All numbers are in [{file}]({file})."));
        self.files.push((file, content));
    }

    /// Adds a table of statements of the thesis, with the results and their agreement.
    pub(crate) fn claims(&mut self, claims: &[Claim]) {
        self.claim_table(["the thesis", "here", "agrees"], claims);
    }

    /// Adds a table of targets, with the results.
    pub(crate) fn targets(&mut self, targets: &[Claim]) {
        self.claim_table(["target", "here", "met"], targets);
    }

    fn claim_table(&mut self, header: [&str; 3], claims: &[Claim]) {
        let mut table = format!("| {} |\n|---|---|---|\n", header.join(" | "));
        for Claim {
            thesis,
            here,
            agrees,
        } in claims
        {
            let agrees = if *agrees { "yes" } else { "**no**" };
            writeln!(table, "| {thesis} | {here} | {agrees} |")
                .expect("writing to a string cannot fail");
        }
        self.table(&table);
    }

    /// Adds the goodput of a sweep as figures, tables and CSV.
    pub(crate) fn goodput(&mut self, title: &str, sweep: &Sweep) {
        self.heading("Goodput");
        for discipline in DISCIPLINES {
            self.figure(
                &discipline.to_string(),
                &sweep.goodput_figure(title, discipline),
            );
        }
        for &calibration in &sweep.calibrations {
            for discipline in DISCIPLINES {
                self.share_tables(sweep, calibration, discipline);
            }
        }
        let file = format!("{}.csv", self.name);
        self.paragraph(&format!(
            "All numbers, including those of each model, are in [{file}]({file})."
        ));
        self.files.push((file, sweep.csv()));
    }

    /// Adds the shares of requests in time, one table per part.
    pub(crate) fn share_tables(
        &mut self,
        sweep: &Sweep,
        calibration: Calibration,
        discipline: Discipline,
    ) {
        let seeds = sweep.describe_seeds();
        self.paragraph(&format!(
            "Percent of the offered requests answered within the SLO, {calibration}, dispatched by `{discipline}` ({seeds}):"
        ));
        for table in sweep.share_tables(calibration, discipline) {
            self.table(&table);
        }
    }

    /// Adds the planning times, and the planners that were not run.
    pub(crate) fn planning_times(&mut self, sweep: &Sweep) {
        self.heading(PLANNING_TIMES);
        self.paragraph("Wall times of one run on a machine that also did other work. These are the only numbers here that differ between runs.");
        self.table(&sweep.solve_time_table());
        for (planner, reason) in &sweep.not_run {
            self.paragraph(&format!("`{planner}` was not run: {reason}."));
        }
    }

    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let page = (format!("{}.md", self.name), self.text.clone());
        for (name, content) in self.files.iter().chain([&page]) {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }
}

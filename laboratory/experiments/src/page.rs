//! A page of results: Markdown, with figures and tables in files of their own beside it.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Context as _;
use packhorse_cluster::Discipline;
use packhorse_figures::Figure;

use crate::{
    setting::World,
    sweep::{DISCIPLINES, Sweep},
};

/// What the thesis says or what we want, and what came out here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    /// In our words, with the thesis' numbers.
    thesis: String,
    here: String,
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

    /// A printed number, and how far off it may be, in percent of it.
    pub(crate) fn number(what: &str, thesis: f64, here: f64, tolerance_pct: f64) -> Self {
        let off = 100.0 * (here - thesis) / thesis;
        Self::new(
            format!("{what}: {thesis:.2}"),
            format!("{here:.2} ({off:+.1} %; within {tolerance_pct} % counts as agreement)"),
            off.abs() <= tolerance_pct,
        )
    }
}

/// A page that is being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    /// Its file's name without the extension; its figures' names begin with it.
    name: String,
    text: String,
    /// Names and contents of what lies beside it.
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
        write!(self.text, "\n## {heading}\n").expect("a string takes everything");
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        write!(self.text, "\n{text}\n").expect("a string takes everything");
    }

    /// A table in Markdown.
    pub(crate) fn table(&mut self, table: &str) {
        self.paragraph(table.trim_end());
    }

    pub(crate) fn figure(&mut self, name: &str, figure: &Figure) {
        let file = format!("{}-{name}.svg", self.name);
        self.paragraph(&format!("![{}]({file})", figure.title));
        self.files.push((file, figure.to_svg()));
    }

    pub(crate) fn claims(&mut self, claims: &[Claim]) {
        self.verdicts(["the thesis", "here", "agrees"], claims);
    }

    /// What should come out, what does, and whether that is enough.
    pub(crate) fn targets(&mut self, targets: &[Claim]) {
        self.verdicts(["target", "here", "met"], targets);
    }

    fn verdicts(&mut self, header: [&str; 3], claims: &[Claim]) {
        let mut table = format!("| {} |\n|---|---|---|\n", header.join(" | "));
        for Claim {
            thesis,
            here,
            agrees,
        } in claims
        {
            let agrees = if *agrees { "yes" } else { "**no**" };
            writeln!(table, "| {thesis} | {here} | {agrees} |").expect("a string takes everything");
        }
        self.table(&table);
    }

    /// Goodput as figure, tables and CSV, as every sweep has it.
    pub(crate) fn goodput(&mut self, title: &str, sweep: &Sweep) {
        self.heading("Goodput");
        for discipline in DISCIPLINES {
            self.figure(
                &discipline.to_string(),
                &sweep.goodput_figure(title, discipline),
            );
        }
        for &world in &sweep.worlds {
            for discipline in DISCIPLINES {
                self.shares(sweep, world, discipline);
            }
        }
        let file = format!("{}.csv", self.name);
        self.paragraph(&format!(
            "All numbers, of each model too: [{file}]({file})."
        ));
        self.files.push((file, sweep.csv()));
    }

    /// What share of the requests was in time, a table per part.
    pub(crate) fn shares(&mut self, sweep: &Sweep, world: World, discipline: Discipline) {
        let seeds = sweep.seeds();
        self.paragraph(&format!(
            "Percent of the offered requests answered within the SLO, {world}, dispatched by `{discipline}` ({seeds}):"
        ));
        for table in sweep.tables(world, discipline) {
            self.table(&table);
        }
    }

    /// How long planning took, and who did not plan.
    pub(crate) fn planners(&mut self, sweep: &Sweep) {
        self.heading("How long planning took");
        self.paragraph("Wall time of one run on a machine that did other work beside; the only numbers here that are not the same every time.");
        self.table(&sweep.solve_times());
        for (planner, why) in &sweep.not_run {
            self.paragraph(&format!("`{planner}` was not run: {why}."));
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

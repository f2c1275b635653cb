//! The interface of experiments.

use crate::{page::Page, runner::Runner, sweep::Sweep};

/// An experiment: a figure of the thesis or a question beyond it.
pub(crate) trait Experiment: Sync {
    /// Returns the figure's number or a word, with which the experiment's files begin.
    fn name(&self) -> &'static str;

    /// Returns the title of the page.
    fn title(&self) -> &'static str;

    /// Runs the experiment. Returns its page, and the sweep for the overview if there is one.
    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)>;
}

/// Returns an experiment's page with its title and its first paragraph.
pub(crate) fn new_page(experiment: &dyn Experiment) -> Page {
    let mut page = Page::new(experiment.name(), experiment.title());
    page.paragraph(&format!(
        "Written by `cargo xtask experiments --only {}`; the [overview](README.md) explains the worlds and the dispatchers.",
        experiment.name()
    ));
    page
}

/// Formats requests per second, for texts.
pub(crate) fn format_rates(values: &[f64]) -> String {
    let texts: Vec<String> = values.iter().map(|value| format!("{value:.0}")).collect();
    texts.join(" → ")
}

/// Formats shares as percentages, for texts.
pub(crate) fn format_shares(shares: &[f64]) -> String {
    let texts: Vec<String> = shares
        .iter()
        .map(|share| format!("{:.0} %", 100.0 * share))
        .collect();
    texts.join(" → ")
}

//! The experiments, a file each, and the table of them.

mod ablation;
mod loads;
mod mixed;
mod plain;
mod vision;

use crate::{lab::Lab, page::Page, sweep::Sweep};

/// The policies that the thesis compares, as far as their data exist.
pub(crate) const THESIS_POLICIES: [&str; 4] = ["usher", "wao-usher", "ao-milp", "wsm-milp"];

/// A figure of the thesis, again, or a question that goes beyond it.
pub(crate) trait Experiment: Sync {
    /// The figure's number, or a word: its files begin with it.
    fn name(&self) -> &'static str;

    /// What it is about.
    fn title(&self) -> &'static str;

    /// Runs it; gives the page, and what is summed up in the overview, if anything.
    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)>;
}

/// All of them, in the thesis' order. An experiment that is added here is run, written and summed up like the others.
pub(crate) const EXPERIMENTS: &[&dyn Experiment] = &[
    &vision::Vision,
    &mixed::Mixed,
    &loads::Loads,
    &plain::WITHOUT_SHARES,
    &plain::VISION_AT_1000,
    &plain::MIXED_LOADS,
    &ablation::Ablation,
    &plain::HIDDEN_INTERFERENCE,
    &plain::BURSTS,
];

/// A page's title, as all experiments have it.
fn page(experiment: &dyn Experiment) -> Page {
    let mut page = Page::new(experiment.name(), experiment.title());
    page.paragraph(&format!(
        "Made by `cargo xtask experiments --only {}`; what the worlds and dispatchers are stands in the [overview](README.md).",
        experiment.name()
    ));
    page
}

/// Requests per second, for texts.
fn rps(values: &[f64]) -> String {
    let texts: Vec<String> = values.iter().map(|value| format!("{value:.0}")).collect();
    texts.join(" → ")
}

/// Percentages, for texts.
fn percent(shares: &[f64]) -> String {
    let texts: Vec<String> = shares
        .iter()
        .map(|share| format!("{:.0} %", 100.0 * share))
        .collect();
    texts.join(" → ")
}

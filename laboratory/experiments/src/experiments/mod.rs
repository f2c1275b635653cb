//! The experiments, a file each, and the table of them.

mod ablation;
mod bursts;
mod estimate;
mod hidden;
mod loads;
mod long_search;
mod max_min;
mod mixed;
mod plain;
mod reach;
mod router;
mod vision;

use packhorse_cluster::Discipline;

use crate::{
    lab::{Lab, Planner},
    page::Page,
    setting::{Setting, World},
    sweep::Sweep,
};

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
    &router::Router,
    &reach::Reach,
    &long_search::LongSearch,
    &hidden::HiddenInterference,
    &bursts::Bursts,
    &max_min::MaxMin,
    &estimate::Estimate,
];

/// The policy that the questions beyond the thesis are about.
const GOODPUT: &str = "goodput";

/// The policies of the thesis, to be tried.
fn of_the_thesis() -> Vec<Planner> {
    THESIS_POLICIES.map(Planner::policy).to_vec()
}

/// The figures whose settings are summed up, with their settings.
fn figures() -> [(&'static str, Vec<Setting>); 3] {
    let gpus = |figure, most| (1..=most).map(|gpus| Setting::gpus(figure, gpus)).collect();
    [
        ("6.1", gpus("6.1", 6)),
        ("6.10", gpus("6.10", 8)),
        ("6.15", loads::settings("6.15")),
    ]
}

/// Three to six GPUs with the models of figure 6.1, in a world of which this is different.
fn vision_settings(part: &str, key: &'static str, value: &toml::Value) -> Vec<Setting> {
    let setting = |gpus| {
        Setting::gpus("6.1", gpus)
            .in_part(part)
            .with(key, value.clone())
    };
    (3..=6).map(setting).collect()
}

/// The best goodput of the thesis' policies in a setting, and whose it is.
fn best_of_the_thesis(
    sweep: &Sweep,
    world: World,
    setting: usize,
    discipline: Discipline,
) -> Option<(&'static str, f64)> {
    THESIS_POLICIES
        .into_iter()
        .filter_map(|name| {
            let trial = sweep.trial_in(world, setting, name, discipline)?;
            Some((name, trial.goodput()))
        })
        .max_by(|a, b| a.1.total_cmp(&b.1))
}

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

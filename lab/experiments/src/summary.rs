//! The overview of all experiments.

use std::fmt::Write as _;

use packhorse_cluster::Discipline;
use packhorse_placement::{DEFAULT_POLICY, POLICIES};

use crate::{
    experiment::Experiment, page::Page, runner::Runner, setting::Calibration, sweep::Sweep,
    thesis::THESIS_POLICIES,
};

/// The shares in time with a prototype that preceded Packhorse, by figure: the best policy of the thesis per setting, with the thesis'
/// router and with a deadline-aware one.
const PROTOTYPE: [(&str, f64, f64); 3] = [
    ("6.1", 0.776, 0.859),
    ("6.10", 0.692, 0.820),
    ("6.15", 0.739, 0.916),
];

/// The overview of all experiments.
#[derive(Default)]
pub(crate) struct Summary {
    /// The rows of the table of experiments.
    experiments: String,
    /// The rows of the table of shares.
    shares: String,
    /// The planners that were not run, with the reasons.
    not_run: Vec<(String, String)>,
}

impl Summary {
    pub(crate) fn add(&mut self, experiment: &dyn Experiment, sweep: Option<&Sweep>) {
        let (name, title) = (experiment.name(), experiment.title());
        writeln!(self.experiments, "| [{name}]({name}.md) | {title} |")
            .expect("writing to a string cannot fail");
        let Some(sweep) = sweep else {
            return;
        };
        for &calibration in &sweep.calibrations {
            let best = |discipline| sweep.best_share(calibration, &THESIS_POLICIES, discipline);
            let ours = sweep.best_share(calibration, &[DEFAULT_POLICY], Discipline::Deadline);
            let all: Vec<&str> = POLICIES.iter().map(|entry| entry.name).collect();
            let any = sweep.best_share(calibration, &all, Discipline::Deadline);
            let shares = [
                best(Discipline::FixedWait),
                best(Discipline::Deadline),
                ours,
                any,
            ];
            let shares =
                shares.map(|share| share.map_or("–".to_owned(), |share| format!("{share:.3}")));
            let prototype = PROTOTYPE
                .iter()
                .find(|row| row.0 == name && calibration == Calibration::Calibrated);
            let prototype = prototype.map_or("–".to_owned(), |(_, fixed, deadline)| {
                format!("{fixed:.3} / {deadline:.3}")
            });
            let shares = shares.join(" | ");
            writeln!(
                self.shares,
                "| {name} | {calibration} | {shares} | {prototype} |"
            )
            .expect("writing to a string cannot fail");
        }
        for entry in &sweep.not_run {
            if !self.not_run.contains(entry) {
                self.not_run.push(entry.clone());
            }
        }
    }

    pub(crate) fn page(&self, runner: &Runner) -> Page {
        let mut page = Page::new("README", "The experiments of the thesis, repeated");
        let (first, last) = (
            runner.seeds.first().copied().unwrap_or_default(),
            runner.seeds.last().copied().unwrap_or_default(),
        );
        page.paragraph(&format!(
            "Chapter 6 and appendix A.2 of M. Elvinger, \"Towards resource and interference-aware scheduling of ML workloads\", master \
             thesis, ETH Zürich, 2024, repeated with the policies and the serving engine of this repository in its simulator. Written by \
             `cargo xtask experiments` with seeds {first} to {last}; the same commit gives the same files, except for planning times. \
             `cargo xtask experiments --check` compares a new run with these files."
        ));
        page.paragraph(
            "Settings are simulated in two worlds. In the *calibrated* world inference takes longer than in the profiles (vision models 1.22 \
            times, language models 1.05 times) and a client has 0.308 ms of its own work per request, so that it reaches 433 of 500 requests/s; \
            both as measured in the thesis. In the *nominal* world the times of the profiles hold and clients have no work of their own. There \
            are two dispatchers: `fixed-wait` is the thesis' router, `deadline` is Packhorse's. An MPS compute share, where a policy sets one, \
            slows a model as the simulator's model of shares predicts. Goodput is the rate of requests answered within their SLO, and shares are \
            relative to the offered requests.",
        );
        page.table(&format!(
            "| experiment | |\n|---|---|\n{}",
            self.experiments
        ));
        page.heading("Sums over all settings of an experiment");
        page.paragraph(&format!(
            "The share of the offered requests answered within the SLO, summed over the settings of each experiment. *Best of the thesis* uses \
            the best of {} in each setting, *best of all* the best of all policies here. The prototype is an independent simulator that was \
            written before this one: best of the thesis with the thesis' router / with a deadline-aware router.",
            THESIS_POLICIES.map(|name| format!("`{name}`")).join(", ")
        ));
        page.table(&format!(
            "| experiment | world | best of the thesis, `fixed-wait` | best of the thesis, `deadline` | `{DEFAULT_POLICY}`, `deadline` | \
             best of all, `deadline` | prototype |\n|---|---|---:|---:|---:|---:|---:|\n{}",
            self.shares
        ));
        page.paragraph("[Interference](interference.md) contains the accuracy of the predicted slowdown of co-located replicas; a test writes it.");
        page.heading("Policies that were not run");
        for (planner, reason) in &self.not_run {
            page.paragraph(&format!("`{planner}`: {reason}."));
        }
        page
    }
}

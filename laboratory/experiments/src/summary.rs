//! The page that says what all experiments came to.

use std::fmt::Write as _;

use packhorse_cluster::Discipline;
use packhorse_placement::{DEFAULT_POLICY, POLICIES};

use crate::{
    experiments::{Experiment, THESIS_POLICIES},
    lab::Lab,
    page::Page,
    setting::World,
    sweep::Sweep,
};

/// What was measured with a prototype before the first line of Packhorse was written: the best thesis policy per setting, with the
/// thesis' router and with a deadline-aware one.
const PROTOTYPE: [(&str, f64, f64); 3] = [
    ("6.1", 0.776, 0.859),
    ("6.10", 0.692, 0.820),
    ("6.15", 0.739, 0.916),
];

#[derive(Default)]
pub(crate) struct Summary {
    experiments: String,
    shares: String,
    not_run: Vec<(String, String)>,
}

impl Summary {
    pub(crate) fn add(&mut self, experiment: &dyn Experiment, sweep: Option<&Sweep>) {
        let (name, title) = (experiment.name(), experiment.title());
        writeln!(self.experiments, "| [{name}]({name}.md) | {title} |")
            .expect("a string takes everything");
        let Some(sweep) = sweep else {
            return;
        };
        for &world in &sweep.worlds {
            let best = |discipline| sweep.best_share(world, &THESIS_POLICIES, discipline);
            let ours = sweep.best_share(world, &[DEFAULT_POLICY], Discipline::Deadline);
            let all: Vec<&str> = POLICIES.iter().map(|entry| entry.name).collect();
            let any = sweep.best_share(world, &all, Discipline::Deadline);
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
                .find(|row| row.0 == name && world == World::Calibrated);
            let prototype = prototype.map_or("–".to_owned(), |(_, fixed, deadline)| {
                format!("{fixed:.3} / {deadline:.3}")
            });
            let shares = shares.join(" | ");
            writeln!(self.shares, "| {name} | {world} | {shares} | {prototype} |")
                .expect("a string takes everything");
        }
        for entry in &sweep.not_run {
            if !self.not_run.contains(entry) {
                self.not_run.push(entry.clone());
            }
        }
    }

    pub(crate) fn page(&self, lab: &Lab) -> Page {
        let mut page = Page::new("README", "The experiments of the thesis, again");
        let (first, last) = (
            lab.seeds.first().copied().unwrap_or_default(),
            lab.seeds.last().copied().unwrap_or_default(),
        );
        page.paragraph(&format!(
            "Chapter 6 and appendix A.2 of M. Elvinger, \"Towards resource and interference-aware scheduling of ML workloads\", master \
             thesis, ETH Zürich, 2024, with the policies and the serving engine of this repository in its simulator. Made by \
             `cargo xtask experiments`, seeds {first} to {last}; the same commit gives the same files, but for the times that planning took."
        ));
        page.paragraph(
            "There are two worlds. In the *calibrated* one inference takes longer than the profiles say (vision models 1.22 times, language \
             models 1.05 times) and a client has 0.308 ms of work of its own per request, so that it reaches 433 of 500 requests/s: both as \
             the thesis measured. In the *nominal* one the profiles are right and clients cost nothing. There are two dispatchers: \
             `fixed-wait` is the thesis' router, `deadline` is ours. A model's share of MPS, where a policy sets one, slows it by the simulator's law. \
             Goodput is requests/s that were answered within their SLO, and shares are of the requests offered.",
        );
        page.table(&format!(
            "| experiment | |\n|---|---|\n{}",
            self.experiments
        ));
        page.heading("What all settings of an experiment come to");
        page.paragraph(&format!(
            "Share of the offered requests answered within the SLO, summed over the settings of each experiment. *Best of the thesis* takes in each setting the best \
             of {}; *best of all* takes the best of every policy here. The prototype is an independent simulator, written before this one: \
             best of the thesis with the thesis' router / with a deadline-aware one.",
            THESIS_POLICIES.map(|name| format!("`{name}`")).join(", ")
        ));
        page.table(&format!(
            "| experiment | world | best of the thesis, `fixed-wait` | best of the thesis, `deadline` | `{DEFAULT_POLICY}`, `deadline` | \
             best of all, `deadline` | prototype |\n|---|---|---:|---:|---:|---:|---:|\n{}",
            self.shares
        ));
        page.paragraph("[Interference](interference.md) has the accuracy of what is predicted of co-located replicas; it is made by a test.");
        page.heading("What was not run");
        for (planner, why) in &self.not_run {
            page.paragraph(&format!("`{planner}`: {why}."));
        }
        page
    }
}

//! The effect of each part of the dispatcher `deadline`.

use std::fmt::Write as _;

use packhorse_cluster::Discipline;
use packhorse_simulator::DispatchOptions;

use crate::{
    experiment::{Experiment, new_page},
    page::Page,
    planner::Planner,
    runner::Runner,
    setting::Calibration,
    sweep::Sweep,
    thesis::{THESIS_POLICIES, figures},
};

pub(crate) struct Ablation;

/// Returns the dispatcher `deadline` with changed options.
fn deadline(change: impl Fn(&mut DispatchOptions)) -> DispatchOptions {
    let mut dispatch = DispatchOptions::from(Discipline::Deadline);
    change(&mut dispatch);
    dispatch
}

/// Returns the dispatchers with their names in the table.
fn variants() -> [(&'static str, DispatchOptions); 6] {
    [
        ("`fixed-wait`", Discipline::FixedWait.into()),
        ("`deadline`", Discipline::Deadline.into()),
        (
            "`deadline` without dropping",
            deadline(|dispatch| dispatch.deadline.drop = false),
        ),
        (
            "`deadline` without look-ahead",
            deadline(|dispatch| dispatch.deadline.look_ahead = false),
        ),
        (
            "`deadline` without holding",
            deadline(|dispatch| dispatch.deadline.holding = false),
        ),
        (
            "`deadline` without any of them",
            deadline(|dispatch| {
                dispatch.deadline.drop = false;
                dispatch.deadline.look_ahead = false;
                dispatch.deadline.holding = false;
            }),
        ),
    ]
}

impl Experiment for Ablation {
    fn name(&self) -> &'static str {
        "ablation"
    }

    fn title(&self) -> &'static str {
        "The effect of each part of the dispatcher `deadline`"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let figures = figures();
        let planners = THESIS_POLICIES.map(Planner::from_policy);
        let lists = variants().map(|(_, dispatch)| vec![dispatch]);
        let mut columns: Vec<Vec<Sweep>> = Vec::new();
        for (_, settings) in &figures {
            columns.push(runner.sweeps_in(
                &[Calibration::Calibrated],
                settings,
                &planners,
                &lists,
            )?);
        }
        let mut page = new_page(self);
        page.paragraph(&format!(
            "The share of the offered requests answered within the SLO, summed over the settings of each figure, calibrated; in each setting the best of {}.",
            THESIS_POLICIES.map(|name| format!("`{name}`")).join(", ")
        ));
        let names = figures.each_ref().map(|figure| figure.0);
        let mut table = format!("| | {} |\n|---|---:|---:|---:|\n", names.join(" | "));
        for (i, (name, dispatch)) in variants().into_iter().enumerate() {
            let share = |sweeps: &Vec<Sweep>| {
                let best = sweeps[i].best_share(
                    Calibration::Calibrated,
                    &THESIS_POLICIES,
                    dispatch.discipline,
                );
                best.map_or("–".to_owned(), |share| format!("{share:.4}"))
            };
            let shares: Vec<String> = columns.iter().map(share).collect();
            writeln!(table, "| {name} | {} |", shares.join(" | "))
                .expect("writing to a string cannot fail");
        }
        page.table(&table);
        page.paragraph(
            "Dropping: requests that can no longer be in time are refused or dropped. Look-ahead: a request is dropped if its deadline would force \
            small batches on the requests behind it; without dropping there is no look-ahead. Holding: a partial batch waits while its replica is busy.",
        );
        Ok((page, None))
    }
}

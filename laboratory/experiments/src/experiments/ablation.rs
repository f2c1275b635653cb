//! What each part of `deadline` is worth.

use std::fmt::Write as _;

use packhorse_cluster::Discipline;
use packhorse_simulator::Dispatch;

use super::{Experiment, THESIS_POLICIES, figures, page};
use crate::{
    lab::{Lab, Planner},
    page::Page,
    setting::World,
    sweep::Sweep,
};

pub(crate) struct Ablation;

/// A dispatcher that lacks something.
fn deadline(without: impl Fn(&mut Dispatch)) -> Dispatch {
    let mut dispatch = Dispatch::from(Discipline::Deadline);
    without(&mut dispatch);
    dispatch
}

fn variants() -> [(&'static str, Dispatch); 6] {
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
        "What each part of our dispatcher is worth"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let figures = figures();
        let planners = THESIS_POLICIES.map(Planner::policy);
        let lists = variants().map(|(_, dispatch)| vec![dispatch]);
        let mut columns: Vec<Vec<Sweep>> = Vec::new();
        for (_, settings) in &figures {
            columns.push(lab.sweeps_in(&[World::Calibrated], settings, &planners, &lists)?);
        }
        let mut page = page(self);
        page.paragraph(&format!(
            "Share of the offered requests answered within the SLO, summed over the settings of each figure, calibrated; in each setting the best of {}.",
            THESIS_POLICIES.map(|name| format!("`{name}`")).join(", ")
        ));
        let names = figures.each_ref().map(|figure| figure.0);
        let mut table = format!("| | {} |\n|---|---:|---:|---:|\n", names.join(" | "));
        for (i, (name, dispatch)) in variants().into_iter().enumerate() {
            let share = |sweeps: &Vec<Sweep>| {
                let best =
                    sweeps[i].best_share(World::Calibrated, &THESIS_POLICIES, dispatch.discipline);
                best.map_or("–".to_owned(), |share| format!("{share:.4}"))
            };
            let shares: Vec<String> = columns.iter().map(share).collect();
            writeln!(table, "| {name} | {} |", shares.join(" | "))
                .expect("a string takes everything");
        }
        page.table(&table);
        page.paragraph(
            "Dropping: requests that cannot be in time any more are refused or dropped. Look-ahead: a request is dropped whose deadline keeps \
             batches small for those behind it; without dropping nobody looks ahead. Holding: a partial batch waits while its replica is busy.",
        );
        Ok((page, None))
    }
}

//! Plans that were improved with a simulator in the loop, as AlpaServe plans.

use std::fmt::Write as _;

use packhorse_cluster::Discipline;

use crate::{
    experiment::{Experiment, new_page},
    intervals::Interval,
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::Calibration,
    sweep::Sweep,
    thesis::{GOODPUT, gpu_settings},
};

pub(crate) struct Polish;

/// The number of changes of a plan that are simulated in each round.
const CHANGES: usize = 60;
/// The loss in points that counts as none: the difference of two means over seeds.
const ALLOWED_LOSS: f64 = 0.1;
/// The share of the requests from which on nothing is left to gain.
const COMPLETE: f64 = 0.9995;
/// The wanted mean gain in points.
const WANTED_GAIN: f64 = 0.2;

impl Experiment for Polish {
    fn name(&self) -> &'static str {
        "polish"
    }

    fn title(&self) -> &'static str {
        "Plans polished by simulation"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let world = Calibration::Nominal;
        let plain = Planner::from_policy(GOODPUT);
        let planners = [plain.clone(), plain.polished(CHANGES)];
        let [before, after] = planners.clone().map(|planner| planner.label);
        let settings = gpu_settings("6.10", 8);
        let dispatches = vec![Discipline::Deadline.into()];
        let sweeps = runner.sweeps_in(&[world], &settings, &planners, &[dispatches])?;
        let mut table =
            format!("| | `{GOODPUT}` | polished | points gained |\n|---|---:|---:|---:|\n");
        let mut gains = Vec::new();
        let mut gains_of_lossy = Vec::new();
        for (i, setting) in settings.iter().enumerate() {
            let trial = |label: &str| sweeps[0].trial_in(world, i, label, Discipline::Deadline);
            let (Some(before), Some(after)) = (trial(&before), trial(&after)) else {
                continue;
            };
            let gain = Interval::of_differences(&after.shares(), &before.shares()).scaled(100.0);
            gains.push(gain.mean);
            if Interval::new(&before.shares()).mean < COMPLETE {
                gains_of_lossy.push(gain.mean);
            }
            writeln!(
                table,
                "| {} | {} | {} | {gain} |",
                setting.name(),
                Interval::new(&before.shares()).scaled(100.0),
                Interval::new(&after.shares()).scaled(100.0),
            )?;
        }
        let mut page = new_page(self);
        page.paragraph(&format!(
            "AlpaServe plans with a simulator in the loop. Here `packhorse plan --polish {CHANGES}` simulates the {CHANGES} best changes of one replica of a plan of `{GOODPUT}` (by \
             its estimate) with a load of its own, takes the best one if its gain is more than chance, and goes on until none gains. Below are percent of the offered requests answered \
             within the SLO in the settings of figure 6.10 in the {world} world, dispatched by `deadline`, with other seeds than those of the search; ± is the half of a 95 % confidence \
             interval. The gateway does not polish: it would take seconds to minutes.",
        ));
        page.table(&table);
        let mean = |gains: &[f64]| gains.iter().sum::<f64>() / gains.len().max(1) as f64;
        let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
        page.targets(&[
            Claim::new(
                format!("never worse by more than {ALLOWED_LOSS} points"),
                format!("at worst {least:+.2} points"),
                least >= -ALLOWED_LOSS,
            ),
            Claim::new(
                format!("{WANTED_GAIN} points better in the mean of the settings whose plans lose requests"),
                format!("{:+.2} points in {}", mean(&gains_of_lossy), gains_of_lossy.len()),
                mean(&gains_of_lossy) >= WANTED_GAIN,
            ),
            Claim::new(
                format!("{WANTED_GAIN} points better in the mean of all settings"),
                format!("{:+.2} points in {}", mean(&gains), gains.len()),
                mean(&gains) >= WANTED_GAIN,
            ),
        ]);
        Ok((page, None))
    }
}

//! What `max-min` does for the model that is worst off, and what it costs the others.

use std::fmt::Write as _;

use packhorse_cluster::{Discipline, Objective};
use packhorse_figures::{Bar, BarChart, BarGroup, Figure, Panel, Series};

use super::{Experiment, GOODPUT, loads, of_the_thesis, page};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::{Setting, World},
    sweep::{Sweep, Trial},
};

pub(crate) struct MaxMin;

/// What the worst model should get.
const TARGET: f64 = 0.75;

fn worst(trial: &Trial) -> Option<(&str, f64)> {
    let models = trial.plan.models.iter();
    models
        .map(|model| (model.name.as_str(), trial.model_share(&model.name)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

impl Experiment for MaxMin {
    fn name(&self) -> &'static str {
        "max-min"
    }

    fn title(&self) -> &'static str {
        "The model that is worst off"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let fair = Planner::policy(GOODPUT).aiming_at(Objective::MaxMin);
        let label = fair.label.clone();
        let mut planners = of_the_thesis();
        planners.extend([Planner::policy(GOODPUT), fair]);
        let settings: Vec<Setting> = loads::settings("6.15")
            .into_iter()
            .skip(loads::LOADS.len() - 1)
            .step_by(loads::LOADS.len())
            .collect();
        let sweep = lab.sweep_with(&settings, &planners, &[Discipline::Deadline])?;
        let mut page = page(self);
        page.paragraph(
            "Five vision models on four GPUs, 1000 requests/s each: more than fits. `goodput` serves as many requests as it can; with `--objective max-min` it \
             serves the worst model as well as it can first. Dispatched by `deadline`.",
        );
        page.targets(&targets(&sweep, &label));
        for &world in &sweep.worlds {
            page.heading(&format!("The {world} world"));
            page.paragraph(&format!(
                "Percent of its requests within the SLO that the worst model gets, and of all requests ({}).",
                sweep.seeds()
            ));
            page.figure(&world.to_string(), &figure(&sweep, world));
            page.table(&table(&sweep, world));
        }
        page.planners(&sweep);
        Ok((page, None))
    }
}

/// Calibrated, and nominal to compare.
fn targets(sweep: &Sweep, label: &str) -> Vec<Claim> {
    let target = |setting: usize| {
        let of = |world| {
            worst(sweep.trial_in(world, setting, label, Discipline::Deadline)?)
                .map(|(model, share)| (world, model, share))
        };
        let found: Vec<_> = sweep.worlds.iter().filter_map(|&world| of(world)).collect();
        let texts = found
            .iter()
            .map(|(world, model, share)| format!("{world} {:.1} % of `{model}`", 100.0 * share));
        let met = found
            .iter()
            .all(|&(world, _, share)| world == World::Nominal || share >= TARGET);
        Claim::new(
            format!(
                "{}, {}, calibrated: the worst model has ≥ {:.0} %",
                sweep.settings[setting].part,
                sweep.settings[setting].label,
                100.0 * TARGET
            ),
            texts.collect::<Vec<_>>().join(", "),
            met,
        )
    };
    (0..sweep.settings.len()).map(target).collect()
}

/// The worst model beside all requests, a bar for each planner.
fn figure(sweep: &Sweep, world: World) -> Figure {
    let panel = |title: &str, share: &dyn Fn(&Trial) -> Option<f64>| {
        let group = |(setting, of): (usize, &Setting)| {
            let bar = |planner: &String| {
                let trial = sweep.trial_in(world, setting, planner, Discipline::Deadline)?;
                Some(Bar {
                    label: planner.clone(),
                    values: vec![100.0 * share(trial)?],
                })
            };
            BarGroup {
                label: of.part.clone(),
                bars: sweep.run().filter_map(bar).collect(),
            }
        };
        Panel::Bars(BarChart {
            title: title.to_owned(),
            value_axis: "% in time".to_owned(),
            series: Series::from_labels([title]),
            groups: sweep.settings.iter().enumerate().map(group).collect(),
            top: Some(100.0),
        })
    };
    Figure {
        title: format!("Requests in time at 5000 requests/s, {world}"),
        notes: Vec::new(),
        columns: 2,
        panels: vec![
            panel("of the worst model", &|trial| {
                worst(trial).map(|(_, share)| share)
            }),
            panel("of all", &|trial| Some(trial.share())),
        ],
    }
}

fn table(sweep: &Sweep, world: World) -> String {
    let mut text = "|".to_owned();
    for setting in &sweep.settings {
        write!(text, " | {}: worst | all", setting.part).expect("a string takes everything");
    }
    writeln!(
        text,
        " |\n|---|{}",
        "---:|".repeat(2 * sweep.settings.len())
    )
    .expect("a string takes everything");
    for planner in sweep.run() {
        write!(text, "| {planner}").expect("a string takes everything");
        for setting in 0..sweep.settings.len() {
            let trial = sweep.trial_in(world, setting, planner, Discipline::Deadline);
            let shares = trial.and_then(|trial| {
                let (model, share) = worst(trial)?;
                let all = 100.0 * trial.share();
                Some(format!("{:.1} ({model}) | {all:.1}", 100.0 * share))
            });
            write!(text, " | {}", shares.unwrap_or("– | –".to_owned()))
                .expect("a string takes everything");
        }
        text.push_str(" |\n");
    }
    text
}

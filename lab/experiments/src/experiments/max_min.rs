//! The effect of the objective `max-min` on the worst-served model and on all requests.

use std::fmt::Write as _;

use packhorse_cluster::{Discipline, Objective};
use packhorse_figures::{Bar, BarChart, BarGroup, Figure, Panel, Series};

use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting},
    sweep::{Sweep, Trial},
    thesis::{GOODPUT, largest_load_settings, thesis_planners},
};

pub(crate) struct MaxMin;

/// The target of the worst model's share in time.
const TARGET: f64 = 0.75;

/// Returns the worst-served model with its share of requests in time.
fn worst_model(trial: &Trial) -> Option<(&str, f64)> {
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
        "The worst-served model"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let fair = Planner::from_policy(GOODPUT).with_objective(Objective::MaxMin);
        let label = fair.label.clone();
        let mut planners = thesis_planners();
        planners.extend([Planner::from_policy(GOODPUT), fair]);
        let sweep =
            runner.sweep_with(&largest_load_settings(), &planners, &[Discipline::Deadline])?;
        let mut page = new_page(self);
        page.paragraph(
            "Five vision models on four GPUs, 1000 requests/s each, which is more than the GPUs can serve. `goodput` serves as many requests as possible; with \
            `--objective max-min` it first maximises the served share of the worst-served model. Dispatched by `deadline`.",
        );
        page.targets(&targets(&sweep, &label));
        for &calibration in &sweep.calibrations {
            page.heading(&format!("The {calibration} world"));
            page.paragraph(&format!(
                "Percent of the worst-served model's requests, and of all requests, that are answered within the SLO ({}).",
                sweep.describe_seeds()
            ));
            page.figure(&calibration.to_string(), &figure(&sweep, calibration));
            page.table(&table(&sweep, calibration));
        }
        page.planning_times(&sweep);
        Ok((page, None))
    }
}

/// Returns the targets, which hold in the calibrated world; the nominal world is for comparison.
fn targets(sweep: &Sweep, label: &str) -> Vec<Claim> {
    let target = |setting: usize| {
        let worst = |&calibration: &Calibration| {
            let trial = sweep.trial_in(calibration, setting, label, Discipline::Deadline)?;
            let (model, share) = worst_model(trial)?;
            Some((calibration, model, share))
        };
        let results: Vec<_> = sweep.calibrations.iter().filter_map(worst).collect();
        let texts = results.iter().map(|(calibration, model, share)| {
            format!("{calibration} {:.1} % of `{model}`", 100.0 * share)
        });
        let met = results
            .iter()
            .all(|&(calibration, _, share)| calibration == Calibration::Nominal || share >= TARGET);
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

/// Returns a figure of the worst model's share and of the share of all requests, with a bar for each planner.
fn figure(sweep: &Sweep, calibration: Calibration) -> Figure {
    let panel = |title: &str, share: &dyn Fn(&Trial) -> Option<f64>| {
        let group = |(index, setting): (usize, &Setting)| {
            let bar = |planner: &String| {
                let trial = sweep.trial_in(calibration, index, planner, Discipline::Deadline)?;
                Some(Bar {
                    label: planner.clone(),
                    values: vec![100.0 * share(trial)?],
                })
            };
            BarGroup {
                label: setting.part.clone(),
                bars: sweep.run_planners().filter_map(bar).collect(),
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
        title: format!("Requests in time at 5000 requests/s, {calibration}"),
        notes: Vec::new(),
        columns: 2,
        panels: vec![
            panel("of the worst model", &|trial| {
                worst_model(trial).map(|(_, share)| share)
            }),
            panel("of all", &|trial| Some(trial.share())),
        ],
    }
}

fn table(sweep: &Sweep, calibration: Calibration) -> String {
    let mut text = "|".to_owned();
    for setting in &sweep.settings {
        write!(text, " | {}: worst | all", setting.part).expect("writing to a string cannot fail");
    }
    writeln!(
        text,
        " |\n|---|{}",
        "---:|".repeat(2 * sweep.settings.len())
    )
    .expect("writing to a string cannot fail");
    for planner in sweep.run_planners() {
        write!(text, "| {planner}").expect("writing to a string cannot fail");
        for setting in 0..sweep.settings.len() {
            let trial = sweep.trial_in(calibration, setting, planner, Discipline::Deadline);
            let shares = trial.and_then(|trial| {
                let (model, share) = worst_model(trial)?;
                let all = 100.0 * trial.share();
                Some(format!("{:.1} ({model}) | {all:.1}", 100.0 * share))
            });
            write!(text, " | {}", shares.unwrap_or("– | –".to_owned()))
                .expect("writing to a string cannot fail");
        }
        text.push_str(" |\n");
    }
    text
}

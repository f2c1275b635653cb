//! The results of `goodput` in the thesis' settings, compared with their targets.

use packhorse_cluster::Discipline;

use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting},
    sweep::Sweep,
    thesis::{GOODPUT, LOADS, SLOS, gpu_settings, load_settings},
};

pub(crate) struct Reach;

/// A figure of the thesis: its settings, and their targets.
struct Figure {
    name: &'static str,
    settings: Vec<Setting>,
    /// The target share of all its requests in time: calibrated, nominal.
    target: [f64; 2],
    /// The upper bound of the share, calibrated: full batches and no waiting, computed by a prototype.
    fluid_bound: f64,
}

/// The target of one or several settings of a figure.
struct Target {
    description: String,
    /// The indices of the settings, of which the worst counts.
    settings: Vec<usize>,
    /// The share of the requests in time: calibrated, nominal; `None` for no target.
    share: [Option<f64>; 2],
}

fn figures_with_targets() -> [Figure; 3] {
    [
        Figure {
            name: "6.1",
            settings: gpu_settings("6.1", 6),
            target: [0.908, 0.915],
            fluid_bound: 0.935,
        },
        Figure {
            name: "6.10",
            settings: gpu_settings("6.10", 8),
            target: [0.858, 0.860],
            fluid_bound: 0.874,
        },
        Figure {
            name: "6.15",
            settings: load_settings("6.15"),
            target: [0.967, 0.943],
            fluid_bound: 0.995,
        },
    ]
}

/// Returns the targets of single settings of a figure.
fn targets(figure: &str) -> Vec<Target> {
    let gpus = |models: &str, gpus: usize, share: f64| Target {
        description: format!("{models} on {gpus} GPUs"),
        settings: vec![gpus - 1],
        share: [Some(share), None],
    };
    match figure {
        "6.1" => {
            let models = "vision models, 500 requests/s each, SLO 200 ms";
            vec![gpus(models, 3, 0.99), gpus(models, 2, 0.85)]
        }
        "6.10" => {
            let models = "vision and language models, 300 requests/s each, SLO 300 ms";
            vec![gpus(models, 6, 0.99), gpus(models, 5, 0.95)]
        }
        _ => SLOS
            .into_iter()
            .enumerate()
            .flat_map(|(i, slo)| {
                let first = i * LOADS.len();
                let load = |load: &str, settings, share, nominal| Target {
                    description: format!(
                        "vision models on four GPUs, SLO {slo} ms, {load} requests/s"
                    ),
                    settings,
                    share: [Some(share), nominal],
                };
                [
                    load("1000 to 3000", (first..first + 3).collect(), 0.99, None),
                    load("4000", vec![first + 3], 0.95, None),
                    load("5000", vec![first + 4], 0.92, Some(0.90)),
                ]
            })
            .collect(),
    }
}

impl Experiment for Reach {
    fn name(&self) -> &'static str {
        "reach"
    }

    fn title(&self) -> &'static str {
        "The results of `goodput` and its targets"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let mut page = new_page(self);
        page.paragraph(
            "The targets of `goodput` in the settings of figures 6.1, 6.10 and 6.15, dispatched by `deadline`, and its results, in percent of the offered requests. If \
            there is no target for the nominal world, its result is for comparison only.",
        );
        let (mut single, mut sums) = (Vec::new(), Vec::new());
        for figure in figures_with_targets() {
            let sweep = runner.sweep_with(
                &figure.settings,
                &[Planner::from_policy(GOODPUT)],
                &[Discipline::Deadline],
            )?;
            let claims = targets(figure.name).into_iter();
            single.extend(claims.map(|target| setting_claim(&sweep, &target)));
            sums.push(figure_claim(&sweep, &figure));
        }
        page.heading("Single settings");
        page.targets(&single);
        page.heading("All settings of a figure");
        page.paragraph(
            "The fluid bound, for the calibrated world, assumes that every replica has full batches and no request waits; no plan can reach it.",
        );
        page.targets(&sums);
        page.paragraph(
            "For missed targets, [a long search](long-search.md) shows the possible gain.",
        );
        Ok((page, None))
    }
}

/// Returns a claim that compares target shares with the results of each calibration.
fn claim(
    description: &str,
    target: [Option<f64>; 2],
    results: &[(Calibration, f64)],
    note: &str,
) -> Claim {
    let target = |calibration| target[usize::from(calibration == Calibration::Nominal)];
    let text = |calibration| {
        Some(format!(
            "{calibration} ≥ {:.1} %",
            100.0 * target(calibration)?
        ))
    };
    let targets: Vec<String> = Calibration::ALL.into_iter().filter_map(text).collect();
    let here: Vec<String> = results
        .iter()
        .map(|(calibration, share)| format!("{calibration} {:.2} %", 100.0 * share))
        .collect();
    let met = results
        .iter()
        .all(|&(calibration, share)| target(calibration).is_none_or(|target| share >= target));
    Claim::new(
        format!("{description}: {}", targets.join(", ")),
        format!("{}{note}", here.join(", ")),
        met,
    )
}

fn setting_claim(sweep: &Sweep, target: &Target) -> Claim {
    let worst = |&calibration: &Calibration| {
        let shares = target.settings.iter().filter_map(|&setting| {
            let trial = sweep.trial_in(calibration, setting, GOODPUT, Discipline::Deadline)?;
            Some(trial.share())
        });
        (calibration, shares.fold(1.0, f64::min))
    };
    let results: Vec<(Calibration, f64)> = sweep.calibrations.iter().map(worst).collect();
    claim(&target.description, target.share, &results, "")
}

fn figure_claim(sweep: &Sweep, figure: &Figure) -> Claim {
    let share = |&calibration: &Calibration| {
        Some((
            calibration,
            sweep.best_share(calibration, &[GOODPUT], Discipline::Deadline)?,
        ))
    };
    let results: Vec<(Calibration, f64)> = sweep.calibrations.iter().filter_map(share).collect();
    claim(
        &format!("figure {}", figure.name),
        figure.target.map(Some),
        &results,
        &format!("; fluid bound {:.1} %", 100.0 * figure.fluid_bound),
    )
}

//! How far `goodput` reaches on the thesis' own settings, beside what it should reach.

use packhorse_cluster::Discipline;

use super::{Experiment, GOODPUT, loads, page};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::{Setting, World},
    sweep::Sweep,
};

pub(crate) struct Reach;

/// A figure of the thesis: its settings, and what they should come to.
struct Figure {
    name: &'static str,
    settings: Vec<Setting>,
    /// The share of all its requests in time: calibrated, nominal.
    target: [f64; 2],
    /// No plan can have more, calibrated: what full batches carry if nobody ever waits, from a prototype.
    fluid_bound: f64,
}

/// A number of devices and loads that should be served.
struct Target {
    what: String,
    /// Places in its figure's settings: the worst of them counts.
    settings: Vec<usize>,
    /// Calibrated, and, where one was set, nominal.
    share: [Option<f64>; 2],
}

fn figures() -> [Figure; 3] {
    let gpus = |figure, most| {
        (1..=most)
            .map(|gpus| Setting::gpus(figure, gpus))
            .collect::<Vec<_>>()
    };
    [
        Figure {
            name: "6.1",
            settings: gpus("6.1", 6),
            target: [0.908, 0.915],
            fluid_bound: 0.935,
        },
        Figure {
            name: "6.10",
            settings: gpus("6.10", 8),
            target: [0.858, 0.860],
            fluid_bound: 0.874,
        },
        Figure {
            name: "6.15",
            settings: loads::settings("6.15"),
            target: [0.967, 0.943],
            fluid_bound: 0.995,
        },
    ]
}

/// The targets of single settings of a figure.
fn targets(figure: &str) -> Vec<Target> {
    let gpus = |models: &str, gpus: usize, share: f64| Target {
        what: format!("{models} on {gpus} GPUs"),
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
        _ => loads::SLOS
            .into_iter()
            .enumerate()
            .flat_map(|(i, slo)| {
                let at = i * loads::LOADS.len();
                let load = |what: &str, settings, share, nominal| Target {
                    what: format!("vision models on four GPUs, SLO {slo} ms, {what} requests/s"),
                    settings,
                    share: [Some(share), nominal],
                };
                [
                    load("1000 to 3000", (at..at + 3).collect(), 0.99, None),
                    load("4000", vec![at + 3], 0.95, None),
                    load("5000", vec![at + 4], 0.92, Some(0.90)),
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
        "How far `goodput` reaches"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let mut page = page(self);
        page.paragraph(
            "What `goodput` should reach on the settings of figures 6.1, 6.10 and 6.15, dispatched by `deadline`, and what it does, in percent of the offered \
             requests. Where nothing was asked of the nominal world, its number stands there to compare, and does not count.",
        );
        let (mut single, mut sums) = (Vec::new(), Vec::new());
        for figure in figures() {
            let sweep = lab.sweep_with(
                &figure.settings,
                &[Planner::policy(GOODPUT)],
                &[Discipline::Deadline],
            )?;
            let claims = targets(figure.name).into_iter();
            single.extend(claims.map(|target| setting(&sweep, &target)));
            sums.push(sum(&sweep, &figure));
        }
        page.heading("Single settings");
        page.targets(&single);
        page.heading("All settings of a figure");
        page.paragraph(
            "The fluid bound, of the calibrated world, lets every replica have full batches without anybody waiting; no plan can reach it.",
        );
        page.targets(&sums);
        page.paragraph(
            "Where a target is missed, [a long search](long-search.md) shows what more there is.",
        );
        Ok((page, None))
    }
}

/// What was asked of the worlds that were tried, and what came out.
fn verdict(what: &str, share: [Option<f64>; 2], found: &[(World, f64)], more: &str) -> Claim {
    let asked = |world: World| share[usize::from(world == World::Nominal)];
    let wanted: Vec<String> = World::ALL
        .into_iter()
        .filter_map(|world| Some(format!("{world} ≥ {:.1} %", 100.0 * asked(world)?)))
        .collect();
    let here: Vec<String> = found
        .iter()
        .map(|(world, share)| format!("{world} {:.2} %", 100.0 * share))
        .collect();
    let met = found
        .iter()
        .all(|&(world, found)| asked(world).is_none_or(|share| found >= share));
    Claim::new(
        format!("{what}: {}", wanted.join(", ")),
        format!("{}{more}", here.join(", ")),
        met,
    )
}

fn setting(sweep: &Sweep, target: &Target) -> Claim {
    let worst = |&world: &World| {
        let shares = target.settings.iter().filter_map(|&setting| {
            let trial = sweep.trial_in(world, setting, GOODPUT, Discipline::Deadline)?;
            Some(trial.share())
        });
        (world, shares.fold(1.0, f64::min))
    };
    let found: Vec<(World, f64)> = sweep.worlds.iter().map(worst).collect();
    verdict(&target.what, target.share, &found, "")
}

fn sum(sweep: &Sweep, figure: &Figure) -> Claim {
    let share = |&world: &World| {
        Some((
            world,
            sweep.best_share(world, &[GOODPUT], Discipline::Deadline)?,
        ))
    };
    let found: Vec<(World, f64)> = sweep.worlds.iter().filter_map(share).collect();
    verdict(
        &format!("figure {}", figure.name),
        figure.target.map(Some),
        &found,
        &format!("; fluid bound {:.1} %", 100.0 * figure.fluid_bound),
    )
}

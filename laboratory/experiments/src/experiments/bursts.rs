//! Arrivals that come in bursts: gaps of a distribution, and a recorded load.

use packhorse_cluster::Discipline;

use super::{Experiment, GOODPUT, best_of_the_thesis, of_the_thesis, page, vision_settings};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::{Setting, World},
    sweep::Sweep,
};

pub(crate) struct Bursts;

const VARIATIONS: [f64; 2] = [2.0, 4.0];
/// The recorded load has counts of four minutes.
const RECORDED_S: f64 = 239.0;
/// By how much chance may let one of two equally good plans look worse.
const CHANCE: f64 = 0.001;

fn distributed() -> Vec<Setting> {
    let bursts = |cv: f64| {
        let arrivals = toml::Table::from_iter([("gamma_cv".to_owned(), cv.into())]);
        vision_settings(&format!("CV {cv}"), "arrivals", &arrivals.into())
    };
    VARIATIONS.into_iter().flat_map(bursts).collect()
}

fn recorded() -> Vec<Setting> {
    let counts = "../azure/functions2019-vision.csv";
    let arrivals = toml::Table::from_iter([("counts".to_owned(), counts.into())]);
    vision_settings("Azure 2019", "arrivals", &arrivals.into())
        .into_iter()
        .map(|setting| setting.with("window_s", RECORDED_S))
        .collect()
}

impl Experiment for Bursts {
    fn name(&self) -> &'static str {
        "bursts"
    }

    fn title(&self) -> &'static str {
        "Arrivals in bursts"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = lab.sweep(&distributed(), &Planner::all())?;
        let mut planners = of_the_thesis();
        planners.push(Planner::policy(GOODPUT));
        let azure = lab.sweep_with(&recorded(), &planners, &[Discipline::Deadline])?;
        let mut page = page(self);
        page.paragraph(
            "The settings of figure 6.1 with gamma distributed gaps between requests; Poisson arrivals have a coefficient of variation (CV) of 1. And with the \
             load of the first four minutes of a day of Azure Functions 2019, striped over the models and scaled to 500 requests/s of each \
             ([source](../../scenarios/azure/README.md)): Poisson within a minute, with a step between minutes.",
        );
        page.heading("Beside the best of the thesis");
        page.paragraph(&format!(
            "In each setting, dispatched by `deadline`; equal is within {} %.",
            100.0 * CHANCE
        ));
        let mut claims = Vec::new();
        for &world in &sweep.worlds {
            claims.extend(beside_the_thesis(&sweep, world));
            claims.extend(beside_the_thesis(&azure, world));
        }
        page.targets(&claims);
        page.heading("A recorded load");
        for &world in &azure.worlds {
            page.shares(&azure, world, Discipline::Deadline);
        }
        page.goodput(self.title(), &sweep);
        page.planners(&sweep);
        Ok((page, Some(sweep)))
    }
}

/// A row per setting.
fn beside_the_thesis(sweep: &Sweep, world: World) -> Vec<Claim> {
    let claim = |(i, setting): (usize, &Setting)| {
        let goodput = sweep
            .trial_in(world, i, GOODPUT, Discipline::Deadline)?
            .goodput();
        let (policy, best) = best_of_the_thesis(sweep, world, i, Discipline::Deadline)?;
        Some(Claim::new(
            format!(
                "{world}, {}: not below the best of the thesis",
                setting.name()
            ),
            format!("{goodput:.0} requests/s within the SLO, {policy} {best:.0}"),
            goodput >= best * (1.0 - CHANCE),
        ))
    };
    sweep
        .settings
        .iter()
        .enumerate()
        .filter_map(claim)
        .collect()
}

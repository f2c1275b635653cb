//! Bursty arrivals, with gaps from a distribution and with a recorded load.

use packhorse_cluster::Discipline;

use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting},
    sweep::Sweep,
    thesis::{GOODPUT, best_of_the_thesis, thesis_planners, vision_settings},
};

pub(crate) struct Bursts;

/// The coefficients of variation of the gaps between arrivals.
const VARIATIONS: [f64; 2] = [2.0, 4.0];
/// The counted time of runs with the recorded load, in seconds: it has counts of four minutes.
const RECORDED_S: f64 = 239.0;
/// The relative difference up to which two plans count as equally good.
const TOLERANCE: f64 = 0.001;

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
        .map(|setting| setting.with_simulation("window_s", RECORDED_S))
        .collect()
}

impl Experiment for Bursts {
    fn name(&self) -> &'static str {
        "bursts"
    }

    fn title(&self) -> &'static str {
        "Arrivals in bursts"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = runner.sweep(&distributed(), &Planner::all())?;
        let mut planners = thesis_planners();
        planners.push(Planner::from_policy(GOODPUT));
        let azure = runner.sweep_with(&recorded(), &planners, &[Discipline::Deadline])?;
        let mut page = new_page(self);
        page.paragraph(
            "The settings of figure 6.1 with two kinds of arrivals. First, gamma-distributed gaps between requests with a coefficient of variation (CV) above 1, \
            which is the CV of Poisson arrivals. Second, the load of the first four minutes of a day of Azure Functions 2019, striped over the models and scaled \
            to 500 requests/s of each (source: `scenarios/azure/README.md`): Poisson arrivals within a minute, with a step between minutes.",
        );
        page.heading("Comparison with the best of the thesis");
        page.paragraph(&format!(
            "In each setting, dispatched by `deadline`. A difference of up to {} % counts as equal.",
            100.0 * TOLERANCE
        ));
        let mut claims = Vec::new();
        for &calibration in &sweep.calibrations {
            claims.extend(targets(&sweep, calibration));
            claims.extend(targets(&azure, calibration));
        }
        page.targets(&claims);
        page.heading("A recorded load");
        for &calibration in &azure.calibrations {
            page.share_tables(&azure, calibration, Discipline::Deadline);
        }
        page.goodput(self.title(), &sweep);
        page.planning_times(&sweep);
        Ok((page, Some(sweep)))
    }
}

/// Returns the targets, one per setting.
fn targets(sweep: &Sweep, calibration: Calibration) -> Vec<Claim> {
    let claim = |(i, setting): (usize, &Setting)| {
        let goodput = sweep
            .trial_in(calibration, i, GOODPUT, Discipline::Deadline)?
            .goodput();
        let (policy, best) = best_of_the_thesis(sweep, calibration, i, Discipline::Deadline)?;
        Some(Claim::new(
            format!(
                "{calibration}, {}: not below the best of the thesis",
                setting.name()
            ),
            format!("{goodput:.0} requests/s within the SLO, {policy} {best:.0}"),
            goodput >= best * (1.0 - TOLERANCE),
        ))
    };
    sweep
        .settings
        .iter()
        .enumerate()
        .filter_map(claim)
        .collect()
}

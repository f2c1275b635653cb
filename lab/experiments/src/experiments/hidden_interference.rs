//! Interference that no policy knows of, without and with feedback from the run.

use std::time::Duration;

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

pub(crate) struct HiddenInterference;

/// The additional slowdowns per SM utilisation of 1 of other replicas.
const SLOWDOWNS: [f64; 2] = [0.3, 0.6];
/// The period of replanning, in simulated time.
const REPLAN_EVERY: Duration = Duration::from_secs(2);
/// The time in which feedback settles and which is not counted, in seconds.
const SETTLING_S: f64 = 12.0;
/// The counted time, in seconds.
const COUNTED_S: f64 = 8.0;
/// The largest part that may be missing to the best policy of the thesis in a setting.
const MAX_SHORTFALL: f64 = 0.03;

fn settings() -> Vec<Setting> {
    let slowdown = |value: f64| {
        vision_settings(
            &format!("extra slowdown {value}"),
            "extra_slowdown",
            &value.into(),
        )
    };
    SLOWDOWNS.into_iter().flat_map(slowdown).collect()
}

impl Experiment for HiddenInterference {
    fn name(&self) -> &'static str {
        "hidden-interference"
    }

    fn title(&self) -> &'static str {
        "Interference that no policy was told of"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = runner.sweep(&settings(), &Planner::all())?;
        let replanning = Planner::from_policy(GOODPUT).replanning(REPLAN_EVERY);
        let label = replanning.label.clone();
        let mut planners = thesis_planners();
        planners.extend([Planner::from_policy(GOODPUT), replanning]);
        let with_settling = |setting: Setting| {
            setting
                .with_simulation("warmup_s", SETTLING_S)
                .with_simulation("window_s", COUNTED_S)
        };
        let settled: Vec<Setting> = settings().into_iter().map(with_settling).collect();
        let settled = runner.sweep_with(&settled, &planners, &[Discipline::Deadline])?;
        let mut page = new_page(self);
        page.paragraph(
            "The settings of figure 6.1, with an additional slowdown of co-located replicas of 30 % or 60 % per 100 % of active SM utilisation of the other \
            replicas, which no policy knows of.",
        );
        page.heading("With feedback from the run");
        page.paragraph(&format!(
            "`goodput, replanning` replans every {} simulated seconds with the rates and slowdowns observed in the run; the policies of the thesis keep their plans. \
            The first {SETTLING_S} s, in which the feedback settles, are not counted for any policy. The {COUNTED_S} s after them are counted, and replanning continues \
            in them. The best of the thesis is chosen in each setting.",
            REPLAN_EVERY.as_secs()
        ));
        page.targets(&targets(&settled, &label));
        for &calibration in &settled.calibrations {
            page.share_tables(&settled, calibration, Discipline::Deadline);
        }
        page.heading("Without feedback");
        page.paragraph("The plans are those of figure 6.1, without replanning.");
        page.goodput(self.title(), &sweep);
        page.planning_times(&sweep);
        Ok((page, Some(sweep)))
    }
}

fn targets(sweep: &Sweep, label: &str) -> Vec<Claim> {
    let calibrations = sweep.calibrations.iter();
    calibrations
        .filter_map(|&calibration| calibration_targets(sweep, calibration, label))
        .flatten()
        .collect()
}

fn calibration_targets(sweep: &Sweep, calibration: Calibration, label: &str) -> Option<[Claim; 2]> {
    let (mut ours, mut theirs) = (0.0, 0.0);
    let mut worst = (f64::INFINITY, String::new());
    for (i, setting) in sweep.settings.iter().enumerate() {
        let goodput = sweep
            .trial_in(calibration, i, label, Discipline::Deadline)?
            .goodput();
        let (policy, best) = best_of_the_thesis(sweep, calibration, i, Discipline::Deadline)?;
        ours += goodput;
        theirs += best;
        if goodput / best < worst.0 {
            let text = format!(
                "{:+.1} % at {}, beside {policy}",
                100.0 * (goodput / best - 1.0),
                setting.name()
            );
            worst = (goodput / best, text);
        }
    }
    Some([
        Claim::new(
            format!(
                "{calibration}: never more than {:.0} % below the best of the thesis",
                100.0 * MAX_SHORTFALL
            ),
            format!("at its worst {}", worst.1),
            worst.0 >= 1.0 - MAX_SHORTFALL,
        ),
        Claim::new(
            format!("{calibration}: above it in sum"),
            format!("{:+.1} %", 100.0 * (ours / theirs - 1.0)),
            ours > theirs,
        ),
    ])
}

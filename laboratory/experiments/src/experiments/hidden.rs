//! Interference that no policy was told of, without and with feedback from the run.

use std::time::Duration;

use packhorse_cluster::Discipline;

use super::{Experiment, GOODPUT, best_of_the_thesis, of_the_thesis, page, vision_settings};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::{Setting, World},
    sweep::Sweep,
};

pub(crate) struct HiddenInterference;

const SLOWDOWNS: [f64; 2] = [0.3, 0.6];
const REPLAN_EVERY: Duration = Duration::from_secs(2);
/// Seconds in which feedback may settle, and those that count.
const SETTLING_S: f64 = 12.0;
const COUNTED_S: f64 = 8.0;
/// Of the best placement of the thesis, how much it may lack in a setting.
const MAY_LACK: f64 = 0.03;

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

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = lab.sweep(&settings(), &Planner::all())?;
        let replanning = Planner::policy(GOODPUT).replanning(REPLAN_EVERY);
        let label = replanning.label.clone();
        let mut planners = of_the_thesis();
        planners.extend([Planner::policy(GOODPUT), replanning]);
        let later = |setting: Setting| {
            setting
                .with("warmup_s", SETTLING_S)
                .with("window_s", COUNTED_S)
        };
        let settled: Vec<Setting> = settings().into_iter().map(later).collect();
        let settled = lab.sweep_with(&settled, &planners, &[Discipline::Deadline])?;
        let mut page = page(self);
        page.paragraph(
            "The settings of figure 6.1, in which co-located replicas slow each other by a further 30 % or 60 % per 100 % of SM utilisation that is active beside \
             them.",
        );
        page.heading("With feedback from the run");
        page.paragraph(&format!(
            "`goodput` may replan every {} simulated seconds, from the rates and slowdowns that the run has shown; the policies of the thesis keep their plans. The first \
             {SETTLING_S} s, in which feedback settles, do not count for anybody, the {COUNTED_S} s after them do, and replanning goes on in them. The best of the thesis is that of each setting.",
            REPLAN_EVERY.as_secs()
        ));
        page.targets(&targets(&settled, &label));
        for &world in &settled.worlds {
            page.shares(&settled, world, Discipline::Deadline);
        }
        page.heading("Without feedback");
        page.paragraph("The plans are those of figure 6.1, and nobody replans.");
        page.goodput(self.title(), &sweep);
        page.planners(&sweep);
        Ok((page, Some(sweep)))
    }
}

fn targets(sweep: &Sweep, label: &str) -> Vec<Claim> {
    let worlds = sweep.worlds.iter();
    worlds
        .filter_map(|&world| of_world(sweep, world, label))
        .flatten()
        .collect()
}

fn of_world(sweep: &Sweep, world: World, label: &str) -> Option<[Claim; 2]> {
    let (mut ours, mut theirs) = (0.0, 0.0);
    let mut least = (f64::INFINITY, String::new());
    for (i, setting) in sweep.settings.iter().enumerate() {
        let goodput = sweep
            .trial_in(world, i, label, Discipline::Deadline)?
            .goodput();
        let (policy, best) = best_of_the_thesis(sweep, world, i, Discipline::Deadline)?;
        ours += goodput;
        theirs += best;
        if goodput / best < least.0 {
            let text = format!(
                "{:+.1} % at {}, beside {policy}",
                100.0 * (goodput / best - 1.0),
                setting.name()
            );
            least = (goodput / best, text);
        }
    }
    Some([
        Claim::new(
            format!(
                "{world}: never more than {:.0} % below the best of the thesis",
                100.0 * MAY_LACK
            ),
            format!("at its worst {}", least.1),
            least.0 >= 1.0 - MAY_LACK,
        ),
        Claim::new(
            format!("{world}: above it in sum"),
            format!("{:+.1} %", 100.0 * (ours / theirs - 1.0)),
            ours > theirs,
        ),
    ])
}

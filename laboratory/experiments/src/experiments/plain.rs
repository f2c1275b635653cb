//! Sweeps without more to them: figures of the appendix, which the thesis shows without a discussion.

use packhorse_cluster::Discipline;

use super::{Experiment, page, rps};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::Setting,
    sweep::Sweep,
};

/// A sweep over settings, with what the thesis says of it.
pub(crate) struct Plain {
    name: &'static str,
    title: &'static str,
    /// What else to know; may be empty.
    about: &'static str,
    settings: fn() -> Vec<Setting>,
    planners: fn() -> Vec<Planner>,
    claims: fn(&Sweep) -> Option<Vec<Claim>>,
}

impl Experiment for Plain {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = lab.sweep(&(self.settings)(), &(self.planners)())?;
        let mut page = page(self);
        if !self.about.is_empty() {
            page.paragraph(self.about);
        }
        if let Some(claims) = (self.claims)(&sweep) {
            page.heading("What agrees with the thesis, and what does not");
            page.claims(&claims);
        }
        page.goodput(self.title, &sweep);
        page.planners(&sweep);
        Ok((page, Some(sweep)))
    }
}

const WITHOUT_NUMBERS: &str = "The thesis shows this figure without numbers in its text.";

pub(crate) const WITHOUT_SHARES: Plain = Plain {
    name: "A.1",
    title: "Figure A.1: five vision models on one to six GPUs, with and without MPS shares",
    about: "",
    settings: || (1..=6).map(|gpus| Setting::gpus("6.1", gpus)).collect(),
    planners: || {
        let with = ["usher", "wao-usher"].map(Planner::policy);
        let without = with.clone().map(Planner::without_shares);
        with.into_iter().chain(without).collect()
    },
    claims: |sweep| {
        let goodput = |label: &str| {
            let trials = (0..6).map(|setting| {
                Some(
                    sweep
                        .trial(setting, label, Discipline::FixedWait)?
                        .goodput(),
                )
            });
            trials.collect::<Option<Vec<f64>>>()
        };
        let (with, without) = (goodput("wao-usher")?, goodput("wao-usher, no shares")?);
        let better = without.iter().sum::<f64>() > with.iter().sum();
        let usher = goodput("usher")?;
        let poor = without[5] < 0.8 * usher[5];
        Some(vec![
            Claim::new(
                "without shares WAO-Usher's goodput is slightly better",
                format!(
                    "{} with, {} without (requests/s, 1 to 6 GPUs)",
                    rps(&with),
                    rps(&without)
                ),
                better,
            ),
            Claim::new(
                "and still poor: its co-location is too bold",
                format!(
                    "{:.0} requests/s on six GPUs, Usher {:.0}",
                    without[5], usher[5]
                ),
                poor,
            ),
        ])
    },
};

pub(crate) const VISION_AT_1000: Plain = Plain {
    name: "A.2",
    title: "Figure A.2: five vision models at 1000 requests/s each on one to eight GPUs",
    about: WITHOUT_NUMBERS,
    settings: || (1..=8).map(|gpus| Setting::gpus("A.2", gpus)).collect(),
    planners: Planner::all,
    claims: |_| None,
};

pub(crate) const MIXED_LOADS: Plain = Plain {
    name: "A.3",
    title: "Figure A.3: vision and language models on four GPUs, by load and SLO",
    about: WITHOUT_NUMBERS,
    settings: || super::loads::settings("A.3"),
    planners: Planner::all,
    claims: |_| None,
};

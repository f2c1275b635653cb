//! Figures that are only sweeps: those of the appendix, which the thesis shows without a discussion.

use packhorse_cluster::Discipline;

use crate::{
    experiment::{Experiment, format_rates, new_page},
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::Setting,
    sweep::Sweep,
    thesis::{gpu_settings, load_settings},
};

/// A figure of the thesis that is only a sweep over settings, with the thesis' statements about it.
pub(crate) struct FigureSweep {
    name: &'static str,
    title: &'static str,
    /// The paragraph before the results; may be empty.
    introduction: &'static str,
    settings: fn() -> Vec<Setting>,
    planners: fn() -> Vec<Planner>,
    /// Returns the thesis' statements with the results; `None` if there are none.
    claims: fn(&Sweep) -> Option<Vec<Claim>>,
}

impl Experiment for FigureSweep {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = runner.sweep(&(self.settings)(), &(self.planners)())?;
        let mut page = new_page(self);
        if !self.introduction.is_empty() {
            page.paragraph(self.introduction);
        }
        if let Some(claims) = (self.claims)(&sweep) {
            page.heading("Agreement with the thesis");
            page.claims(&claims);
        }
        page.goodput(self.title, &sweep);
        page.planning_times(&sweep);
        Ok((page, Some(sweep)))
    }
}

/// The introduction of figures that the thesis does not discuss.
const WITHOUT_NUMBERS: &str = "The thesis shows this figure without numbers in its text.";

/// Figure A.1.
pub(crate) const WITHOUT_SHARES: FigureSweep = FigureSweep {
    name: "A.1",
    title: "Figure A.1: five vision models on one to six GPUs, with and without MPS shares",
    introduction: "",
    settings: || gpu_settings("6.1", 6),
    planners: || {
        let with = ["usher", "wao-usher"].map(Planner::from_policy);
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
                    format_rates(&with),
                    format_rates(&without)
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

/// Figure A.2.
pub(crate) const VISION_AT_1000: FigureSweep = FigureSweep {
    name: "A.2",
    title: "Figure A.2: five vision models at 1000 requests/s each on one to eight GPUs",
    introduction: WITHOUT_NUMBERS,
    settings: || gpu_settings("A.2", 8),
    planners: Planner::all,
    claims: |_| None,
};

/// Figure A.3.
pub(crate) const MIXED_LOADS: FigureSweep = FigureSweep {
    name: "A.3",
    title: "Figure A.3: vision and language models on four GPUs, by load and SLO",
    introduction: WITHOUT_NUMBERS,
    settings: || load_settings("A.3"),
    planners: Planner::all,
    claims: |_| None,
};

//! Figure 6.10 and what the thesis makes of it: vision and language models on ever more GPUs.

use packhorse_cluster::Discipline;
use packhorse_figures::{BarGroup, Figure, Panel, runs};

use super::{Experiment, page, percent, rps};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::Setting,
    sweep::Sweep,
};

pub(crate) struct Mixed;

impl Experiment for Mixed {
    fn name(&self) -> &'static str {
        "6.10"
    }

    fn title(&self) -> &'static str {
        "Figure 6.10: two vision and two language models at 300 requests/s each on one to eight GPUs"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let gpus = |gpus| Setting::gpus("6.10", gpus);
        let sweep = lab.sweep(&(1..=8).map(gpus).collect::<Vec<_>>(), &Planner::all())?;
        let mut page = page(self);
        page.heading("What agrees with the thesis, and what does not");
        page.claims(&claims(&sweep).unwrap_or_default());
        page.goodput(self.title(), &sweep);
        if let Some(figure) = figure_6_13(&sweep) {
            page.heading("Queues at the workers: figure 6.13");
            page.paragraph(
                "WSM-MILP's plans, the thesis' router. A model whose replicas are too slow for its rate queues at the worker without bound; the bars \
                 are cut, and the number above says how long they are.",
            );
            page.figure("stages", &figure);
        }
        page.planners(&sweep);
        Ok((page, Some(sweep)))
    }
}

fn claims(sweep: &Sweep) -> Option<Vec<Claim>> {
    let all = |of: &dyn Fn(usize) -> Option<f64>| (0..8).map(of).collect::<Option<Vec<f64>>>();
    let goodput = |policy: &str| {
        all(&|setting| {
            Some(
                sweep
                    .trial(setting, policy, Discipline::FixedWait)?
                    .goodput(),
            )
        })
    };
    let share = |model: &str| {
        all(&|setting| {
            Some(
                sweep
                    .trial(setting, "wsm-milp", Discipline::FixedWait)?
                    .model_share(model),
            )
        })
    };
    let (usher, wao, wsm) = (
        goodput("usher")?,
        goodput("wao-usher")?,
        goodput("wsm-milp")?,
    );
    let (bert, gpt2) = (share("bert")?, share("gpt2")?);
    let replicas = |model: &str| {
        let plan = &sweep.trial(4, "wsm-milp", Discipline::FixedWait)?.plan;
        Some(
            plan.models
                .iter()
                .find(|planned| planned.name == model)?
                .replicas,
        )
    };
    let (berts, gpt2s) = (replicas("bert")?, replicas("gpt2")?);
    Some(vec![
        Claim::new(
            "WAO-Usher hardly gains from more than one GPU",
            format!("{} requests/s", rps(&wao)),
            wao[7] - wao[0] < 0.25 * (usher[7] - usher[0]),
        ),
        Claim::new(
            "on five GPUs WSM-MILP places two replicas each of bert and gpt2",
            format!("{berts} of bert, {gpt2s} of gpt2"),
            (berts, gpt2s) == (2, 2),
        ),
        Claim::new(
            "and is much worse than Usher there",
            format!("wsm-milp {:.0}, usher {:.0} requests/s", wsm[4], usher[4]),
            wsm[4] < 0.9 * usher[4],
        ),
        Claim::new(
            "with WSM-MILP gpt2 recovers at six GPUs",
            format!(
                "{} of its requests within the SLO on 5, 6, 7 GPUs",
                percent(&gpt2[4..7])
            ),
            gpt2[4] < 0.5 && gpt2[5] > 0.8,
        ),
        Claim::new(
            "and bert at seven",
            format!(
                "{} of its requests within the SLO on 5, 6, 7 GPUs",
                percent(&bert[4..7])
            ),
            bert[5] < 0.5 && bert[6] > 0.8,
        ),
        Claim::new(
            "with seven GPUs WSM-MILP is close to the ideal",
            format!(
                "{:.0} % of all requests within the SLO",
                100.0 * sweep.trial(6, "wsm-milp", Discipline::FixedWait)?.share()
            ),
            sweep.trial(6, "wsm-milp", Discipline::FixedWait)?.share() > 0.9,
        ),
    ])
}

fn figure_6_13(sweep: &Sweep) -> Option<Figure> {
    let panels = ["bert", "gpt2"].map(|name| {
        let mut chart = runs::stages_chart(name, 300.0);
        for setting in 3..8 {
            let trial = sweep.trial(setting, "wsm-milp", Discipline::FixedWait)?;
            let model = trial
                .plan
                .models
                .iter()
                .position(|model| model.name == name)?;
            chart.groups.push(BarGroup {
                label: sweep.settings[setting].label.clone(),
                bars: vec![trial.runs("").stages(model)],
            });
        }
        Some(Panel::Bars(chart))
    });
    Some(Figure {
        title: "where the time goes, wsm-milp with fixed-wait".to_owned(),
        notes: vec![format!("calibrated world, {}", sweep.seeds())],
        columns: 2,
        panels: panels.into_iter().collect::<Option<_>>()?,
    })
}

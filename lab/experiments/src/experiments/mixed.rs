//! Figure 6.10 with the thesis' statements about it: vision and language models on one to eight GPUs.

use packhorse_cluster::Discipline;
use packhorse_figures::{BarGroup, Figure, Panel, runs};

use crate::{
    experiment::{Experiment, format_rates, format_shares, new_page},
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    sweep::Sweep,
    thesis::gpu_settings,
};

pub(crate) struct Mixed;

impl Experiment for Mixed {
    fn name(&self) -> &'static str {
        "6.10"
    }

    fn title(&self) -> &'static str {
        "Figure 6.10: two vision and two language models at 300 requests/s each on one to eight GPUs"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = runner.sweep(&gpu_settings("6.10", 8), &Planner::all())?;
        let mut page = new_page(self);
        page.heading("Agreement with the thesis");
        page.claims(&claims(&sweep).unwrap_or_default());
        page.goodput(self.title(), &sweep);
        if let Some(figure) = figure_6_13(&sweep) {
            page.heading("Queues at the workers: figure 6.13");
            page.paragraph(
                "The plans of WSM-MILP with the thesis' router. The queue at the worker of a model whose replicas are too slow for its rate grows without bound; its bar is \
                cut, and the number above the bar is its height.",
            );
            page.figure("stages", &figure);
        }
        page.planning_times(&sweep);
        Ok((page, Some(sweep)))
    }
}

fn claims(sweep: &Sweep) -> Option<Vec<Claim>> {
    let by_gpus =
        |value: &dyn Fn(usize) -> Option<f64>| (0..8).map(value).collect::<Option<Vec<f64>>>();
    let goodput = |policy: &str| {
        by_gpus(&|setting| {
            Some(
                sweep
                    .trial(setting, policy, Discipline::FixedWait)?
                    .goodput(),
            )
        })
    };
    let share = |model: &str| {
        by_gpus(&|setting| {
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
    let (bert_replicas, gpt2_replicas) = (replicas("bert")?, replicas("gpt2")?);
    Some(vec![
        Claim::new(
            "WAO-Usher hardly gains from more than one GPU",
            format!("{} requests/s", format_rates(&wao)),
            wao[7] - wao[0] < 0.25 * (usher[7] - usher[0]),
        ),
        Claim::new(
            "on five GPUs WSM-MILP places two replicas each of bert and gpt2",
            format!("{bert_replicas} of bert, {gpt2_replicas} of gpt2"),
            (bert_replicas, gpt2_replicas) == (2, 2),
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
                format_shares(&gpt2[4..7])
            ),
            gpt2[4] < 0.5 && gpt2[5] > 0.8,
        ),
        Claim::new(
            "and bert at seven",
            format!(
                "{} of its requests within the SLO on 5, 6, 7 GPUs",
                format_shares(&bert[4..7])
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
        notes: vec![format!("calibrated world, {}", sweep.describe_seeds())],
        columns: 2,
        panels: panels.into_iter().collect::<Option<_>>()?,
    })
}

//! Figure 6.1 and what the thesis makes of it: five vision models on ever more GPUs.

use packhorse_cluster::Discipline;
use packhorse_figures::{BarGroup, Figure, Panel, Series, plans, runs};

use super::{Experiment, page, rps};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::{Setting, World},
    sweep::{DISCIPLINES, Sweep},
};

pub(crate) struct Vision;

const MODEL: &str = "efficientnet_b7";
/// Figure 6.5, as far as the text gives it.
const USHER: &str = "usher";
const AO_MILP: &str = "thesis' ao-milp";

impl Experiment for Vision {
    fn name(&self) -> &'static str {
        "6.1"
    }

    fn title(&self) -> &'static str {
        "Figure 6.1: five vision models at 500 requests/s each on one to six GPUs"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let gpus = |gpus| Setting::gpus("6.1", gpus);
        let sweep = lab.sweep(&(1..=6).map(gpus).collect::<Vec<_>>(), &Planner::all())?;
        let six = lab.sweep(
            &[gpus(6)],
            &[
                Planner::policy(USHER),
                Planner::file(AO_MILP, "6.5-ao-milp.json"),
            ],
        )?;
        let mut page = page(self);
        page.heading("What agrees with the thesis, and what does not");
        let mut claims = growth(&sweep).unwrap_or_default();
        claims.extend(six_gpus(&sweep, &six).unwrap_or_default());
        page.claims(&claims);
        page.paragraph(
            "The goodput of efficientnet_b7 under Usher hangs on 1.4 %: its two replicas do 426.5 of the 432.4 requests/s that come, so that their queue grows throughout the run and each seed \
             has another tale to tell. [What decides over the thesis' router](router.md) has a hundred of them.",
        );
        page.goodput(self.title(), &sweep);
        if let Some(figure) = figure_6_6(&six) {
            page.heading("Large batches: figure 6.6");
            page.paragraph(
                "Usher gives `efficientnet_b7` batches of 8, the thesis' AO-MILP batches of 64, whose optimum is tied. With the thesis' router a batch of 64 \
                 waits for its last request and computes for longer than the SLO leaves; with `deadline` it goes when it must.",
            );
            page.figure("efficientnet_b7", &figure);
        }
        if let Some(figure) = figure_6_7(&sweep) {
            page.heading("Plans on five GPUs: figure 6.7");
            page.figure("plans", &figure);
        }
        page.planners(&sweep);
        Ok((page, Some(sweep)))
    }
}

fn growth(sweep: &Sweep) -> Option<Vec<Claim>> {
    let goodput = |policy: &str| {
        let trials = (0..6).map(|setting| {
            Some(
                sweep
                    .trial(setting, policy, Discipline::FixedWait)?
                    .goodput(),
            )
        });
        trials.collect::<Option<Vec<f64>>>()
    };
    let (usher, wao, ao, wsm) = (
        goodput("usher")?,
        goodput("wao-usher")?,
        goodput("ao-milp")?,
        goodput("wsm-milp")?,
    );
    let five = sweep.trial(4, "wsm-milp", Discipline::FixedWait)?;
    let together = |a: &str, b: &str| {
        let on = |name: &str| {
            five.plan
                .replicas
                .iter()
                .filter(|replica| replica.model == name)
                .map(|replica| replica.device)
                .collect::<Vec<_>>()
        };
        on(a).iter().any(|device| on(b).contains(device))
    };
    Some(vec![
        Claim::new(
            "Usher gains little from the third GPU and much from the fourth",
            format!("{} requests/s on 2, 3, 4 GPUs", rps(&usher[1..4])),
            usher[3] - usher[2] > 3.0 * (usher[2] - usher[1]),
        ),
        Claim::new(
            "WAO-Usher uses three GPUs however many there are, and gains nothing from more",
            format!("{} requests/s on 3 to 6 GPUs", rps(&wao[2..])),
            wao[2..]
                .iter()
                .all(|value| (value - wao[2]).abs() < 0.02 * wao[2]),
        ),
        Claim::new(
            "AO-MILP is above Usher on three and four GPUs",
            format!(
                "ao-milp {}, usher {} requests/s",
                rps(&ao[2..4]),
                rps(&usher[2..4])
            ),
            ao[2] > usher[2] && ao[3] > usher[3],
        ),
        Claim::new(
            "WSM-MILP places alexnet and resnet50 on one GPU",
            if together("alexnet", "resnet50") {
                "so it does on five GPUs"
            } else {
                "not on five GPUs; the optimum is tied"
            },
            together("alexnet", "resnet50"),
        ),
        Claim::new(
            "on five GPUs WSM-MILP comes closest to Usher on six",
            format!(
                "wsm-milp {:.0}, ao-milp {:.0}, usher {:.0} on five; usher {:.0} on six",
                wsm[4], ao[4], usher[4], usher[5]
            ),
            wsm[4] >= ao[4].max(usher[4]).max(wao[4]),
        ),
    ])
}

fn six_gpus(sweep: &Sweep, six: &Sweep) -> Option<Vec<Claim>> {
    let usher = six.trial(0, USHER, Discipline::FixedWait)?;
    let milp = six.trial(0, AO_MILP, Discipline::FixedWait)?;
    let submitted = usher.offered() / 5.0;
    let goodput = |policy: &str| Some(sweep.trial(5, policy, Discipline::FixedWait)?.goodput());
    let (wao, ao, wsm) = (
        goodput("wao-usher")?,
        goodput("ao-milp")?,
        goodput("wsm-milp")?,
    );
    let (usher_goodput, milp_goodput) = (usher.goodput(), milp.goodput());
    let best = [wao, milp_goodput, wsm]
        .iter()
        .all(|&other| other <= usher_goodput);
    let best = Claim::new(
        "Usher is the best on six GPUs",
        format!(
            "usher {usher_goodput:.0}, wao-usher {wao:.0}, wsm-milp {wsm:.0}, ao-milp {milp_goodput:.0} requests/s with the thesis' plan and {ao:.0} with ours: \
             its optimum is tied, and ours has smaller batches"
        ),
        best,
    );
    Some(vec![
        best,
        Claim::number("clients reach of 500 requests/s", 433.34, submitted, 2.0),
        Claim::number(
            "throughput of efficientnet_b7 on six GPUs, Usher",
            425.75,
            usher.model(MODEL, |model| model.throughput_rps),
            3.0,
        ),
        Claim::number(
            "throughput, AO-MILP",
            425.25,
            milp.model(MODEL, |model| model.throughput_rps),
            3.0,
        ),
        Claim::number(
            "goodput, Usher",
            360.61,
            usher.model(MODEL, |model| model.goodput_rps),
            10.0,
        ),
        Claim::number(
            "goodput, AO-MILP",
            143.73,
            milp.model(MODEL, |model| model.goodput_rps),
            10.0,
        ),
    ])
}

/// Stages, latencies and batch sizes of the two plans.
fn figure_6_6(six: &Sweep) -> Option<Figure> {
    let mut names = Vec::new();
    let mut groups = Vec::new();
    let mut curves = Vec::new();
    let mut batches = Vec::new();
    for discipline in DISCIPLINES {
        let mut bars = Vec::new();
        for label in [USHER, AO_MILP] {
            let trial = six.trial(0, label, discipline)?;
            let model = trial
                .plan
                .models
                .iter()
                .position(|model| model.name == MODEL)?;
            bars.push(trial.runs(label).stages(model));
            curves.push(runs::latency_curve(names.len(), trial.first(MODEL)?));
            batches.push(runs::batch_sizes(names.len(), trial.first(MODEL)?));
            names.push(format!("{label}, {discipline}"));
        }
        groups.push(BarGroup {
            label: discipline.to_string(),
            bars,
        });
    }
    let series = Series::from_labels(names.iter().map(String::as_str));
    let mut stages = runs::stages_chart("stages", 200.0);
    stages.groups = groups;
    let mut latencies = runs::latency_chart("latency", 200.0, series.clone());
    latencies.curves = curves;
    let panels = batches.into_iter().enumerate().map(|(i, mut curve)| {
        curve.series = 0;
        let mut chart =
            runs::batch_sizes_chart(format!("batches, {}", names[i]), vec![series[i].clone()]);
        chart.curves.push(curve);
        chart.y_end = Some(64.0);
        Panel::Lines(chart)
    });
    Some(Figure {
        title: "efficientnet_b7 on six GPUs".to_owned(),
        notes: vec![
            "calibrated world; stages: means over the seeds; latencies and batches of seed 1"
                .to_owned(),
        ],
        columns: 2,
        panels: [Panel::Bars(stages), Panel::Lines(latencies)]
            .into_iter()
            .chain(panels)
            .collect(),
    })
}

/// The plans for five GPUs.
fn figure_6_7(sweep: &Sweep) -> Option<Figure> {
    let scenario = sweep.scenarios.get(&(4, World::Calibrated))?;
    let panels = sweep.run().filter_map(|policy| {
        let trial = sweep.trial(4, policy, Discipline::Deadline)?;
        let mut chart = plans::chart(scenario, &trial.plan, None).ok()?;
        chart.title = format!(
            "{policy}: {:.0} requests/s expected",
            trial.plan.predicted_goodput_rps
        );
        Some(Panel::Plan(chart))
    });
    Some(Figure {
        title: "plans for five vision models on five GPUs".to_owned(),
        notes: vec![
            "model · batch size; the bars are as long as what the policy reckons with".to_owned(),
        ],
        columns: 2,
        panels: panels.collect(),
    })
}

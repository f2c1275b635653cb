//! Figure 6.1 with the thesis' statements about it: five vision models on one to six GPUs.

use packhorse_cluster::Discipline;
use packhorse_figures::{BarGroup, Figure, Panel, Series, plans, runs};

use crate::{
    experiment::{Experiment, format_rates, new_page},
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting},
    sweep::{DISCIPLINES, Sweep},
    thesis::gpu_settings,
};

pub(crate) struct Vision;

const MODEL: &str = "efficientnet_b7";
const USHER: &str = "usher";
/// The label of AO-MILP's plan in figure 6.5, as the thesis' text describes it.
const AO_MILP: &str = "thesis' ao-milp";

impl Experiment for Vision {
    fn name(&self) -> &'static str {
        "6.1"
    }

    fn title(&self) -> &'static str {
        "Figure 6.1: five vision models at 500 requests/s each on one to six GPUs"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = runner.sweep(&gpu_settings("6.1", 6), &Planner::all())?;
        let six = runner.sweep(
            &[Setting::with_gpus("6.1", 6)],
            &[
                Planner::from_policy(USHER),
                Planner::from_file(AO_MILP, "6.5-ao-milp.json"),
            ],
        )?;
        let mut page = new_page(self);
        page.heading("Agreement with the thesis");
        let mut claims = growth_claims(&sweep).unwrap_or_default();
        claims.extend(six_gpu_claims(&sweep, &six).unwrap_or_default());
        page.claims(&claims);
        page.paragraph(
            "The goodput of efficientnet_b7 under Usher depends on 1.4 %: its two replicas serve 426.5 of the 432.4 requests/s that arrive, so that their queue grows \
            throughout the run and the result depends on the seed. [The sensitivity of the thesis' router](router.md) has the results of a hundred seeds.",
        );
        page.goodput(self.title(), &sweep);
        if let Some(figure) = figure_6_6(&six) {
            page.heading("Large batches: figure 6.6");
            page.paragraph(
                "Usher plans batches of 8 for `efficientnet_b7`. The thesis' AO-MILP, which has several optima, plans batches of 64. With the thesis' router a batch of 64 \
                waits for its last request and then computes for longer than the rest of the SLO; `deadline` sends the batch before it is too late.",
            );
            page.figure("efficientnet_b7", &figure);
        }
        if let Some(figure) = figure_6_7(&sweep) {
            page.heading("Plans on five GPUs: figure 6.7");
            page.figure("plans", &figure);
        }
        page.planning_times(&sweep);
        Ok((page, Some(sweep)))
    }
}

/// Returns the claims about the growth of the goodput with the number of GPUs.
fn growth_claims(sweep: &Sweep) -> Option<Vec<Claim>> {
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
    let share_a_device = |a: &str, b: &str| {
        let devices = |name: &str| {
            five.plan
                .replicas
                .iter()
                .filter(|replica| replica.model == name)
                .map(|replica| replica.device)
                .collect::<Vec<_>>()
        };
        devices(a).iter().any(|device| devices(b).contains(device))
    };
    Some(vec![
        Claim::new(
            "Usher gains little from the third GPU and much from the fourth",
            format!("{} requests/s on 2, 3, 4 GPUs", format_rates(&usher[1..4])),
            usher[3] - usher[2] > 3.0 * (usher[2] - usher[1]),
        ),
        Claim::new(
            "WAO-Usher uses three GPUs however many there are, and gains nothing from more",
            format!("{} requests/s on 3 to 6 GPUs", format_rates(&wao[2..])),
            wao[2..]
                .iter()
                .all(|value| (value - wao[2]).abs() < 0.02 * wao[2]),
        ),
        Claim::new(
            "AO-MILP is above Usher on three and four GPUs",
            format!(
                "ao-milp {}, usher {} requests/s",
                format_rates(&ao[2..4]),
                format_rates(&usher[2..4])
            ),
            ao[2] > usher[2] && ao[3] > usher[3],
        ),
        Claim::new(
            "WSM-MILP places alexnet and resnet50 on one GPU",
            if share_a_device("alexnet", "resnet50") {
                "so it does on five GPUs"
            } else {
                "not on five GPUs; the optimum is tied"
            },
            share_a_device("alexnet", "resnet50"),
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

/// Returns the claims about six GPUs.
fn six_gpu_claims(sweep: &Sweep, six: &Sweep) -> Option<Vec<Claim>> {
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
            usher.model_mean(MODEL, |model| model.throughput_rps),
            3.0,
        ),
        Claim::number(
            "throughput, AO-MILP",
            425.25,
            milp.model_mean(MODEL, |model| model.throughput_rps),
            3.0,
        ),
        Claim::number(
            "goodput, Usher",
            360.61,
            usher.model_mean(MODEL, |model| model.goodput_rps),
            10.0,
        ),
        Claim::number(
            "goodput, AO-MILP",
            143.73,
            milp.model_mean(MODEL, |model| model.goodput_rps),
            10.0,
        ),
    ])
}

/// Returns a figure of the stages, latencies and batch sizes of the two plans.
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
            curves.push(runs::latency_curve(names.len(), trial.first_report(MODEL)?));
            batches.push(runs::batch_sizes(names.len(), trial.first_report(MODEL)?));
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

/// Returns a figure of the plans for five GPUs.
fn figure_6_7(sweep: &Sweep) -> Option<Figure> {
    let scenario = sweep.scenarios.get(&(4, Calibration::Calibrated))?;
    let panels = sweep.run_planners().filter_map(|policy| {
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

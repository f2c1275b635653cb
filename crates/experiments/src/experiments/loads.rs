//! Figure 6.15 and what the thesis makes of it: four GPUs, ever more load, three SLOs.

use packhorse_cluster::Discipline;
use packhorse_figures::{BarGroup, Curve, Figure, LineChart, Panel, Series, Stroke, runs};

use super::{Experiment, page, rps};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::Setting,
    sweep::{DISCIPLINES, Sweep},
};

pub(crate) struct Loads;

const SLOS: [u32; 3] = [150, 250, 350];
const LOADS: [u32; 5] = [1000, 2000, 3000, 4000, 5000];
/// Places of an SLO's settings among all.
const AT_250: usize = LOADS.len();

/// Every SLO with every load.
pub(super) fn settings(figure: &str) -> Vec<Setting> {
    let of_slo = |slo: u32| {
        LOADS.map(|load| {
            Setting::thesis(
                format!("{slo} ms, {}k/s", load / 1000),
                &format!("{figure}-slo-{slo}-load-{load}"),
            )
        })
    };
    SLOS.into_iter().flat_map(of_slo).collect()
}

impl Experiment for Loads {
    fn figure(&self) -> &'static str {
        "6.15"
    }

    fn title(&self) -> &'static str {
        "five vision models on four GPUs, by load and SLO"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Sweep)> {
        let sweep = lab.sweep(settings("6.15"), &Planner::all())?;
        let mut page = page(self);
        page.heading("What agrees with the thesis, and what does not");
        page.claims(&claims(&sweep).unwrap_or_default());
        page.goodput(self.title(), &sweep);
        page.figure("lines", &lines(&sweep));
        if let Some(figure) = densenet121(&sweep) {
            page.heading("densenet121: figures 6.17 and 6.19");
            page.paragraph(
                "SLO 250 ms. Left: with WSM-MILP's plan and the thesis' router its worker has a small reserve at 600 requests/s and none at 800. Right: AO-MILP's large batches \
                 are full at 1000 requests/s, while at 600 most leave when the longest wait is over.",
            );
            page.figure("densenet121", &figure);
        }
        page.planners(&sweep);
        Ok((page, sweep))
    }
}

fn claims(sweep: &Sweep) -> Option<Vec<Claim>> {
    let goodput = |policy: &str, slo: usize| {
        let trials = (0..LOADS.len()).map(|load| {
            Some(
                sweep
                    .trial(slo * LOADS.len() + load, policy, Discipline::FixedWait)?
                    .goodput(),
            )
        });
        trials.collect::<Option<Vec<f64>>>()
    };
    let mut claims = Vec::new();
    for (i, slo) in SLOS.into_iter().enumerate() {
        let wsm = goodput("wsm-milp", i)?;
        claims.push(Claim::new(
            format!("SLO {slo} ms: WSM-MILP's goodput falls from 3000 to 4000 requests/s and rises to 5000"),
            format!("{} requests/s", rps(&wsm[2..])),
            wsm[3] < wsm[2] && wsm[4] > wsm[3],
        ));
    }
    for (i, slo) in SLOS.into_iter().enumerate() {
        let ao = goodput("ao-milp", i)?;
        let rises = ao[4] > ao[2];
        claims.push(Claim::new(
            if slo == 150 {
                "SLO 150 ms: AO-MILP's goodput does not rise with the load".to_owned()
            } else {
                format!("SLO {slo} ms: AO-MILP's goodput rises a little with the load")
            },
            format!("{} requests/s at 1000 to 5000", rps(&ao)),
            rises == (slo != 150),
        ));
    }
    let queue = |load: usize| {
        let trial = sweep.trial(AT_250 + load, "wsm-milp", Discipline::FixedWait)?;
        Some(trial.model("densenet121", |model| {
            model.stages_ms_p95.worker_queue.unwrap_or_default()
        }))
    };
    let (at_600, at_800) = (queue(2)?, queue(3)?);
    claims.push(Claim::new(
        "SLO 250 ms, WSM-MILP: densenet121 hardly waits at its worker at 600 requests/s, and very long at 800",
        format!("95th percentile {at_600:.0} ms, then {at_800:.0} ms"),
        at_600 < 250.0 && at_800 > 2.0 * at_600 && at_800 > 250.0,
    ));
    Some(claims)
}

/// Goodput against load, a panel per SLO and discipline.
fn lines(sweep: &Sweep) -> Figure {
    let series = Series::of(sweep.run().map(String::as_str));
    let mut panels = Vec::new();
    for discipline in DISCIPLINES {
        for (i, slo) in SLOS.into_iter().enumerate() {
            let curve = |(place, policy): (usize, &String)| {
                let point = |(load, offered): (usize, u32)| {
                    let trial = sweep.trial(i * LOADS.len() + load, policy, discipline)?;
                    Some((f64::from(offered), trial.goodput()))
                };
                Curve {
                    series: place,
                    stroke: Stroke::Dotted,
                    points: LOADS.into_iter().enumerate().filter_map(point).collect(),
                }
            };
            panels.push(Panel::Lines(LineChart {
                title: format!("SLO {slo} ms, {discipline}"),
                x_axis: "target rate in requests/s".to_owned(),
                y_axis: "requests/s within the SLO".to_owned(),
                x_end: Some(5000.0),
                y_end: Some(4500.0),
                series: series.clone(),
                curves: sweep.run().enumerate().map(curve).collect(),
                ..LineChart::default()
            }));
        }
    }
    Figure {
        title: "goodput against load".to_owned(),
        notes: vec![format!("calibrated world, {}", sweep.seeds())],
        columns: 3,
        panels,
    }
}

/// Stages with WSM-MILP, batch sizes with AO-MILP.
fn densenet121(sweep: &Sweep) -> Option<Figure> {
    let name = "densenet121";
    let mut stages = runs::stages_chart("stages, wsm-milp with fixed-wait", 250.0);
    for (load, label) in [(2, "600/s"), (3, "800/s")] {
        let trial = sweep.trial(AT_250 + load, "wsm-milp", Discipline::FixedWait)?;
        let model = trial
            .plan
            .models
            .iter()
            .position(|model| model.name == name)?;
        stages.groups.push(BarGroup {
            label: label.to_owned(),
            bars: vec![trial.runs("").stages(model)],
        });
    }
    let mut batches = runs::batch_sizes_chart(
        "batch sizes, ao-milp with fixed-wait",
        Series::of(["600 requests/s", "1000 requests/s"]),
    );
    for (i, load) in [2, 4].into_iter().enumerate() {
        let trial = sweep.trial(AT_250 + load, "ao-milp", Discipline::FixedWait)?;
        batches
            .curves
            .push(runs::batch_sizes(i, trial.first(name)?));
    }
    Some(Figure {
        title: "densenet121 on four GPUs".to_owned(),
        notes: vec!["calibrated world; stages: means over the seeds; batches of seed 1".to_owned()],
        columns: 2,
        panels: vec![Panel::Bars(stages), Panel::Lines(batches)],
    })
}

//! Figure 6.15 and what the thesis makes of it: four GPUs, ever more load, three SLOs.

use packhorse_cluster::Discipline;
use packhorse_figures::{BarGroup, Curve, Figure, LineChart, Panel, Series, Stroke, runs};

use super::{Experiment, page, rps};
use crate::{
    lab::{Lab, Planner},
    page::{Claim, Page},
    setting::{Setting, World},
    sweep::{DISCIPLINES, Sweep, Trial},
};

pub(crate) struct Loads;

pub(super) const SLOS: [u32; 3] = [150, 250, 350];
pub(super) const LOADS: [u32; 5] = [1000, 2000, 3000, 4000, 5000];
/// Places of an SLO's settings among all.
const AT_250: usize = LOADS.len();

/// Every SLO with every load.
pub(super) fn settings(figure: &str) -> Vec<Setting> {
    let of_slo = |slo: u32| {
        LOADS.map(|load| {
            let file = format!("{figure}-slo-{slo}-load-{load}");
            Setting::thesis(format!("{load}/s"), &file).in_part(format!("SLO {slo} ms"))
        })
    };
    SLOS.into_iter().flat_map(of_slo).collect()
}

impl Experiment for Loads {
    fn name(&self) -> &'static str {
        "6.15"
    }

    fn title(&self) -> &'static str {
        "Figure 6.15: five vision models on four GPUs, by load and SLO"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = lab.sweep(&settings("6.15"), &Planner::all())?;
        let quoted = Quoted::run(lab)?;
        let mut page = page(self);
        page.heading("What agrees with the thesis, and what does not");
        let mut claims = claims(&sweep).unwrap_or_default();
        claims.extend(quoted.claims().unwrap_or_default());
        page.claims(&claims);
        page.goodput(self.title(), &sweep);
        page.figure("lines", &lines(&sweep));
        if let Some(figure) = quoted.densenet121() {
            page.heading("densenet121: figures 6.17 and 6.19");
            page.paragraph(
                "SLO 250 ms, the thesis' plans and its router. Left: WSM-MILP's plans are the same for 600 and 800 requests/s of each model but for vgg19. Right: AO-MILP's \
                 batches of 64 are full at 1000 requests/s, while at 600 most leave when the longest wait is over.",
            );
            page.figure("densenet121", &figure);
        }
        page.planners(&sweep);
        Ok((page, Some(sweep)))
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

const DENSENET: &str = "densenet121";
const WSM_MILP: &str = "thesis' wsm-milp";
const AO_MILP: &str = "thesis' ao-milp";

/// The thesis' own plans at an SLO of 250 ms, as far as its text gives them.
struct Quoted {
    /// At 3000 requests/s: figures 6.16a and 6.18a.
    moderate: Sweep,
    /// At 4000 requests/s: figure 6.16b.
    high: Sweep,
    /// The same, in a world where co-located replicas slow each other a little more.
    disturbed: Sweep,
    /// At 5000 requests/s: figure 6.18b.
    highest: Sweep,
}

impl Quoted {
    fn run(lab: &Lab) -> anyhow::Result<Self> {
        let setting = |load: usize| settings("6.15").swap_remove(AT_250 + load);
        let ao_milp = |file| Planner::file(AO_MILP, file);
        let wsm_milp = |file| Planner::file(WSM_MILP, file);
        let high = wsm_milp("6.16-wsm-milp-load-4000.json");
        Ok(Self {
            moderate: lab.sweep(
                &[setting(2)],
                &[
                    wsm_milp("6.16-wsm-milp-load-3000.json"),
                    ao_milp("6.18-ao-milp-load-3000.json"),
                ],
            )?,
            high: lab.sweep(&[setting(3)], std::slice::from_ref(&high))?,
            disturbed: lab.sweep(&[setting(3).with("extra_slowdown", 0.3)], &[high])?,
            highest: lab.sweep(&[setting(4)], &[ao_milp("6.18-ao-milp-load-5000.json")])?,
        })
    }

    fn claims(&self) -> Option<Vec<Claim>> {
        let trial = |sweep: &Sweep| sweep.trial(0, WSM_MILP, Discipline::FixedWait).cloned();
        let (at_600, at_800) = (trial(&self.moderate)?, trial(&self.high)?);
        let queue = |trial: &Trial| {
            trial.model(DENSENET, |model| {
                model.stages_ms_p95.worker_queue.unwrap_or_default()
            })
        };
        let (before, after, disturbed) = (
            queue(&at_600),
            queue(&at_800),
            queue(&trial(&self.disturbed)?),
        );
        let nominal = |sweep: &Sweep| {
            sweep
                .trial_in(World::Nominal, 0, WSM_MILP, Discipline::FixedWait)
                .map(queue)
        };
        let nominal = match (nominal(&self.moderate), nominal(&self.high)) {
            (Some(before), Some(after)) => format!("; nominal {before:.0} ms, then {after:.0} ms"),
            _ => String::new(),
        };
        let vgg19 = at_800.model_share("vgg19");
        Some(vec![
            Claim::new(
                "SLO 250 ms, the thesis' plans of WSM-MILP: goodput falls from 3000 to 4000 requests/s",
                format!("{} requests/s", rps(&[at_600.goodput(), at_800.goodput()])),
                at_800.goodput() < at_600.goodput(),
            ),
            Claim::new(
                "with them densenet121 waits a little at its worker at 600 requests/s, and very long at 800",
                format!(
                    "95th percentile {before:.0} ms, then {after:.0} ms{nominal}; its worker and the replica beside it need less than the whole GPU, so that they do not slow each other here"
                ),
                before < 250.0 && after > 250.0,
            ),
            Claim::new(
                "because even slight interference takes its reserve",
                format!(
                    "{disturbed:.0} ms at 800 requests/s if replicas slow each other by 30 % per 100 % of SM utilisation beside them"
                ),
                disturbed > 250.0,
            ),
            Claim::new(
                "and vgg19, with batches of 128 at 800 requests/s, misses its SLO nearly always",
                format!("{:.0} % of its requests within the SLO", 100.0 * vgg19),
                vgg19 < 0.1,
            ),
        ])
    }

    /// Stages with WSM-MILP, batch sizes with AO-MILP.
    fn densenet121(&self) -> Option<Figure> {
        let mut stages = runs::stages_chart("stages, WSM-MILP", 250.0);
        for (sweep, label) in [(&self.moderate, "600/s"), (&self.high, "800/s")] {
            let trial = sweep.trial(0, WSM_MILP, Discipline::FixedWait)?;
            let model = trial
                .plan
                .models
                .iter()
                .position(|model| model.name == DENSENET)?;
            stages.groups.push(BarGroup {
                label: label.to_owned(),
                bars: vec![trial.runs("").stages(model)],
            });
        }
        let series = Series::of(["600 requests/s", "1000 requests/s"]);
        let mut batches = runs::batch_sizes_chart("batch sizes, AO-MILP", series);
        for (i, sweep) in [&self.moderate, &self.highest].into_iter().enumerate() {
            let trial = sweep.trial(0, AO_MILP, Discipline::FixedWait)?;
            batches
                .curves
                .push(runs::batch_sizes(i, trial.first(DENSENET)?));
        }
        Some(Figure {
            title: "densenet121 on four GPUs, the thesis' plans and router".to_owned(),
            notes: vec![
                "calibrated world; stages: means over the seeds; batches of seed 1".to_owned(),
            ],
            columns: 2,
            panels: vec![Panel::Bars(stages), Panel::Lines(batches)],
        })
    }
}

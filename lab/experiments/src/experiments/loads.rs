//! Figure 6.15 with the thesis' statements about it: four GPUs, five loads and three SLOs.

use std::fmt::Write as _;

use packhorse_cluster::Discipline;
use packhorse_figures::{BarGroup, Curve, Figure, LineChart, Panel, Series, Stroke, runs};
use packhorse_simulator::DispatchOptions;

use crate::{
    experiment::{Experiment, format_rates, new_page},
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting},
    sweep::{DISCIPLINES, Sweep, Trial},
    thesis::{LOADS, SLOS, load_settings},
};

pub(crate) struct Loads;

/// The index of the first setting with an SLO of 250 ms.
const AT_250: usize = LOADS.len();

impl Experiment for Loads {
    fn name(&self) -> &'static str {
        "6.15"
    }

    fn title(&self) -> &'static str {
        "Figure 6.15: five vision models on four GPUs, by load and SLO"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let sweep = runner.sweep(&load_settings("6.15"), &Planner::all())?;
        let thesis_plans = ThesisPlans::simulate(runner)?;
        let mut page = new_page(self);
        page.heading("Agreement with the thesis");
        let mut claims = claims(&sweep).unwrap_or_default();
        claims.extend(thesis_plans.claims().unwrap_or_default());
        page.claims(&claims);
        page.goodput(self.title(), &sweep);
        page.figure("lines", &lines(&sweep));
        if let Some(figure) = thesis_plans.densenet121() {
            page.heading("densenet121: figures 6.17 and 6.19");
            page.paragraph(
                "SLO 250 ms, the thesis' plans and its router. Left: the plans of WSM-MILP for 600 and for 800 requests/s of each model differ only in vgg19. Right: the \
                batches of 64 of AO-MILP are full at 1000 requests/s, while at 600 most are sent when the longest wait is over.",
            );
            page.figure("densenet121", &figure);
            page.paragraph(&format!(
                "The time that a batch of densenet121 waits at its worker, as 95th percentile at 600 and at 800 requests/s of each model, with the plans of WSM-MILP. The \
                worker computes {:.0} requests/s. Together with efficientnet_b7 the use of the GPU is 97.65 %, just below 100 %, so that in the simulator neither replica \
                slows the other. The result depends on the rate that a client at 800 requests/s really reaches. The client of the calibrated world has 0.308 ms of work per \
                request, from the 433 of 500 requests/s of chapter 6, which leaves the worker a reserve of 6 %. Table 4.1 of the thesis measured 711 to 713 requests/s of \
                clients at 800 requests/s, which means 0.154 ms of work per request and is more than the worker computes. The other columns add a slowdown per 100 % of SM \
                utilisation of other replicas on the GPU, which no planner knows.",
                832.59 / 1.22
            ));
            page.table(&thesis_plans.wait_table().unwrap_or_default());
        }
        page.planning_times(&sweep);
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
            format!("{} requests/s", format_rates(&wsm[2..])),
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
            format!("{} requests/s at 1000 to 5000", format_rates(&ao)),
            rises == (slo != 150),
        ));
    }
    Some(claims)
}

/// Returns a figure of the goodput over the load, with a panel per SLO and discipline.
fn lines(sweep: &Sweep) -> Figure {
    let series = Series::from_labels(sweep.run_planners().map(String::as_str));
    let mut panels = Vec::new();
    for discipline in DISCIPLINES {
        for (i, slo) in SLOS.into_iter().enumerate() {
            let curve = |(series, policy): (usize, &String)| {
                let point = |(load, offered): (usize, u32)| {
                    let trial = sweep.trial(i * LOADS.len() + load, policy, discipline)?;
                    Some((f64::from(offered), trial.goodput()))
                };
                Curve {
                    series,
                    stroke: Stroke::LineAndDots,
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
                curves: sweep.run_planners().enumerate().map(curve).collect(),
                ..LineChart::default()
            }));
        }
    }
    Figure {
        title: "goodput against load".to_owned(),
        notes: vec![format!("calibrated world, {}", sweep.describe_seeds())],
        columns: 3,
        panels,
    }
}

const DENSENET: &str = "densenet121";
const WSM_MILP: &str = "thesis' wsm-milp";
const AO_MILP: &str = "thesis' ao-milp";

/// A client's own work per request, in milliseconds: fitted to chapter 6, a value in between, and by table 4.1, where clients reach 711
/// to 713 of 800 requests/s.
const CLIENTS: [f64; 3] = [0.308, 0.2, 0.154];
/// The hidden slowdowns per SM utilisation of 1 of other replicas.
const SLOWDOWNS: [f64; 3] = [0.0, 0.1, 0.3];
/// The index of table 4.1's client in [`CLIENTS`].
const MEASURED: usize = 2;

/// The simulations of the thesis' own plans at an SLO of 250 ms that its text contains.
struct ThesisPlans {
    /// The plans for 3000 requests/s: figures 6.16a and 6.18a.
    moderate: Sweep,
    /// The plan for 4000 requests/s: figure 6.16b.
    high: Sweep,
    /// The plans of WSM-MILP for 3000 and for 4000 requests/s, with every client and every slowdown and the thesis' router.
    clients: [Sweep; 2],
    /// The plan for 5000 requests/s: figure 6.18b.
    highest: Sweep,
}

impl ThesisPlans {
    fn simulate(runner: &Runner) -> anyhow::Result<Self> {
        let setting = |load: usize| load_settings("6.15").swap_remove(AT_250 + load);
        let ao_milp = |file| Planner::from_file(AO_MILP, file);
        let wsm_milp = |file| Planner::from_file(WSM_MILP, file);
        let moderate = wsm_milp("6.16-wsm-milp-load-3000.json");
        let high = wsm_milp("6.16-wsm-milp-load-4000.json");
        let clients = |load, planner: &Planner| {
            let settings: Vec<Setting> = CLIENTS
                .into_iter()
                .flat_map(|work| SLOWDOWNS.map(|slowdown| (work, slowdown)))
                .map(|(work, slowdown)| {
                    let setting = setting(load).with_simulation("client_overhead_ms", work);
                    setting.with_simulation("extra_slowdown", slowdown)
                })
                .collect();
            let router = vec![DispatchOptions::from(Discipline::FixedWait)];
            let planners = std::slice::from_ref(planner);
            let sweeps =
                runner.sweeps_in(&[Calibration::Calibrated], &settings, planners, &[router])?;
            Ok::<_, anyhow::Error>(sweeps.into_iter().next().expect("one for one list"))
        };
        let clients = [clients(2, &moderate)?, clients(3, &high)?];
        Ok(Self {
            moderate: runner.sweep(
                &[setting(2)],
                &[moderate, ao_milp("6.18-ao-milp-load-3000.json")],
            )?,
            high: runner.sweep(&[setting(3)], &[high])?,
            clients,
            highest: runner.sweep(&[setting(4)], &[ao_milp("6.18-ao-milp-load-5000.json")])?,
        })
    }

    /// Returns the trials at 600 and at 800 requests/s of each model.
    fn client_trials(&self, client: usize, slowdown: usize) -> Option<[&Trial; 2]> {
        let [moderate, high] = self.clients.each_ref().map(|sweep| {
            sweep.trial(
                client * SLOWDOWNS.len() + slowdown,
                WSM_MILP,
                Discipline::FixedWait,
            )
        });
        Some([moderate?, high?])
    }

    /// Returns the waiting times of densenet121's batches at its worker, as 95th percentiles in ms, at 600 and at 800 requests/s.
    fn waits(&self, client: usize, slowdown: usize) -> Option<[f64; 2]> {
        let wait = |trial: &Trial| {
            trial.model_mean(DENSENET, |model| {
                model.stages_ms_p95.worker_queue.unwrap_or_default()
            })
        };
        Some(self.client_trials(client, slowdown)?.map(wait))
    }

    /// Returns a table of the waits, with a row per client and a column per slowdown.
    fn wait_table(&self) -> Option<String> {
        let headers = SLOWDOWNS.map(|slowdown| format!("slowdown {slowdown}"));
        let mut text = format!(
            "| a client's work, and what it reaches | {} |\n|---|{}\n",
            headers.join(" | "),
            "---:|".repeat(headers.len())
        );
        for (client, work) in CLIENTS.into_iter().enumerate() {
            let reached = self
                .client_trials(client, 0)?
                .map(|trial| trial.model_mean(DENSENET, |model| model.offered_rps));
            let cells = (0..SLOWDOWNS.len()).map(|slowdown| {
                let [before, after] = self.waits(client, slowdown)?;
                Some(format!("{before:.0} → {after:.0} ms"))
            });
            let cells = cells.collect::<Option<Vec<String>>>()?;
            writeln!(
                text,
                "| {work} ms: {} requests/s | {} |",
                format_rates(&reached),
                cells.join(" | ")
            )
            .expect("writing to a string cannot fail");
        }
        Some(text)
    }

    fn claims(&self) -> Option<Vec<Claim>> {
        let trial = |sweep: &Sweep| sweep.trial(0, WSM_MILP, Discipline::FixedWait).cloned();
        let (at_600, at_800) = (trial(&self.moderate)?, trial(&self.high)?);
        let [before, after] = self.waits(MEASURED, 0)?;
        let [fitted_before, fitted] = self.waits(0, 0)?;
        let [[_, slight], [_, disturbed]] = [self.waits(0, 1)?, self.waits(0, 2)?];
        let vgg19 = at_800.model_share("vgg19");
        Some(vec![
            Claim::new(
                "SLO 250 ms, the thesis' plans of WSM-MILP: goodput falls from 3000 to 4000 requests/s",
                format!(
                    "{} requests/s",
                    format_rates(&[at_600.goodput(), at_800.goodput()])
                ),
                at_800.goodput() < at_600.goodput(),
            ),
            Claim::new(
                "with them densenet121 waits a little at its worker at 600 requests/s, and very long at 800",
                format!(
                    "95th percentile {before:.0} ms, then {after:.0} ms, with the clients that table 4.1 measured at 800 requests/s; {fitted_before:.0} ms, then \
                     {fitted:.0} ms with the calibrated world's, which reach less (below)"
                ),
                before < 25.0 && after > 250.0,
            ),
            Claim::new(
                "because its reserve is minimal, and even slight interference takes it",
                format!(
                    "with the calibrated world's clients {fitted:.0} → {slight:.0} → {disturbed:.0} ms at 800 requests/s if replicas slow each other by 0, 10, 30 % per 100 % of SM \
                     utilisation beside them"
                ),
                slight > 1.5 * fitted && disturbed > 250.0,
            ),
            Claim::new(
                "and vgg19, with batches of 128 at 800 requests/s, misses its SLO nearly always",
                format!("{:.0} % of its requests within the SLO", 100.0 * vgg19),
                vgg19 < 0.1,
            ),
        ])
    }

    /// Returns a figure of densenet121: the stages with WSM-MILP, and the batch sizes with AO-MILP.
    fn densenet121(&self) -> Option<Figure> {
        let mut stages = runs::stages_chart("stages, WSM-MILP", 250.0);
        let trials = self.client_trials(MEASURED, 0)?;
        for (trial, label) in trials.into_iter().zip(["600/s", "800/s"]) {
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
        let series = Series::from_labels(["600 requests/s", "1000 requests/s"]);
        let mut batches = runs::batch_sizes_chart("batch sizes, AO-MILP", series);
        for (i, sweep) in [&self.moderate, &self.highest].into_iter().enumerate() {
            let trial = sweep.trial(0, AO_MILP, Discipline::FixedWait)?;
            batches
                .curves
                .push(runs::batch_sizes(i, trial.first_report(DENSENET)?));
        }
        Some(Figure {
            title: "densenet121 on four GPUs, the thesis' plans and router".to_owned(),
            notes: vec![
                "calibrated world; stages: means over the seeds, clients of table 4.1; batches of seed 1".to_owned(),
            ],
            columns: 2,
            panels: vec![Panel::Bars(stages), Panel::Lines(batches)],
        })
    }
}

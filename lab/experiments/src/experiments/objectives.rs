//! The price of each objective of `goodput` where many models share few devices.

use packhorse_cluster::{Discipline, Objective};
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    page::Page,
    plan_cache::PlanCache,
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting, root},
    sweep::Sweep,
    thesis::GOODPUT,
};

pub(crate) struct Objectives;

/// The share of a model's requests in time below which it counts as short.
const SHORT: f64 = 0.1;
/// The ways to run replicas, as a row names them, and whether devices have pools.
const WORKERS: [(&str, bool); 2] = [("own", false), ("as planned", true)];
const OBJECTIVES: [Objective; 3] = [Objective::Goodput, Objective::MaxMin, Objective::Blend];

/// The crowds, with numbers of devices that are nearly enough and far too few.
const CROWDS: [(&str, &str, &[u32]); 1] = [("thirty models", "crowd/thirty.toml", &[8, 6, 4])];

/// The results with one objective, as means of the seeds.
#[derive(Default)]
struct Served {
    /// The percentage of all requests in time.
    all: f64,
    /// The percentage of the worst-served model's requests in time.
    worst: f64,
    /// The number of models without a request in time.
    at_zero: f64,
    /// The number of models with less than [`SHORT`] of their requests in time.
    short: f64,
}

impl Experiment for Objectives {
    fn name(&self) -> &'static str {
        "objectives"
    }

    fn title(&self) -> &'static str {
        "The price of an objective"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let mut page = new_page(self);
        page.paragraph(&format!(
            "The three objectives of `{GOODPUT}` where many models share few devices (`scenarios/crowd`).\n\
             *Own* is a worker for each replica; *as planned* is the default, by which devices may decide among all their models (`pool = \"auto\"`).\n\
             `goodput` serves as many requests as possible, `max-min` first raises the served share of the worst-served model, and `blend` weighs both equally.\n\
             *All* and *worst* are the percentages of all requests, and of the worst-served model's requests, that are answered within the SLO.\n\
             *At zero* is the number of models without a request in time, *below 10 %* the number of those with less than one request in ten in time.\n\
             Means of {} seeds, dispatched by `deadline`, in the nominal world.",
            runner.seeds.len(),
        ));
        for (name, file, devices) in CROWDS {
            page.heading(&format!("{}{}", name[..1].to_uppercase(), &name[1..]));
            page.table(&table(file, devices, runner)?);
        }
        Ok((page, None))
    }
}

/// Returns the table of a crowd, with a row for each number of devices and objective.
fn table(file: &str, devices: &[u32], runner: &Runner) -> anyhow::Result<String> {
    let ways = WORKERS
        .iter()
        .flat_map(|way| OBJECTIVES.map(|objective| (way, objective)));
    let rows = { devices.iter() }.flat_map(|devices| ways.clone().map(move |way| (*devices, way)));
    let rows: Vec<_> = rows.collect();
    let rows = rows
        .into_par_iter()
        .map(|(devices, ((workers, pools), objective))| {
            let served = serve(file, devices, *pools, objective, runner)?;
            Ok(format!(
                "| {devices} | {workers} | `{objective}` | {:.1} | {:.1} | {:.1} | {:.1} |\n",
                served.all, served.worst, served.at_zero, served.short,
            ))
        });
    let rows = rows.collect::<anyhow::Result<String>>()?;
    let header = "| devices | workers | objective | all | worst | at zero | below 10 % |\n|---|---|---|--:|--:|--:|--:|\n";
    Ok(format!("{header}{rows}"))
}

/// Plans a crowd for an objective, and simulates the plan with each seed.
fn serve(
    file: &str,
    devices: u32,
    pools: bool,
    objective: Objective,
    runner: &Runner,
) -> anyhow::Result<Served> {
    let setting = Setting::file(root().join("scenarios").join(file))
        .with_devices(devices)
        .with_pools(pools);
    let scenario = setting.scenario(Calibration::Nominal)?;
    let planner = Planner::from_policy(GOODPUT).with_objective(objective);
    let plan = planner.plan(&scenario, Discipline::Deadline, &PlanCache::default())?;
    let mut served = Served::default();
    let part = 1.0 / runner.seeds.len() as f64;
    for &seed in &runner.seeds {
        let report = planner.run(&scenario, &plan, Discipline::Deadline.into(), seed)?;
        let requested = report.models.iter().filter(|model| model.offered_rps > 0.0);
        let shares: Vec<f64> = requested
            .map(|model| model.goodput_rps / model.offered_rps)
            .collect();
        let below = |limit: f64| shares.iter().filter(|share| **share < limit).count() as f64;
        served.all += part * 100.0 * report.totals.goodput_rps / report.totals.offered_rps;
        served.worst += part * 100.0 * shares.iter().copied().fold(1.0, f64::min);
        served.at_zero += part * below(f64::MIN_POSITIVE);
        served.short += part * below(SHORT);
    }
    Ok(served)
}

//! Whole clusters whose load changes, planned with measured rates, with declared averages, and by an oracle that knows the future.

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::{
    Discipline, ModelIndex, PlannedReplica, Problem, RateMode, RequestsPerSecond, Time,
};
use packhorse_placement::{Budget, PlanningOptions, PolicyEntry, policy};
use packhorse_simulator::{
    PlanReport, Rate, Replanning, Report, Scenario, simulate, simulate_replanning,
};
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    intervals::Interval,
    page::{Claim, Page},
    planner::REPLAN_STEPS,
    recorded::columns,
    runner::Runner,
    setting::{Calibration, Setting, root},
    sweep::Sweep,
    thesis::GOODPUT,
};

pub(crate) struct MeasuredRates;

/// The policies.
const POLICIES: [&str; 3] = [GOODPUT, "nexus", "wao-usher"];
/// The loss against the declared averages that counts as none, in points.
const ALLOWED_LOSS: f64 = 0.5;
/// The number of seeds. The runs are long: millions of requests each.
const SEEDS: usize = 1;

/// The knowledge of the rates with which a run plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// The average of each model over the whole run, in one plan.
    Declared,
    /// The measured rate of each model, but never less than its average: mode `max`, the default.
    Max,
    /// The measured rate of each model: mode `measured`.
    Measured,
    /// The true rates of the near future.
    Oracle,
}

impl Knowledge {
    const ALL: [Self; 4] = [Self::Declared, Self::Max, Self::Measured, Self::Oracle];
}

/// A load, and the cluster that it meets.
struct Case {
    name: &'static str,
    /// The scenario, in which each model declares the average of its rate.
    scenario: Scenario,
    /// The time between two plans.
    every: Duration,
    /// The time that the oracle knows ahead.
    foresight: Duration,
}

impl Case {
    /// Returns a case whose models have these rates over time.
    fn new(
        name: &'static str,
        mut scenario: Scenario,
        rates: impl IntoIterator<Item = Rate>,
        window: Duration,
        [every, foresight]: [u64; 2],
    ) -> Self {
        for (workload, rate) in scenario.workloads.iter_mut().zip(rates) {
            workload.rate = rate;
        }
        scenario.simulation.warmup = Duration::ZERO;
        scenario.simulation.window = window;
        let end = Time::ZERO + window;
        for model in 0..scenario.problem.models.len() {
            let mean = scenario.mean_rate(ModelIndex(model), Time::ZERO, end);
            scenario.problem.models[model].rate = rps(mean);
        }
        Self {
            name,
            scenario,
            every: Duration::from_secs(every),
            foresight: Duration::from_secs(foresight),
        }
    }

    fn run(
        &self,
        policy: &PolicyEntry,
        first: &[PlannedReplica],
        knowledge: Knowledge,
        seed: u64,
    ) -> anyhow::Result<Report> {
        let scenario = &self.scenario;
        let plan = PlanReport::from_replicas(scenario, first);
        let (deadline, progress) = (Discipline::Deadline, &mut |_: Time| {});
        let foresight = match knowledge {
            Knowledge::Declared => {
                let report = simulate(scenario, plan, first, deadline, seed, progress);
                return Ok(report?);
            }
            Knowledge::Max | Knowledge::Measured => None,
            Knowledge::Oracle => Some(self.foresight),
        };
        let options = PlanningOptions::default();
        let mut replan = |problem: &Problem| {
            let mut budget = Budget::new(REPLAN_STEPS, &|| false);
            policy.place_with(problem, &options, &mut budget).ok()
        };
        let estimate = Some(packhorse_placement::estimate as _);
        let replanning = Replanning {
            foresight,
            rate_mode: match knowledge {
                Knowledge::Max => RateMode::Max,
                _ => RateMode::Measured,
            },
            ..Replanning::new(self.every, estimate, &mut replan)
        };
        Ok(simulate_replanning(
            scenario, plan, first, deadline, seed, replanning, progress,
        )?)
    }
}

fn rps(rate: f64) -> RequestsPerSecond {
    RequestsPerSecond::new(rate).expect("a mean of rates is a rate")
}

/// Returns a rate with a step at the end of each period, of the mean `mean`.
fn stepwise(counts: &[u64], period: Duration, mean: f64) -> Rate {
    let sum: u64 = counts.iter().sum();
    let scale = mean * counts.len() as f64 / sum.max(1) as f64;
    let level = |count: u64| rps(count as f64 * scale);
    let mut rate = Rate::constant(level(counts[0]));
    for (i, &count) in (1_u32..).zip(&counts[1..]) {
        let appended = rate.append_change(Time::ZERO + period * i, Duration::ZERO, level(count));
        assert!(appended, "periods are in order");
    }
    rate
}

/// Returns the counts of a column, summed over periods of this many.
fn sums(counts: &[u64], of: usize) -> Vec<u64> {
    counts.chunks(of).map(|chunk| chunk.iter().sum()).collect()
}

/// The evening: a load that moves from one model to the other, as in its scenario.
fn evening() -> anyhow::Result<Case> {
    let scenario =
        Setting::file(root().join("scenarios/ramp/evening.toml")).scenario(Calibration::Nominal)?;
    let workloads = scenario.workloads.iter();
    let rates: Vec<Rate> = workloads.map(|workload| workload.rate.clone()).collect();
    let window = scenario.simulation.window;
    Ok(Case::new("evening", scenario, rates, window, [2, 4]))
}

/// Forty minutes of the Azure Functions trace, striped over the five vision models.
fn functions(
    name: &'static str,
    gpus: usize,
    first_minute: usize,
    mean: f64,
) -> anyhow::Result<Case> {
    const MINUTES: usize = 40;
    let scenario = Setting::with_gpus("6.1", gpus).scenario(Calibration::Nominal)?;
    let stripes = columns("functions2019-day.csv")?;
    let minute = Duration::from_mins(1);
    let models = scenario.problem.models.len();
    let rates = (0..models).map(|model| {
        let minutes = first_minute..first_minute + MINUTES;
        let of_model = |minute: usize| {
            let stripes = stripes.iter().skip(model).step_by(models);
            stripes.map(|(_, counts)| counts[minute]).sum()
        };
        stepwise(&minutes.map(of_model).collect::<Vec<u64>>(), minute, mean)
    });
    let rates: Vec<Rate> = rates.collect();
    Ok(Case::new(
        name,
        scenario,
        rates,
        minute * MINUTES as u32,
        [5, 30],
    ))
}

/// The hour of the Azure LLM traces, as load of two language models beside two vision models whose load does not change.
fn language_models(gpus: usize, mean: f64) -> anyhow::Result<Case> {
    const PERIOD: usize = 10;
    let scenario = Setting::with_gpus("6.10", gpus).scenario(Calibration::Nominal)?;
    let mut recorded = columns("llm2023-hour.csv")?.into_iter();
    let period = Duration::from_secs(PERIOD as u64);
    let mut window = Duration::ZERO;
    let models = scenario.problem.models.iter();
    let rates = models.map(|model| {
        let name = model.id.name.as_str();
        let recorded = (name == "bert" || name == "gpt2").then(|| recorded.next());
        match recorded.flatten() {
            Some((_, counts)) => {
                let counts = sums(&counts, PERIOD);
                window = period * counts.len() as u32;
                stepwise(&counts, period, mean)
            }
            None => Rate::constant(rps(mean)),
        }
    });
    let rates: Vec<Rate> = rates.collect();
    Ok(Case::new("LLM hour", scenario, rates, window, [5, 30]))
}

/// Returns all cases.
fn cases() -> anyhow::Result<Vec<Case>> {
    Ok(vec![
        evening()?,
        functions("functions, night, 2 GPUs", 2, 0, 160.0)?,
        functions("functions, noon, 3 GPUs", 3, 720, 240.0)?,
        language_models(3, 150.0)?,
    ])
}

/// The runs of one policy in a case.
struct Row {
    case: usize,
    policy: &'static str,
    /// One report per seed, for each of [`Knowledge::ALL`].
    reports: Vec<Vec<Report>>,
}

impl Row {
    /// Returns the share of the requests in time with each seed, in percent.
    fn shares(&self, knowledge: Knowledge) -> Vec<f64> {
        let reports = &self.reports[knowledge as usize];
        let totals = reports.iter().map(|report| report.totals);
        totals
            .map(|totals| 100.0 * totals.goodput_rps / totals.offered_rps)
            .collect()
    }

    /// Returns the points gained over the declared averages.
    fn gain(&self, knowledge: Knowledge) -> Interval {
        Interval::of_differences(&self.shares(knowledge), &self.shares(Knowledge::Declared))
    }

    /// Returns the mean number of adopted plans, and of those that were not worth it.
    fn plans(&self, knowledge: Knowledge) -> [f64; 2] {
        let reports = &self.reports[knowledge as usize];
        let count = reports.len() as f64;
        let replanning = || reports.iter().filter_map(|report| report.replanning);
        let changed: u64 = replanning().map(|replanning| replanning.changed).sum();
        let rejected: u64 = replanning().map(|replanning| replanning.rejected).sum();
        [changed as f64 / count, rejected as f64 / count]
    }
}

/// Runs every policy in every case.
fn rows(cases: &[Case], seeds: &[u64]) -> anyhow::Result<Vec<Row>> {
    let keys = (0..cases.len()).flat_map(|case| POLICIES.map(|policy| (case, policy)));
    let keys: Vec<(usize, &'static str)> = keys.collect();
    let rows = keys.into_par_iter().map(|(case, name)| {
        let (policy, options) = (policy(name)?, PlanningOptions::default());
        let problem = &cases[case].scenario.problem;
        let first = policy.place_with(problem, &options, &mut Budget::unlimited())?;
        let of_knowledge = |knowledge: Knowledge| {
            let runs = seeds.par_iter();
            let runs = runs.map(|&seed| cases[case].run(policy, &first.replicas, knowledge, seed));
            runs.collect::<anyhow::Result<Vec<Report>>>()
        };
        let reports = Knowledge::ALL.map(of_knowledge).into_iter();
        Ok(Row {
            case,
            policy: name,
            reports: reports.collect::<anyhow::Result<_>>()?,
        })
    });
    rows.collect()
}

impl Experiment for MeasuredRates {
    fn name(&self) -> &'static str {
        "measured-rates"
    }

    fn title(&self) -> &'static str {
        "Plans from measured rates"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let cases = cases()?;
        let seeds: Vec<u64> = runner.seeds.iter().copied().take(SEEDS).collect();
        let rows = rows(&cases, &seeds)?;
        let mut page = new_page(self);
        page.paragraph(&format!(
            "The control plane of the gateway in simulated clusters whose load changes, nominal, dispatched by `deadline`. Seeds {seeds:?}."
        ));
        page.paragraph(
            "* *declared*: one plan for the average rate of each model over the whole run, which nobody knows beforehand.\n\
             * `measured`: the run begins with the same plan, and the control plane plans again with the rates that it measures, where that is \
             worth the cost of moving.\n\
             * `max`, the default: as `measured`, but never with less than the average rate.\n\
             * *oracle*: as `measured`, with the true rates of the near future in place of the measured ones.",
        );
        page.paragraph(
            "*evening*: `scenarios/ramp/evening.toml`. *functions*: forty minutes of the Azure Functions trace by minute, striped over the five vision models of figure 6.1. \
             *LLM hour*: the arrivals of two Azure language models by ten seconds as the load of bert and gpt2, beside two vision models with a constant load. Arrivals \
             within a period are Poisson (sources: `scenarios/azure/README.md`).",
        );
        page.targets(&targets(&cases, &rows));
        page.heading("Requests in time");
        page.paragraph(
            "In percent of the offered requests, and the points gained over *declared*.",
        );
        page.table(&share_table(&cases, &rows)?);
        page.heading("Plans");
        page.paragraph("The mean number of adopted plans in a run / of those that were not worth the cost of moving.");
        page.table(&plan_table(&cases, &rows)?);
        Ok((page, None))
    }
}

fn targets(cases: &[Case], rows: &[Row]) -> Vec<Claim> {
    let claim = |mode: &str, knowledge: Knowledge| {
        let gain = |row: &&Row| row.gain(knowledge).mean;
        let worst = rows.iter().min_by(|a, b| gain(a).total_cmp(&gain(b)));
        let worst = worst.expect("there are rows");
        Claim::new(
            format!(
                "{mode} nowhere loses more than {ALLOWED_LOSS} points against the declared averages"
            ),
            format!(
                "{:+.2} points at the least: {}, `{}`",
                gain(&worst),
                cases[worst.case].name,
                worst.policy
            ),
            gain(&worst) >= -ALLOWED_LOSS,
        )
    };
    vec![
        claim("`max`", Knowledge::Max),
        claim("`measured`", Knowledge::Measured),
    ]
}

fn share_table(cases: &[Case], rows: &[Row]) -> anyhow::Result<String> {
    let mut table = String::from(
        "| | policy | declared | `max` | `measured` | oracle | points by `max` | points by `measured` | points by the oracle |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        let [declared, max, measured, oracle] =
            Knowledge::ALL.map(|knowledge| Interval::new(&row.shares(knowledge)).mean);
        writeln!(
            table,
            "| {} | `{}` | {declared:.1} | {max:.1} | {measured:.1} | {oracle:.1} | {} | {} | {} |",
            cases[row.case].name,
            row.policy,
            row.gain(Knowledge::Max),
            row.gain(Knowledge::Measured),
            row.gain(Knowledge::Oracle),
        )?;
    }
    Ok(table)
}

fn plan_table(cases: &[Case], rows: &[Row]) -> anyhow::Result<String> {
    let mut table = String::from(
        "| | policy | minutes | `max` | `measured` | oracle |\n|---|---|---:|---:|---:|---:|\n",
    );
    for row in rows {
        let [max, measured, oracle] =
            [Knowledge::Max, Knowledge::Measured, Knowledge::Oracle].map(|knowledge| {
                let [adopted, rejected] = row.plans(knowledge);
                format!("{adopted:.1} / {rejected:.1}")
            });
        let minutes = cases[row.case].scenario.simulation.window.as_secs_f64() / 60.0;
        writeln!(
            table,
            "| {} | `{}` | {minutes:.0} | {max} | {measured} | {oracle} |",
            cases[row.case].name, row.policy
        )?;
    }
    Ok(table)
}

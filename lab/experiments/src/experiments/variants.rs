//! Variants: models that answer the same requests with different accuracy and cost, at a load that one of them cannot carry.

use std::fmt::Write as _;

use packhorse_cluster::{PlannedReplica, RequestsPerSecond, VariantMix};
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_placement::{Budget, PlanningOptions, policy};
use packhorse_simulator::{Rate, Report, Scenario};
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    runner::{Runner, simulate_plan},
    setting::{Calibration, Setting, root},
    sweep::Sweep,
    thesis::GOODPUT,
};

pub(crate) struct Variants;

/// The planned loads, in requests/s.
const LOADS: [f64; 6] = [1000.0, 2000.0, 3000.0, 4000.0, 6000.0, 8000.0];
/// The offered loads over the planned one, with their names.
const OFFERED: [(&str, f64); 2] = [("as planned", 1.0), ("1.4 times", 1.4)];
/// The steps of the policy for a plan.
const STEPS: u64 = 20_000;

/// The way in which requests find a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Only this variant is there, counted from the most accurate one.
    Only(usize),
    /// Each variant gets its planned share of the requests, whatever the others do, as in Proteus between two decisions.
    Shares,
    /// The same plan; each request goes to the most accurate variant that can answer it in time.
    Family,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Only(0),
        Self::Only(1),
        Self::Only(2),
        Self::Shares,
        Self::Family,
    ];

    fn label(self, scenario: &Scenario) -> String {
        let variants = &scenario.families[0].variants;
        match self {
            Self::Only(i) => {
                let model = &scenario.problem.models[variants[i].model.0];
                format!("{} only", model.id.name)
            }
            Self::Shares => "planned shares".to_owned(),
            Self::Family => "family".to_owned(),
        }
    }
}

/// A plan for a load.
struct Plan {
    /// The rates of the variants, the most accurate first.
    rates: Vec<f64>,
    replicas: Vec<PlannedReplica>,
    /// The predicted goodput, in requests/s.
    goodput: f64,
    /// The predicted goodput of each variant times its accuracy, in requests/s.
    accurate: f64,
}

impl Plan {
    fn new(scenario: &Scenario, rates: Vec<f64>) -> anyhow::Result<Self> {
        let scenario = with_rates(scenario, &rates, 1.0)?;
        let mut budget = Budget::new(STEPS, &|| false);
        let plan = policy(GOODPUT)?.place_with(
            &scenario.problem,
            &PlanningOptions::default(),
            &mut budget,
        )?;
        let variants = scenario.families[0].variants.iter();
        let (mut goodput, mut accurate) = (0.0, 0.0);
        for variant in variants {
            let predicted = plan.models[variant.model.0].goodput.get();
            goodput += predicted;
            accurate += predicted * variant.accuracy.get() / 100.0;
        }
        Ok(Self {
            rates,
            goodput,
            accurate,
            replicas: plan.replicas,
        })
    }

    /// Returns the plan for a load that the gateway would make: for the mix of variants whose predicted answers are right most often.
    fn best(scenario: &Scenario, load: f64) -> anyhow::Result<Self> {
        let variants = scenario.families[0].variants.len();
        let place = |mix: VariantMix| {
            let parts = mix.parts(variants).into_iter();
            Self::new(scenario, parts.map(|part| part * load).collect())
        };
        let is_enough = |plan: &Self| plan.goodput >= VariantMix::FULLY_SERVED * load;
        let found = VariantMix::find(place, is_enough, |plan| plan.accurate)?;
        Ok(found.plan)
    }

    /// Returns the plan for a load that one variant gets alone.
    fn only(scenario: &Scenario, load: f64, variant: usize) -> anyhow::Result<Self> {
        let mut rates = vec![0.0; scenario.families[0].variants.len()];
        rates[variant] = load;
        Self::new(scenario, rates)
    }
}

/// Returns the scenario with these rates of the variants, times a factor.
fn with_rates(scenario: &Scenario, rates: &[f64], factor: f64) -> anyhow::Result<Scenario> {
    let mut scenario = scenario.clone();
    for (variant, rate) in scenario.families[0].variants.iter().zip(rates) {
        let rate = RequestsPerSecond::new(rate * factor)?;
        scenario.problem.models[variant.model.0].rate = rate;
        scenario.workloads[variant.model.0].rate = Rate::constant(rate);
    }
    Ok(scenario)
}

/// The mean results of a way over seeds.
struct Row {
    load: f64,
    offered: usize,
    way: Way,
    /// The requests that were answered in time, in percent of those offered.
    in_time: f64,
    /// The mean accuracy of these answers, in percent.
    accuracy: f64,
    /// The accurate answers in time, in requests/s.
    accurate: f64,
}

impl Row {
    fn new(
        scenario: &Scenario,
        (load, offered, way): (f64, usize, Way),
        plan: &Plan,
        seeds: &[u64],
    ) -> anyhow::Result<Self> {
        let variants = &scenario.families[0].variants;
        let mut run = with_rates(scenario, &plan.rates, OFFERED[offered].1)?;
        if way != Way::Family {
            run.families.clear();
        }
        let mut row = Self {
            load,
            offered,
            way,
            in_time: 0.0,
            accuracy: 0.0,
            accurate: 0.0,
        };
        for &seed in seeds {
            let report: Report = simulate_plan(&run, &plan.replicas, seed)?;
            let goodput = report.totals.goodput_rps;
            let accurate = variants.iter().map(|variant| {
                report.models[variant.model.0].goodput_rps * variant.accuracy.get() / 100.0
            });
            let accurate: f64 = accurate.sum();
            let part = 1.0 / seeds.len() as f64;
            row.in_time += part * 100.0 * goodput / report.totals.offered_rps;
            row.accuracy += part * 100.0 * accurate / goodput.max(f64::MIN_POSITIVE);
            row.accurate += part * accurate;
        }
        Ok(row)
    }
}

/// Returns the rows of one planned load.
fn rows(scenario: &Scenario, load: f64, seeds: &[u64]) -> anyhow::Result<Vec<Row>> {
    let best = Plan::best(scenario, load)?;
    let mut rows = Vec::new();
    for way in Way::ALL {
        let only;
        let plan = match way {
            Way::Only(variant) => {
                only = Plan::only(scenario, load, variant)?;
                &only
            }
            Way::Shares | Way::Family => &best,
        };
        for offered in 0..OFFERED.len() {
            rows.push(Row::new(scenario, (load, offered, way), plan, seeds)?);
        }
    }
    Ok(rows)
}

impl Experiment for Variants {
    fn name(&self) -> &'static str {
        "variants"
    }

    fn title(&self) -> &'static str {
        "Variants of a model"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let file = root().join("scenarios/variants/classifiers.toml");
        let scenario = Setting::file(file).scenario(Calibration::Nominal)?;
        let of_loads = LOADS
            .par_iter()
            .map(|&load| rows(&scenario, load, &runner.seeds));
        let of_loads: Vec<Vec<Row>> = of_loads.collect::<anyhow::Result<_>>()?;
        let rows: Vec<Row> = of_loads.into_iter().flatten().collect();
        let mut page = new_page(self);
        page.paragraph(&format!(
            "Three classifiers answer the same requests on four GPUs (`scenarios/variants/classifiers.toml`): efficientnet_b7 is right in 84.1 % of the cases, resnext50_32x4d in 77.6 %, mobilenet_v2 in \
             71.9 %, and each is several times as cheap as the one before. Who serves only the accurate one turns requests away under load, and who serves only the cheap one gives accuracy away. \
             *Family*: a request goes to the most accurate variant that can answer it in time (`family`, `accuracy` in a scenario; INFaaS, Romero et al., ATC 2021), at its arrival or when it has waited in vain. \
             *Planned shares*: the same plan, but each variant has a fixed share of the requests, as in Proteus (Ahmad et al., ASPLOS 2024) between two decisions. The plan of both is that of `{GOODPUT}` for the mix of \
             variants whose predicted answers are right most often, found as the gateway finds it (at most eight plans). *Accurate*: answers within the SLO of 200 ms, each counted by the accuracy of its variant. Nominal world, `deadline`, {} seeds.",
            runner.seeds.len()
        ));
        page.targets(&targets(&rows));
        page.figure("accurate", &figure(&scenario, &rows));
        page.table(&table(&scenario, &rows)?);
        page.paragraph(&format!(
            "Where {} the planned load comes, the plan no longer fits: the family gives between {:+.1} % (at worst) and far more accurate answers than planned shares, which turn away what the accurate variants \
             cannot take while others have time left. But a plan with more replicas of the cheapest variant would serve more (mobilenet_v2 alone: at worst {:+.1} %), since variants share devices, and an answer of an accurate one takes \
             the time of several cheap ones. Choosing per request does not replace planning anew.",
            OFFERED[1].0,
            least_gain(&rows, 1, &[Way::Shares]),
            least_gain(&rows, 1, &[Way::Only(2)]),
        ));
        page.csv(csv(&scenario, &rows)?);
        Ok((page, None))
    }
}

fn find(rows: &[Row], load: f64, offered: usize, way: Way) -> Option<&Row> {
    let mut rows = rows.iter();
    rows.find(|row| row.load.total_cmp(&load).is_eq() && row.offered == offered && row.way == way)
}

/// Returns the least gain in accurate answers of the family over other ways, in percent, where this load is offered.
fn least_gain(rows: &[Row], offered: usize, others: &[Way]) -> f64 {
    let accurate = |load, way| find(rows, load, offered, way).map_or(0.0, |row| row.accurate);
    let gains = LOADS.iter().flat_map(|&load| {
        let family = accurate(load, Way::Family);
        let others = others.iter();
        others.map(move |&way| 100.0 * (family / accurate(load, way) - 1.0))
    });
    gains.fold(f64::INFINITY, f64::min)
}

fn targets(rows: &[Row]) -> Vec<Claim> {
    let claim = |what: &str, others: &[Way]| {
        let gain = least_gain(rows, 0, others);
        Claim::new(
            format!(
                "at the planned load a family gives as many accurate answers in time as {what}, minus 1 %"
            ),
            format!("at worst {gain:+.1} %"),
            gain >= -1.0,
        )
    };
    vec![
        claim("each of its variants alone", &Way::ALL[..3]),
        claim("planned shares", &[Way::Shares]),
    ]
}

fn table(scenario: &Scenario, rows: &[Row]) -> anyhow::Result<String> {
    let mut table = String::from(
        "| planned, requests/s | offered | | in time | accuracy | accurate/s |\n|---:|---|---|---:|---:|---:|\n",
    );
    for row in rows {
        let (way, offered) = (row.way.label(scenario), OFFERED[row.offered].0);
        writeln!(
            table,
            "| {:.0} | {offered} | {way} | {:.1} % | {:.1} % | {:.0} |",
            row.load, row.in_time, row.accuracy, row.accurate
        )?;
    }
    Ok(table)
}

fn csv(scenario: &Scenario, rows: &[Row]) -> anyhow::Result<String> {
    let mut csv = String::from(
        "planned_rps,offered_over_planned,way,in_time_pct,accuracy_pct,accurate_rps\n",
    );
    for row in rows {
        writeln!(
            csv,
            "{},{},{},{:.3},{:.3},{:.3}",
            row.load,
            OFFERED[row.offered].1,
            row.way.label(scenario),
            row.in_time,
            row.accuracy,
            row.accurate
        )?;
    }
    Ok(csv)
}

fn figure(scenario: &Scenario, rows: &[Row]) -> Figure {
    let labels = Way::ALL.map(|way| way.label(scenario));
    let charts = OFFERED.iter().enumerate().map(|(offered, (name, _))| {
        let curve = |(series, way): (usize, &Way)| Curve {
            series,
            stroke: Stroke::Line,
            points: LOADS
                .iter()
                .filter_map(|&load| Some((load, find(rows, load, offered, *way)?.accurate)))
                .collect(),
        };
        Panel::Lines(LineChart {
            title: format!("offered: {name}"),
            x_axis: "planned, requests/s".to_owned(),
            y_axis: "accurate answers in time, 1/s".to_owned(),
            series: Series::from_labels(labels.iter().map(String::as_str)),
            curves: Way::ALL.iter().enumerate().map(curve).collect(),
            ..LineChart::default()
        })
    });
    Figure {
        title: "Accurate answers in time of variants, and of their family".to_owned(),
        notes: Vec::new(),
        columns: 2,
        panels: charts.collect(),
    }
}

//! The cheapest cluster of several kinds of device with prices, by the SLO of the models.

use std::fmt::Write as _;

use packhorse_cluster::{DeviceKind, Discipline, Problem};
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_placement::{Budget, PlanningOptions, SmallestCluster, policy, smallest_cluster};
use packhorse_simulator::Scenario;
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    page::Page,
    runner::{Runner, simulate_plan},
    setting::{Calibration, Setting, root},
    sweep::Sweep,
    thesis::GOODPUT,
};

pub(crate) struct Prices;

/// The scenario, with a group of devices for each kind.
const SCENARIO: &str = "scenarios/prices/vision.toml";
/// The SLOs of all models, in milliseconds.
const SLOS: [u32; 11] = [50, 55, 60, 65, 70, 75, 80, 90, 100, 150, 200];
/// The largest number of devices of a cluster: the default of `packhorse plan --max-devices`.
const MOST_DEVICES: usize = 64;
/// The label of the choice of all kinds.
const ALL: &str = "all kinds";

/// The cheapest cluster for an SLO, of one kind or of all.
struct Case {
    slo_ms: u32,
    /// The kind, or [`ALL`].
    kinds: String,
    /// The cluster and the part of the requests that are in time on it, in percent; none if no cluster serves the models.
    found: Option<(SmallestCluster, f64)>,
}

impl Case {
    fn cost(&self) -> Option<f64> {
        let (cluster, _) = self.found.as_ref()?;
        let devices = cluster.problem.devices.iter();
        devices.map(|device| device.cost_per_hour).sum()
    }

    /// Returns the number of devices of each kind, as text.
    fn devices(&self) -> String {
        let Some((cluster, _)) = &self.found else {
            return "–".to_owned();
        };
        let devices = &cluster.problem.devices;
        let kinds = kinds(&cluster.problem);
        let counts = kinds.iter().map(|kind| {
            let count = devices.iter().filter(|device| device.kind == *kind).count();
            format!("{count} × {kind}")
        });
        counts.collect::<Vec<_>>().join(", ")
    }
}

/// Returns the kinds of a problem's devices, each once.
fn kinds(problem: &Problem) -> Vec<DeviceKind> {
    let mut kinds: Vec<DeviceKind> = Vec::new();
    for device in &problem.devices {
        if !kinds.contains(&device.kind) {
            kinds.push(device.kind.clone());
        }
    }
    kinds
}

/// Finds the cheapest cluster of some of a scenario's kinds, and simulates its plan.
fn case(
    scenario: &Scenario,
    slo_ms: u32,
    only: Option<&DeviceKind>,
    seeds: &[u64],
) -> anyhow::Result<Case> {
    let options = PlanningOptions::default();
    let input = scenario.planning_input(GOODPUT.to_owned(), options.policy, Discipline::Deadline);
    let mut template = input.problem;
    template
        .devices
        .retain(|device| only.is_none_or(|only| device.kind == *only));
    template.current.clear();
    let found = smallest_cluster(
        policy(GOODPUT)?,
        &template,
        MOST_DEVICES,
        &options,
        &mut Budget::unlimited(),
        &mut |_| {},
    );
    let kinds = only.map_or_else(|| ALL.to_owned(), ToString::to_string);
    let Ok(cluster) = found else {
        return Ok(Case {
            slo_ms,
            kinds,
            found: None,
        });
    };
    let chosen = Scenario {
        problem: cluster.problem.clone(),
        ..scenario.clone()
    };
    let (mut in_time, mut offered) = (0.0, 0.0);
    for &seed in seeds {
        let totals = simulate_plan(&chosen, &cluster.plan.replicas, seed)?.totals;
        in_time += totals.goodput_rps;
        offered += totals.offered_rps;
    }
    let share = 100.0 * in_time / offered;
    Ok(Case {
        slo_ms,
        kinds,
        found: Some((cluster, share)),
    })
}

impl Experiment for Prices {
    fn name(&self) -> &'static str {
        "prices"
    }

    fn title(&self) -> &'static str {
        "The cheapest cluster by the SLO"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let scenario = |slo: u32| {
            let setting =
                Setting::file(root().join(SCENARIO)).with_models("slo_ms", i64::from(slo));
            setting.scenario(Calibration::Nominal)
        };
        let all = kinds(&scenario(SLOS[0])?.problem);
        let choices: Vec<Option<&DeviceKind>> = all.iter().map(Some).chain([None]).collect();
        let cases = SLOS.par_iter().flat_map(|&slo| {
            let choices = choices.par_iter();
            choices.map(move |only| case(&scenario(slo)?, slo, *only, &runner.seeds))
        });
        let cases: Vec<Case> = cases.collect::<anyhow::Result<_>>()?;
        let mut page = new_page(self);
        page.paragraph(&format!(
            "What the five vision models of figure 6.1 cost per hour at 500 requests/s each, by their SLO: on the cheapest cluster of one kind of device, and of all kinds.\n\
             The scenario is `{SCENARIO}`, whose kinds have list prices; `goodput` says what a cluster serves.\n\
             The profiles of the V100 are measured.\n\
             Those of the others are [estimated from operators](estimator.md) as `packhorse-lab profile estimate` does, and the error on these kinds is not known: \
             the figure shows how kinds and prices are weighed, and no truth about these devices.\n\
             One of its points, with the SLO of the file:"
        ));
        page.paragraph(&format!(
            "    packhorse-lab plan --scenario {SCENARIO} --min-cost"
        ));
        page.figure("cost", &figure(&cases, &all));
        page.heading("Clusters");
        page.paragraph(&format!(
            "*In time*: percent of the requests that are answered within the SLO when the plan is simulated, nominal, dispatched by `deadline`, with seeds {:?}.\n\
             *Certain*: every cheaper cluster was tried; others were found by bisection.\n\
             – where no cluster of up to {MOST_DEVICES} devices serves all models by the policy's prediction.",
            runner.seeds
        ));
        page.paragraph(
            "Each kind is also searched alone, so that all kinds together cost no more than one of them.\n\
             Where a cluster only just serves the load, the search of `goodput` may find the plan for it at one SLO and not at a weaker one: H100 at 80 ms.",
        );
        page.table(&table(&cases)?);
        Ok((page, None))
    }
}

fn table(cases: &[Case]) -> anyhow::Result<String> {
    let mut table = String::from(
        "| SLO | kinds | cheapest cluster | cost per hour | in time | certain |\n|--:|---|---|--:|--:|---|\n",
    );
    for case in cases {
        let cost = case
            .cost()
            .map_or_else(|| "–".to_owned(), |cost| format!("{cost:.2}"));
        let (share, certain) = case.found.as_ref().map_or_else(
            || ("–".to_owned(), "–"),
            |(cluster, share)| {
                let certain = if cluster.exhaustive { "yes" } else { "no" };
                (format!("{share:.1} %"), certain)
            },
        );
        writeln!(
            table,
            "| {} ms | {} | {} | {cost} | {share} | {certain} |",
            case.slo_ms,
            case.kinds,
            case.devices()
        )?;
    }
    Ok(table)
}

fn figure(cases: &[Case], all: &[DeviceKind]) -> Figure {
    let labels = all.iter().map(ToString::to_string);
    let labels: Vec<String> = labels.chain([ALL.to_owned()]).collect();
    let curves = labels.iter().enumerate().map(|(series, label)| {
        let of_label = cases.iter().filter(|case| case.kinds == *label);
        let points = of_label.filter_map(|case| Some((f64::from(case.slo_ms), case.cost()?)));
        Curve {
            series,
            stroke: Stroke::LineAndDots,
            points: points.collect(),
        }
    });
    let chart = LineChart {
        title: "cheapest cluster that serves all models".to_owned(),
        x_axis: "SLO in ms".to_owned(),
        y_axis: "US dollars per hour".to_owned(),
        curves: curves.collect(),
        series: Series::from_labels(labels.iter().map(String::as_str)),
        ..LineChart::default()
    };
    Figure {
        title: "The cost of five vision models by their SLO".to_owned(),
        notes: Vec::new(),
        columns: 1,
        panels: vec![Panel::Lines(chart)],
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use packhorse_cluster::{ProfileTable, known_kind};
    use packhorse_estimator::{Coefficients, DeviceSheet, dataset::graphs};

    use super::*;

    /// `PACKHORSE_BLESS=1 cargo test -p packhorse-experiments prices` rewrites the file.
    #[test]
    fn the_estimated_profiles_are_those_of_the_operators() {
        let lines = fs::read_to_string(root().join("profiles/operators/thesis.jsonl")).unwrap();
        let graphs = graphs(&lines).unwrap();
        let mut table = ProfileTable::default();
        for kind in ["T4", "H100-SXM5-80GB"] {
            let kind: DeviceKind = kind.parse().unwrap();
            let (memory, _) = known_kind(&kind).unwrap();
            let sheet = DeviceSheet::of(&kind).unwrap();
            for model in [
                "alexnet",
                "densenet121",
                "efficientnet_b7",
                "resnet50",
                "vgg19",
            ] {
                // Those that were measured on the V100.
                let sizes = [4, 8, 16, 32, 64, 128];
                let graph = &graphs[model];
                let profile = Coefficients::libtorch().profile(graph, &sheet, memory, &sizes);
                table.insert(model.parse().unwrap(), kind.clone(), profile.unwrap());
            }
        }
        let path = root().join("scenarios/prices/estimated.csv");
        #[expect(
            clippy::disallowed_methods,
            reason = "the developer asks for a new file"
        )]
        if std::env::var("PACKHORSE_BLESS").is_ok_and(|value| value == "1") {
            fs::write(&path, table.to_csv()).unwrap();
            return;
        }
        let committed = fs::read_to_string(&path).unwrap();
        assert_eq!(committed, table.to_csv(), "the file is stale");
    }
}

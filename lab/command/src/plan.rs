//! `packhorse-lab plan`: plans for a scenario, without a gateway.

use std::path::PathBuf;

use anyhow::bail;
use packhorse_cluster::{DeviceIndex, Discipline, PlannedReplica, Problem};
use packhorse_figures::plans;
use packhorse_placement::SmallestCluster;
use packhorse_simulator::{KeptReplicaReport, PlanReport, Scenario};
use packhorse_terminal::{
    context::Context,
    count, explanation,
    layout::{DeviceLayout, Layout, Measured, ModelLayout, ReplicaLayout},
    output::{self, format_number},
    policy_options::PolicyOptionArgs,
};
use serde::Serialize;

use super::{
    plot::PlotFile,
    scenario::{self, PlanningOutcome, PolicyName},
};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  packhorse-lab plan --scenario thesis.toml --policy usher
  packhorse-lab plan --scenario thesis.toml --policy usher --plot plan.svg
  packhorse-lab plan --scenario thesis.toml --policy usher --min-devices
  packhorse-lab plan --scenario scenarios/prices/vision.toml --min-cost
  packhorse-lab plan --scenario thesis.toml --policy goodput --explain")]
pub(crate) struct PlanArgs {
    /// Plan for the devices and models of this file
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Placement policy [default: that of the scenario, else goodput]
    #[arg(long, value_name = "POLICY")]
    policy: Option<PolicyName>,
    /// Dispatch discipline that the policy assumes [default: that of the scenario, else deadline]
    #[arg(long, value_name = "DISCIPLINE")]
    discipline: Option<Discipline>,
    /// Explain what limits each model that is not fully served, and which changes would suffice
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    options: PolicyOptionArgs,
    /// Draw the plan into this file: a bar per device with its replicas
    #[arg(long, value_name = "F.svg")]
    plot: Option<PlotFile>,
    /// Ignore the scenario's number of devices and find the smallest number that serves all models, or the cheapest devices if every
    /// kind has a cost per hour
    #[arg(long, group = "smallest")]
    min_devices: bool,
    /// Ignore the scenario's number of devices and find the cheapest devices that serve all models; every kind needs a cost per hour
    #[arg(long, group = "smallest")]
    min_cost: bool,
    /// Largest number of devices that --min-devices and --min-cost try
    #[arg(long, value_name = "N", requires = "smallest", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_devices: u32,
}

impl PlanArgs {
    /// Plans for the scenario, and prints and draws the plan.
    pub(crate) fn run(&self, context: &Context) -> anyhow::Result<()> {
        let scenario = scenario::read_scenario(&self.scenario)?;
        let policy = match &self.policy {
            Some(policy) => policy.clone(),
            None => scenario::default_policy(&scenario)?,
        };
        let options = &self.options;
        let searched = match (self.min_devices, self.min_cost) {
            (_, true) => Some(Searched::Cheapest),
            (true, false) => Some(Searched::Smallest),
            (false, false) => None,
        };
        let is_smallest = searched.is_some();
        if self.min_cost {
            check_costs(&scenario.problem)?;
        }
        let max_devices = is_smallest.then_some(self.max_devices as usize);
        let mut outcome = scenario::place(
            &scenario,
            &policy,
            options,
            self.discipline
                .unwrap_or_else(|| scenario::default_discipline(&scenario)),
            max_devices,
        )?;
        if self.explain {
            outcome.explanations =
                scenario::explain(&scenario, &policy, options, &outcome.cluster)?;
        }
        let scenario = Scenario {
            problem: outcome.cluster.problem.clone(),
            ..scenario
        };
        let report = plan_report(&scenario, &outcome);
        if let Some(plot) = &self.plot {
            plot.write(&plans::figure(&scenario, &report, options.creq)?)?;
        }
        let cluster = &outcome.cluster;
        let ignored: &[&'static str] = if is_smallest { &outcome.ignored } else { &[] };
        if context.json() && is_smallest {
            output::print_json(&smallest_report(cluster, report, ignored))
        } else if context.json() {
            output::print_json(&report)
        } else {
            print_text(cluster, &report, outcome.solve_ms, searched, ignored)
        }
    }
}

/// The plan of `--min-devices` as JSON: the report of the plan, and the devices that its numbers refer to.
#[derive(Serialize)]
struct SmallestReport {
    #[serde(flatten)]
    plan: PlanReport,
    /// The kinds, in the order that numbers the devices.
    devices: Vec<KindReport>,
    /// The cost of all devices; null if the cost of a kind is unknown.
    cost_per_hour: Option<f64>,
    /// True if every cheaper cluster was tried.
    exhaustive: bool,
    /// The parts of the scenario that the search ignores: families, backbones.
    ignored: Vec<&'static str>,
}

#[derive(Serialize)]
struct KindReport {
    kind: String,
    count: usize,
    cost_per_hour: Option<f64>,
}

/// Returns the report of a plan, with its explanations and the replicas that stay.
fn plan_report(scenario: &Scenario, outcome: &PlanningOutcome) -> PlanReport {
    let mut report = PlanReport::new(scenario, &outcome.cluster.plan, outcome.solve_ms);
    for (model, explanation) in report.models.iter_mut().zip(&outcome.explanations) {
        model.explanation = Some(explanation.clone());
    }
    report.kept = outcome.kept.iter().map(KeptReplicaReport::from).collect();
    report
}

fn print_text(
    cluster: &SmallestCluster,
    report: &PlanReport,
    solve_ms: f64,
    searched: Option<Searched>,
    ignored: &[&str],
) -> anyhow::Result<()> {
    let rate: f64 = report.models.iter().map(|model| model.rate_rps).sum();
    output::print_line(format!(
        "{} by {}: an expected goodput of {} of {} requests/s, {} on {} of {}",
        report.scenario,
        report.policy,
        format_number(report.predicted_goodput_rps),
        format_number(rate),
        count(report.replicas.len(), "replica"),
        report.devices_used,
        count(cluster.problem.devices.len(), "device"),
    ))?;
    if let Some(searched) = searched {
        output::print_line(cluster_line(cluster, searched))?;
    }
    if !ignored.is_empty() {
        output::print_line(format!(
            "the search ignores the scenario's {}: every model is served alone, at its own rate",
            ignored.join(" and ")
        ))?;
    }
    output::print_line(format!("made in {} ms\n", format_number(solve_ms)))?;
    output::print_line(layout(&cluster.problem, cluster, report).text())?;
    for kept in &report.kept {
        output::print_line(format!(
            "{} stays on {} with batches of {}",
            kept.model, kept.device, kept.batch_size
        ))?;
    }
    let explained = report
        .models
        .iter()
        .filter_map(|model| Some((model.name.clone(), model.explanation.as_ref()?)));
    explanation::print(explained)
}

fn cost_per_hour(problem: &Problem) -> Option<f64> {
    let costs = problem.devices.iter().map(|device| device.cost_per_hour);
    costs.sum()
}

/// Checks that the kinds of the scenario's devices have costs, so that clusters can be compared by them.
fn check_costs(problem: &Problem) -> anyhow::Result<()> {
    let unknown = problem
        .devices
        .iter()
        .find(|device| device.cost_per_hour.is_none());
    if let Some(device) = unknown {
        bail!(
            "--min-cost: the cost of {} is unknown: give its device group cost_per_hour",
            device.kind
        );
    }
    Ok(())
}

fn smallest_report(
    cluster: &SmallestCluster,
    plan: PlanReport,
    ignored: &[&'static str],
) -> SmallestReport {
    let kinds = scenario::count_kinds(&cluster.problem).into_iter();
    SmallestReport {
        plan,
        devices: kinds
            .map(|(device, count)| KindReport {
                kind: device.kind.to_string(),
                count,
                cost_per_hour: device.cost_per_hour,
            })
            .collect(),
        cost_per_hour: cost_per_hour(&cluster.problem),
        exhaustive: cluster.exhaustive,
        ignored: ignored.to_vec(),
    }
}

/// The cluster that is searched.
#[derive(Clone, Copy)]
enum Searched {
    /// The one with the fewest devices.
    Smallest,
    /// The one with the lowest cost.
    Cheapest,
}

fn cluster_line(cluster: &SmallestCluster, searched: Searched) -> String {
    let kinds = scenario::count_kinds(&cluster.problem).into_iter();
    let kinds: Vec<String> = kinds
        .map(|(device, count)| format!("{count} x {}", device.kind))
        .collect();
    let cost = cost_per_hour(&cluster.problem)
        .map_or(String::new(), |cost| format!(" at {cost:.2} per hour"));
    let (found, better) = match searched {
        Searched::Smallest => ("smallest", "smaller"),
        Searched::Cheapest => ("cheapest", "cheaper"),
    };
    let certainty = if cluster.exhaustive {
        format!("no {better} cluster serves every model with this policy")
    } else {
        format!("found by bisection: a {better} cluster may exist")
    };
    format!("{found} cluster: {}{cost}; {certainty}", kinds.join(", "))
}

fn layout(problem: &Problem, cluster: &SmallestCluster, report: &PlanReport) -> Layout {
    let replicas_of = |device: DeviceIndex| {
        let replicas = cluster.plan.replicas.iter().zip(&report.replicas);
        let on_device = replicas.filter(move |(replica, _)| replica.device == device);
        on_device
            .map(|(replica, reported)| ReplicaLayout {
                model: reported.model.clone(),
                batch_size: replica.batch_size,
                share_pct: reported.compute_share_pct,
                measured: measured(problem, replica),
            })
            .collect()
    };
    let name = |index: DeviceIndex| {
        let name = report.device_names.get(index.0).map(ToString::to_string);
        name.unwrap_or_else(|| index.0.to_string())
    };
    let devices = problem.devices().map(|(index, device)| DeviceLayout {
        name: name(index),
        kind: device.kind.to_string(),
        memory: Some(device.memory),
        replicas: replicas_of(index),
    });
    let models = report.models.iter().zip(&cluster.plan.models);
    let models = models.map(|(reported, forecast)| ModelLayout {
        name: reported.name.clone(),
        rate_rps: reported.rate_rps,
        predicted_goodput_rps: reported.predicted_goodput_rps,
        replicas: reported.replicas,
        shortfall: forecast.shortfall.as_ref().map(ToString::to_string),
    });
    Layout {
        devices: devices.collect(),
        models: models.collect(),
    }
}

fn measured(problem: &Problem, replica: &PlannedReplica) -> Option<Measured> {
    let profile = problem.profile(replica.model, replica.device)?;
    let seconds = profile.latency(replica.batch_size).as_secs_f64();
    Some(Measured {
        memory: profile.memory(replica.batch_size),
        latency_ms: seconds * 1e3,
        throughput: f64::from(replica.batch_size) / seconds,
    })
}

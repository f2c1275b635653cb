//! A plan for a scenario, shown.

use packhorse_cluster::{DeviceIndex, PlannedReplica, Problem};
use packhorse_placement::Cluster;
use packhorse_simulator::{PlanReport, Scenario};
use serde::Serialize;

use super::count;
use crate::{
    commands::{
        explanation,
        layout::{DeviceLayout, Layout, Measured, ModelLayout, ReplicaLayout},
        scenario::{self, Answer},
    },
    context::Context,
    output::{self, number},
};

#[derive(clap::Args)]
pub(super) struct SmallestArgs {
    /// Ignore how many devices there are, and plan on the smallest number that serves all: the cheapest where every kind of device
    /// has a cost per hour
    #[arg(long, requires = "scenario")]
    min_devices: bool,
    /// The most devices to think of
    #[arg(long, value_name = "N", requires = "min_devices", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_devices: u32,
}

impl SmallestArgs {
    /// The most devices, if the smallest cluster is wanted.
    pub(super) fn limit(&self) -> Option<usize> {
        self.min_devices.then_some(self.max_devices as usize)
    }
}

/// A plan on the smallest cluster: the plan's own report, and which devices its numbers stand for.
#[derive(Serialize)]
struct SmallestReport {
    #[serde(flatten)]
    plan: PlanReport,
    /// In the order that numbers the devices.
    devices: Vec<KindReport>,
    /// Of all devices; null where some kind has none.
    cost_per_hour: Option<f64>,
    /// Whether every cheaper cluster was tried.
    exhaustive: bool,
}

#[derive(Serialize)]
struct KindReport {
    kind: String,
    count: usize,
    cost_per_hour: Option<f64>,
}

/// What is told of the answer.
pub(super) fn report(scenario: &Scenario, answer: &Answer) -> PlanReport {
    let mut report = PlanReport::new(scenario, &answer.cluster.plan, answer.solve_ms);
    for (model, explanation) in report.models.iter_mut().zip(&answer.explanations) {
        model.explanation = Some(explanation.clone());
    }
    report
}

/// Writes a plan for people, or for programs.
pub(super) fn print(
    context: &Context,
    scenario: &Scenario,
    answer: &Answer,
    smallest: bool,
) -> anyhow::Result<()> {
    let Answer {
        cluster, solve_ms, ..
    } = answer;
    let report = report(scenario, answer);
    if context.json() && smallest {
        return output::json(&smallest_report(cluster, report));
    }
    if context.json() {
        return output::json(&report);
    }
    let rate: f64 = report.models.iter().map(|model| model.rate_rps).sum();
    output::line(format!(
        "{} by {}: {} of {} requests/s expected within their SLO, {} on {} of {}",
        report.scenario,
        report.policy,
        number(report.predicted_goodput_rps),
        number(rate),
        count(report.replicas.len(), "replica"),
        report.devices_used,
        count(cluster.problem.devices.len(), "device"),
    ))?;
    if smallest {
        output::line(smallest_line(cluster))?;
    }
    output::line(format!("made in {} ms\n", number(*solve_ms)))?;
    output::line(layout(&cluster.problem, cluster, &report).text())?;
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

fn smallest_report(cluster: &Cluster, plan: PlanReport) -> SmallestReport {
    let kinds = scenario::kinds(&cluster.problem).into_iter();
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
    }
}

fn smallest_line(cluster: &Cluster) -> String {
    let kinds = scenario::kinds(&cluster.problem).into_iter();
    let kinds: Vec<String> = kinds
        .map(|(device, count)| format!("{count} x {}", device.kind))
        .collect();
    let cost = cost_per_hour(&cluster.problem)
        .map_or(String::new(), |cost| format!(" at {cost:.2} an hour"));
    let how = if cluster.exhaustive {
        "no smaller cluster serves every model by this policy"
    } else {
        "found by bisection, so that a smaller one is not ruled out"
    };
    format!("smallest cluster: {}{cost}; {how}", kinds.join(", "))
}

fn layout(problem: &Problem, cluster: &Cluster, report: &PlanReport) -> Layout {
    let on_device = |device: DeviceIndex| {
        let replicas = cluster.plan.replicas.iter().zip(&report.replicas);
        let here = replicas.filter(move |(replica, _)| replica.device == device);
        here.map(|(replica, reported)| ReplicaLayout {
            model: reported.model.clone(),
            batch_size: replica.batch_size,
            share_pct: reported.compute_share_pct,
            measured: measured(problem, replica),
        })
        .collect()
    };
    let devices = problem.devices().map(|(index, device)| DeviceLayout {
        name: index.0.to_string(),
        kind: device.kind.to_string(),
        memory: Some(device.memory),
        replicas: on_device(index),
    });
    let models = report.models.iter().zip(&cluster.plan.models);
    let models = models.map(|(reported, forecast)| ModelLayout {
        name: reported.name.clone(),
        rate_rps: reported.rate_rps,
        predicted_goodput_rps: reported.predicted_goodput_rps,
        replicas: reported.replicas,
        shortfall: forecast.shortfall.clone(),
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

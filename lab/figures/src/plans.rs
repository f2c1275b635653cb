//! Charts and figures of plan reports.

use packhorse_cluster::{ComputeMetric, PlannedReplica, Problem, ProfileRow};
use packhorse_simulator::{PlanFileError, PlanReport, Scenario};

use crate::{DeviceBar, Figure, Panel, PlanChart, Segment, runs};

/// The largest number of devices in a figure.
const MAX_DEVICES: usize = 64;

/// The quantity that is the length of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// The compute share.
    Share,
    /// A measured use of the multiprocessors.
    Metric(ComputeMetric),
    /// The memory.
    Memory,
}

impl Measure {
    fn label(self) -> &'static str {
        match self {
            Self::Share => "compute share in %",
            Self::Metric(ComputeMetric::Achieved) => "highest achieved occupancy in %",
            Self::Metric(ComputeMetric::Mean) => "mean achieved occupancy in %",
            Self::Metric(ComputeMetric::Sm) => "mean SM utilisation in %",
            Self::Memory => "memory in %",
        }
    }

    /// Returns the value of a replica in percent of its device; `None` if it is unknown.
    fn value(self, problem: &Problem, replica: &PlannedReplica) -> Option<f64> {
        let profile = problem.profile(replica.model, replica.device)?;
        let measured = |metric: fn(&ProfileRow) -> Option<f64>| {
            let mut rows = profile.whole().iter();
            rows.find(|row| row.batch_size == replica.batch_size)
                .and_then(metric)
        };
        match self {
            Self::Share => replica.compute_share.map(f64::from),
            Self::Metric(ComputeMetric::Achieved) => {
                measured(|row| Some(row.achieved_occupancy?.get()))
            }
            Self::Metric(ComputeMetric::Mean) => measured(|row| Some(row.mean_occupancy?.get())),
            Self::Metric(ComputeMetric::Sm) => {
                Some(profile.sm_utilization(replica.batch_size)?.get())
            }
            Self::Memory => {
                let device = problem.devices.get(replica.device.0)?;
                let memory = profile.memory(replica.batch_size)?;
                Some(100.0 * memory.as_mib_f64() / device.memory.as_mib_f64())
            }
        }
    }
}

/// Returns a chart of a plan like those of the thesis: one bar per device, with a segment per replica. The length of a segment is the
/// compute share if all replicas have one, else `metric` or the metric of the policy, else the SM utilisation or the memory, whichever is
/// known of all replicas.
///
/// # Errors
/// If the plan does not match the scenario.
pub fn chart(
    scenario: &Scenario,
    plan: &PlanReport,
    metric: Option<ComputeMetric>,
) -> Result<PlanChart, PlanFileError> {
    let problem = &scenario.problem;
    let replicas = scenario.replicas(&plan.replicas)?;
    let metric_of_policy = match plan.policy.as_str() {
        "ao-milp" => ComputeMetric::Achieved,
        _ => ComputeMetric::Sm,
    };
    let measures = [
        Measure::Share,
        Measure::Metric(metric.unwrap_or(metric_of_policy)),
        Measure::Metric(ComputeMetric::Sm),
        Measure::Memory,
    ];
    let measures = measures.into_iter();
    let known = measures.filter_map(|measure| {
        let values: Option<Vec<f64>> = replicas
            .iter()
            .map(|replica| measure.value(problem, replica))
            .collect();
        Some((measure, values?))
    });
    // If no quantity is known of all replicas, all segments have the same length.
    let found = known
        .map(|(measure, values)| (measure.label(), values))
        .next();
    let (value_axis, values) =
        found.unwrap_or_else(|| ("not measured", vec![25.0; replicas.len()]));
    let names: Vec<&str> = plan
        .models
        .iter()
        .map(|model| model.name.as_str())
        .collect();
    let shown = problem.devices.len().min(MAX_DEVICES);
    let device = |i: usize| DeviceBar {
        label: format!("GPU {i}"),
        replicas: replicas
            .iter()
            .zip(&values)
            .filter(|(replica, _)| replica.device.0 == i)
            .map(|(replica, value)| Segment {
                series: replica.model.0,
                label: format!("{} · {}", names[replica.model.0], replica.batch_size),
                short_label: replica.batch_size.to_string(),
                value: *value,
            })
            .collect(),
    };
    Ok(PlanChart {
        title: String::new(),
        value_axis: value_axis.to_owned(),
        series: runs::model_series(plan),
        devices: (0..shown).map(device).collect(),
        hidden_devices: problem.devices.len() - shown,
    })
}

/// Returns a figure of one plan.
///
/// # Errors
/// If the plan does not match the scenario.
pub fn figure(
    scenario: &Scenario,
    plan: &PlanReport,
    metric: Option<ComputeMetric>,
) -> Result<Figure, PlanFileError> {
    let mut notes = vec![format!(
        "{:.1} requests/s within their SLO expected on {} of {} devices; each replica: model · batch size",
        plan.predicted_goodput_rps,
        plan.devices_used,
        scenario.problem.devices.len()
    )];
    if !plan.unserved.is_empty() {
        notes.push(format!("unserved: {}", plan.unserved.join(", ")));
    }
    Ok(Figure {
        title: format!("{}, planned by {}", plan.scenario, plan.policy),
        notes,
        columns: 1,
        panels: vec![Panel::Plan(chart(scenario, plan, metric)?)],
    })
}

//! Plans of a live cluster: as text, and as the JSON that `packhorse plan --json` prints.

use std::collections::BTreeMap;

use packhorse_api::{PlacementView, PlanDiff, PlanPreview, PlanSummary, PlanView};
use packhorse_client::{AdminClient, CallError};
use packhorse_cluster::{ComputeShare, DeviceId, Explanation, Generation};
use serde::Serialize;

use crate::{
    context::Context,
    count, explanation,
    layout::{DeviceLayout, Layout, ModelLayout, ReplicaLayout},
    output::{self, format_number, format_time},
    versioned_name,
};

/// The JSON form of a plan, with the keys that a plan for a scenario has: devices are numbered in the order of nodes and their
/// devices.
#[derive(Serialize)]
struct PlanReport<'a> {
    /// Null, since the plan is that of a live cluster.
    scenario: Option<&'a str>,
    policy: &'a str,
    predicted_goodput_rps: f64,
    solve_ms: f64,
    replicas: Vec<ReplicaReport>,
    models: Vec<ModelReport>,
    unserved: Vec<String>,
    devices_used: usize,
    generation: Option<Generation>,
    created_unix_ms: Option<i64>,
    reason: &'a str,
}

#[derive(Serialize)]
struct ReplicaReport {
    model: String,
    device: usize,
    batch_size: u32,
    compute_share_pct: Option<ComputeShare>,
    /// The other models that the same worker serves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also: Vec<String>,
}

#[derive(Serialize)]
struct ModelReport {
    name: String,
    rate_rps: f64,
    predicted_goodput_rps: f64,
    replicas: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<Explanation>,
}

impl<'a> PlanReport<'a> {
    /// Creates the report of `plan`. `devices` are the cluster's, in the order that numbers them; devices of the plan that the
    /// cluster has no more are numbered after them.
    fn new(plan: &'a PlanView, mut devices: Vec<DeviceId>) -> Self {
        let mut index = |device: &DeviceId| {
            devices
                .iter()
                .position(|known| known == device)
                .unwrap_or_else(|| {
                    devices.push(device.clone());
                    devices.len() - 1
                })
        };
        let replicas = plan.replicas.iter().map(|replica| ReplicaReport {
            model: versioned_name(&replica.model, replica.version),
            device: index(&replica.device),
            batch_size: replica.batch_size,
            compute_share_pct: replica.compute_share_pct,
            also: replica
                .also
                .iter()
                .map(|id| versioned_name(&id.name, id.version))
                .collect(),
        });
        let models = plan.models.iter().map(|model| ModelReport {
            name: versioned_name(&model.name, model.version),
            rate_rps: model.rate_rps,
            predicted_goodput_rps: model.predicted_goodput_rps,
            replicas: model.replicas,
            explanation: model.explanation.clone(),
        });
        let unserved = plan.models.iter().filter(|model| model.replicas == 0);
        Self {
            scenario: None,
            policy: &plan.policy,
            predicted_goodput_rps: plan.predicted_goodput_rps,
            solve_ms: plan.solve_ms,
            replicas: replicas.collect(),
            models: models.collect(),
            unserved: unserved
                .map(|model| versioned_name(&model.name, model.version))
                .collect(),
            devices_used: plan.devices_used,
            generation: plan.generation,
            created_unix_ms: plan.created_unix_ms,
            reason: &plan.reason,
        }
    }
}

/// Prints a plan. The JSON form requests the devices from the gateway.
pub async fn print_plan(
    context: &Context,
    admin: &AdminClient,
    plan: &PlanView,
) -> anyhow::Result<()> {
    if context.json() {
        return output::print_json(&PlanReport::new(plan, devices(admin).await?));
    }
    print_plan_text(plan)
}

/// Returns the devices of a cluster, in the order that numbers them.
async fn devices(admin: &AdminClient) -> Result<Vec<DeviceId>, CallError> {
    let nodes = admin.nodes().await?;
    let devices = nodes.into_iter().flat_map(|node| node.devices);
    Ok(devices.map(|device| device.id).collect())
}

/// Returns the JSON form of the plan in force; `None` before the first plan.
pub async fn current_plan_json(admin: &AdminClient) -> anyhow::Result<Option<serde_json::Value>> {
    let Some(plan) = admin.plan().await? else {
        return Ok(None);
    };
    let report = PlanReport::new(&plan, devices(admin).await?);
    Ok(Some(serde_json::to_value(report)?))
}

fn print_plan_text(plan: &PlanView) -> anyhow::Result<()> {
    let title = plan.generation.map_or_else(
        || "plan".to_owned(),
        |generation| format!("plan {generation}"),
    );
    output::print_line(format!(
        "{title} by {}: an expected goodput of {} requests/s, {} on {}",
        plan.policy,
        format_number(plan.predicted_goodput_rps),
        count(plan.replicas.len(), "replica"),
        count(plan.devices_used, "device"),
    ))?;
    output::print_line(format!(
        "made in {} ms, reason: {}\n",
        format_number(plan.solve_ms),
        plan.reason
    ))?;
    output::print_line(layout(plan).text())?;
    let explained = plan.models.iter().filter_map(|model| {
        let name = versioned_name(&model.name, model.version);
        Some((name, model.explanation.as_ref()?))
    });
    explanation::print(explained)
}

/// Returns the plan by device. A plan contains neither the devices' memory nor the models' measurements.
fn layout(plan: &PlanView) -> Layout {
    let mut devices: BTreeMap<&DeviceId, DeviceLayout> = BTreeMap::new();
    for replica in &plan.replicas {
        let device = devices
            .entry(&replica.device)
            .or_insert_with(|| DeviceLayout {
                name: replica.device.to_string(),
                kind: replica.device_kind.to_string(),
                memory: None,
                replicas: Vec::new(),
            });
        device.replicas.push(ReplicaLayout {
            model: versioned_name(&replica.model, replica.version),
            batch_size: replica.batch_size,
            share_pct: replica.compute_share_pct.map(ComputeShare::get),
            measured: None,
        });
    }
    let models = plan.models.iter().map(|model| ModelLayout {
        name: versioned_name(&model.name, model.version),
        rate_rps: model.rate_rps,
        predicted_goodput_rps: model.predicted_goodput_rps,
        replicas: model.replicas,
        shortfall: model.shortfall.clone(),
    });
    Layout {
        devices: devices.into_values().collect(),
        models: models.collect(),
    }
}

/// Prints a previewed plan and how it differs from the plan in force.
pub fn print_preview(preview: &PlanPreview) -> anyhow::Result<()> {
    print_plan_text(&preview.plan)?;
    if let Some(current) = &preview.current {
        output::print_line(format!(
            "\nexpected goodput: {} requests/s now, {} requests/s with this plan",
            format_number(current.predicted_goodput_rps),
            format_number(preview.plan.predicted_goodput_rps)
        ))?;
    }
    output::print_line(format!(
        "no plan for these models and devices exceeds {} requests/s",
        format_number(preview.bound_rps)
    ))?;
    print_diff(&preview.diff)
}

/// Prints the replicas that a plan starts and stops.
pub fn print_diff(diff: &PlanDiff) -> anyhow::Result<()> {
    output::print_line(format!(
        "{} to start, {} to stop, {} unchanged",
        count(diff.added.len(), "replica"),
        diff.removed.len(),
        diff.kept
    ))?;
    if diff.added.is_empty() && diff.removed.is_empty() {
        return Ok(());
    }
    let mut table = output::new_table(&[]);
    for (sign, replicas) in [("+", &diff.added), ("-", &diff.removed)] {
        for replica in replicas {
            table.add_row(diff_row(sign, replica));
        }
    }
    Ok(output::print_table(&table, "")?)
}

fn diff_row(sign: &str, replica: &PlacementView) -> [String; 6] {
    let share = replica.compute_share_pct;
    [
        sign.to_owned(),
        replica.device.to_string(),
        replica.device_kind.to_string(),
        versioned_name(&replica.model, replica.version),
        format!("batch {}", replica.batch_size),
        share.map_or_else(
            || "-".to_owned(),
            |share| format!("{} %", format_number(share.get())),
        ),
    ]
}

/// Returns the names of the models without a replica, as far as the summary has them.
fn unserved(plan: &PlanSummary) -> String {
    let named = plan.unserved.join(", ");
    match plan.unserved_models.saturating_sub(plan.unserved.len()) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Returns the answered part of the requests that a plan expected in time, of those that came.
fn came_true(plan: &PlanSummary) -> String {
    match plan.outcome {
        Some(outcome) if outcome.predicted_rps > 0.0 => {
            let part = outcome.goodput_rps / outcome.predicted_rps;
            format!("{:.0} %", part * 100.0)
        }
        Some(_) => "no requests".to_owned(),
        None => String::new(),
    }
}

/// Prints a table with one plan per line.
pub fn print_history(plans: &[PlanSummary]) -> anyhow::Result<()> {
    let mut table = output::new_table(&[
        "PLAN",
        "MADE",
        "POLICY",
        "REPLICAS",
        "DEVICES",
        "EXPECTED/S",
        "CAME TRUE",
        "NOT SERVED",
        "REASON",
    ]);
    for plan in plans {
        table.add_row([
            plan.generation.to_string(),
            format_time(plan.created_unix_ms.unsigned_abs()),
            plan.policy.clone(),
            plan.replicas.to_string(),
            plan.devices_used.to_string(),
            format_number(plan.predicted_goodput_rps),
            came_true(plan),
            unserved(plan),
            plan.reason.clone(),
        ]);
    }
    Ok(output::print_table(&table, "no plans")?)
}

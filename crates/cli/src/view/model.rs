//! Registered models as text.

use packhorse_api::{Changed, ModelView, ProfilingView, ReplicaView, WeightsView};
use packhorse_cluster::{
    ByteCount, MinReplicas, RateMode, ReplicaState, RequestsPerSecond, Residency, TensorSpec,
    TypicalShapes, WeightedShape, WorkerKind,
};
use packhorse_terminal::{
    context::Context,
    output::{self, format_number},
    versioned_name,
};

use super::processing::processing_rows;

/// Prints a table with one model per line.
pub(crate) fn print_list(models: &[ModelView]) -> anyhow::Result<()> {
    let families = models.iter().any(|model| model.family.is_some());
    let mut header = vec!["MODEL", "STATE", "REPLICAS", "SLO MS", "RATE/S", "REASON"];
    if families {
        header.insert(1, "VARIANT OF");
    }
    let mut table = output::new_table(&header);
    for model in models {
        let ready = model
            .replicas
            .iter()
            .filter(|replica| replica.state == Some(ReplicaState::Ready))
            .count();
        let mut row = vec![
            versioned_name(&model.name, model.version),
            output::state_name(&model.state),
            format!("{ready}/{}", model.replicas.len()),
            format_number(model.slo_ms),
            rate_text(model.rate_rps),
            model.reason.clone().unwrap_or_default(),
        ];
        if families {
            row.insert(1, variant_text(model));
        }
        table.add_row(row);
    }
    Ok(output::print_table(&table, "no models")?)
}

/// Returns the reserved rate of a model, or the one that it is planned for without a reservation.
fn rate_text(reserved: Option<RequestsPerSecond>) -> String {
    reserved.map_or_else(|| "measured".to_owned(), |rate| format_number(rate.get()))
}

/// Returns the family of a model with its accuracy; empty if it is in none.
fn variant_text(model: &ModelView) -> String {
    match (&model.family, model.accuracy) {
        (Some(family), Some(accuracy)) => {
            format!("{family}, {} % right", format_number(accuracy.get()))
        }
        _ => String::new(),
    }
}

/// Prints a table with one version of a model per line.
pub(crate) fn print_versions(versions: &[ModelView]) -> anyhow::Result<()> {
    let header = ["VERSION", "WANTED %", "NOW %", "STATE", "REASON"];
    let mut table = output::new_table(&header);
    for model in versions {
        let wanted = model.split.as_ref().map_or_else(
            || "auto".to_owned(),
            |split| split.share(model.version).to_string(),
        );
        table.add_row([
            model.version.to_string(),
            wanted,
            model.share_pct.to_string(),
            output::state_name(&model.state),
            model.reason.clone().unwrap_or_default(),
        ]);
    }
    Ok(output::print_table(&table, "no versions")?)
}

/// Prints everything that the gateway reports of a changed model. What the change takes from models is told beside the results.
pub(crate) fn print_changed(context: &Context, changed: &Changed<ModelView>) -> anyhow::Result<()> {
    if context.json() {
        return output::print_json(changed);
    }
    print_text(&changed.view)
}

/// Prints everything that the gateway reports of a model.
pub(crate) fn print_details(context: &Context, model: &ModelView) -> anyhow::Result<()> {
    if context.json() {
        return output::print_json(model);
    }
    print_text(model)
}

fn print_text(model: &ModelView) -> anyhow::Result<()> {
    let (name, version, state) = (&model.name, model.version, output::state_name(&model.state));
    let reason = model
        .reason
        .as_ref()
        .map_or_else(String::new, |reason| format!(" ({reason})"));
    output::print_line(format!("{name} version {version}: {state}{reason}"))?;
    let mut table = output::new_table(&[]);
    let batch = match model.max_batch_size {
        0 => "none: the model takes one request at a time".to_owned(),
        rows => format!("at most {rows} rows"),
    };
    table.add_row(["SLO", &format!("{} ms", format_number(model.slo_ms))]);
    table.add_row([
        "rate",
        &model.rate_rps.map_or_else(
            || "no reservation; planned for: the measured rate".to_owned(),
            |rate| {
                let mode = rate_mode_text(model.rate);
                format!(
                    "{} requests/s reserved; planned for: {mode}",
                    format_number(rate.get())
                )
            },
        ),
    ]);
    table.add_row(["priority", &model.priority.to_string()]);
    if model.min_replicas != MinReplicas::default() {
        table.add_row(["devices at least", &model.min_replicas.to_string()]);
    }
    if model.family.is_some() {
        table.add_row(["variant of", &variant_text(model)]);
    }
    let split = model.split.as_ref().map_or_else(
        || "the newest version takes over by itself".to_owned(),
        ToString::to_string,
    );
    let share = model.share_pct;
    table.add_row(["share", &format!("{share} % of the requests; {split}")]);
    table.add_row(["batch", &batch]);
    let queue = model.queue_limit.map_or_else(
        || "limited by the gateway's --queue-limit".to_owned(),
        |limit| format!("at most {limit} waiting requests"),
    );
    table.add_row(["queue", &queue]);
    if let Some(wait) = model.max_cold_wait_ms {
        table.add_row(["cold", &format!("a request waits {wait} ms for the load")]);
    }
    if model.cache {
        table.add_row([
            "cache",
            "answers are kept for requests with the same inputs",
        ]);
    }
    table.add_row([
        "artifact",
        &format!("{} ({} bytes)", model.artifact, model.artifact_bytes),
    ]);
    for (side, specs) in [("input", &model.inputs), ("output", &model.outputs)] {
        for spec in specs {
            table.add_row([side, &tensor_text(spec)]);
        }
    }
    for (what, text) in processing_rows(model) {
        table.add_row([what, &text]);
    }
    for kind in &model.profiled_on {
        table.add_row(["profiled on", kind.as_str()]);
    }
    for kind in &model.estimated_on {
        table.add_row(["estimated on", kind.as_str()]);
    }
    for kind in &model.measuring_failed_on {
        table.add_row(["measuring failed on", kind.as_str()]);
    }
    for profiling in &model.profiling {
        table.add_row(["profiling on", &profiling_text(profiling)]);
    }
    for replica in &model.replicas {
        table.add_row(["replica", &replica_text(replica)]);
    }
    Ok(output::print_table(&table, "")?)
}

/// Returns the rate that a mode plans for, in words.
fn rate_mode_text(mode: RateMode) -> &'static str {
    match mode {
        RateMode::Declared => "declared",
        RateMode::Measured => "measured",
        RateMode::Max => "max (of reserved and measured)",
        RateMode::Min => "min (of reserved and measured)",
    }
}

fn tensor_text(spec: &TensorSpec) -> String {
    let pad = spec.pad.map_or_else(String::new, |pad| {
        format!(", axis {} padded with {}", pad.axis, pad.value)
    });
    let usual = spec
        .typical_shape
        .as_ref()
        .map_or_else(String::new, usual_text);
    let example = spec.example.as_ref().map_or_else(String::new, |example| {
        format!(", an example of {} numbers", example.len())
    });
    format!(
        "{} {} {}{pad}{usual}{example}",
        spec.name,
        spec.datatype,
        spec.shape_text()
    )
}

/// Returns the usual shapes of an input, with their weights if there are several.
fn usual_text(shapes: &TypicalShapes) -> String {
    let text = |shape: &WeightedShape| {
        let dims: Vec<String> = shape.shape.iter().map(ToString::to_string).collect();
        let dims = format!("[{}]", dims.join(","));
        if shapes.are_several() {
            format!("{dims} x {}", shape.weight)
        } else {
            dims
        }
    };
    let texts: Vec<String> = shapes.shapes().iter().map(text).collect();
    format!(", usually {}", texts.join(", "))
}

/// Returns the progress of a measurement.
pub(crate) fn profiling_text(profiling: &ProfilingView) -> String {
    match profiling.total {
        0 => profiling.device_kind.to_string(),
        total => format!(
            "{}: {} of {total} batch sizes",
            profiling.device_kind, profiling.done
        ),
    }
}

fn replica_text(replica: &ReplicaView) -> String {
    let share = replica
        .compute_share_pct
        .map_or_else(String::new, |share| format!(", compute share {share} %"));
    format!(
        "{} on {}, batch {}{share}: {}",
        replica.id,
        replica.device,
        replica.batch_size,
        replica_state(replica)
    )
}

/// Returns where the weights of a replica are; empty if they always are on the device.
fn weights_text(weights: &WeightsView) -> String {
    if weights.bytes == ByteCount::ZERO {
        return String::new();
    }
    let place = match weights.residency {
        Residency::Resident => "on the device",
        Residency::Warm => "ready to be copied",
        Residency::Cold => "in its file only",
    };
    let copies = match weights.loads {
        1 => "copied once".to_owned(),
        times => format!("copied {times} times"),
    };
    let from_file = match weights.cold_loads {
        0 => String::new(),
        times => format!(", {times} from its file in {:.0} ms", weights.cold_load_ms),
    };
    format!(
        ", weights {place} ({}, {copies}{from_file}, {:.2} ms each)",
        weights.bytes, weights.load_ms
    )
}

/// Returns the state of a replica, with its reason and its restarts.
pub(crate) fn replica_state(replica: &ReplicaView) -> String {
    let mut text = match (replica.state, replica.serving) {
        (Some(ReplicaState::Ready), false) => "ready, not connected".to_owned(),
        (Some(state), _) => output::state_name(&state).replace('_', " "),
        (None, _) => "planned".to_owned(),
    };
    if let Some(reason) = &replica.reason {
        text.push_str(": ");
        text.push_str(reason);
    }
    if replica.worker == WorkerKind::Pool {
        text.push_str(", in a process with others");
    }
    if let Some(weights) = &replica.weights {
        text.push_str(&weights_text(weights));
    }
    match replica.restarts {
        0 => text,
        1 => text + " (restarted once)",
        times => format!("{text} (restarted {times} times)"),
    }
}

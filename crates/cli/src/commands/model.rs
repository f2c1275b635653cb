//! `packhorse model`: what is registered, and what is promised of it.

use packhorse_api::{ModelChange, ModelView, ReplicaView};
use packhorse_cluster::{ModelName, ModelVersion, ReplicaState, RequestsPerSecond, TensorSpec};

use super::{model_text, register::RegisterArgs};
use crate::{
    context::Context,
    output::{self, number},
};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  packhorse model register minilm.json --artifact minilm.pt --wait
  packhorse model list
  packhorse model update minilm --rate-rps 80")]
pub(crate) enum ModelCommand {
    /// Upload a model and register it
    Register(RegisterArgs),
    /// List all models with their state
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  packhorse model list\n  packhorse model list --json"
    )]
    List,
    /// Show one model: its signature, where it runs, and what it waits for
    #[command(after_help = "Example:\n  packhorse model show minilm --version 2")]
    Show(ModelRef),
    /// Change what is promised of a model
    #[command(after_help = "Example:\n  packhorse model update minilm --slo-ms 150 --rate-rps 80")]
    Update(UpdateArgs),
    /// Remove a model, or one version of it
    #[command(
        visible_alias = "rm",
        after_help = "Examples:\n  packhorse model remove minilm --version 1\n  packhorse model remove minilm"
    )]
    Remove(ModelRef),
}

#[derive(clap::Args)]
pub(crate) struct ModelRef {
    /// The model's name
    name: ModelName,
    /// The version [default: the newest; to be removed: all]
    #[arg(long, value_name = "N")]
    version: Option<ModelVersion>,
}

#[derive(clap::Args)]
#[group(id = "change", required = true, multiple = true, args = ["slo_ms", "rate_rps", "queue_limit"])]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    model: ModelRef,
    /// The latency objective in milliseconds, at most 60000
    #[arg(long, value_name = "MS")]
    slo_ms: Option<f64>,
    /// The rate to plan for, in requests per second
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate_rps: Option<RequestsPerSecond>,
    /// The most requests that wait for it; `default` is the gateway's --queue-limit
    #[arg(long, value_name = "N|default", value_parser = parse_queue_limit)]
    queue_limit: Option<QueueLimit>,
}

/// How many requests may wait for a model; none: as many as the gateway lets wait for any.
#[derive(Clone, Copy)]
struct QueueLimit(Option<u32>);

fn parse_queue_limit(text: &str) -> Result<QueueLimit, String> {
    if text == "default" {
        return Ok(QueueLimit(None));
    }
    let limit = text.parse().ok();
    limit
        .map(|limit| QueueLimit(Some(limit)))
        .ok_or_else(|| "expected a number of requests, or default".to_owned())
}

/// Reads a rate in requests per second.
pub(super) fn parse_rate(text: &str) -> Result<RequestsPerSecond, String> {
    let rate = text.parse().map_err(|_| "expected a number".to_owned())?;
    RequestsPerSecond::new(rate).map_err(|e| e.to_string())
}

impl ModelCommand {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Register(args) => args.run(context).await,
            Self::List => list(context).await,
            Self::Show(model) => {
                let view = context.admin()?.model(&model.name, model.version).await?;
                print(context, &view)
            }
            Self::Update(args) => {
                let change = ModelChange {
                    slo_ms: args.slo_ms,
                    rate_rps: args.rate_rps,
                    queue_limit: args.queue_limit.map(|QueueLimit(limit)| limit),
                };
                let view = context
                    .admin()?
                    .change_model(&args.model.name, args.model.version, &change)
                    .await?;
                print(context, &view)
            }
            Self::Remove(model) => remove(context, &model).await,
        }
    }
}

async fn list(context: &Context) -> anyhow::Result<()> {
    let models = context.admin()?.models().await?;
    if context.json() {
        output::json(&models)
    } else {
        print_list(&models)
    }
}

async fn remove(context: &Context, model: &ModelRef) -> anyhow::Result<()> {
    context
        .admin()?
        .remove_model(&model.name, model.version)
        .await?;
    if context.json() {
        return output::json(
            &serde_json::json!({ "removed": model.name, "version": model.version }),
        );
    }
    let version = model
        .version
        .map_or_else(String::new, |version| format!(", version {version}"));
    Ok(output::line(format!("removed {}{version}", model.name))?)
}

/// A table of models, one a line.
pub(super) fn print_list(models: &[ModelView]) -> anyhow::Result<()> {
    let mut table = output::table(&["MODEL", "STATE", "REPLICAS", "SLO MS", "RATE/S", "REASON"]);
    for model in models {
        let ready = model
            .replicas
            .iter()
            .filter(|replica| replica.state == Some(ReplicaState::Ready))
            .count();
        table.add_row([
            model_text(&model.name, model.version),
            output::word(&model.state),
            format!("{ready}/{}", model.replicas.len()),
            number(model.slo_ms),
            number(model.rate_rps.get()),
            model.reason.clone().unwrap_or_default(),
        ]);
    }
    Ok(output::table_or(&table, "no models")?)
}

/// One model in full.
pub(super) fn print(context: &Context, model: &ModelView) -> anyhow::Result<()> {
    if context.json() {
        return output::json(model);
    }
    let (name, version, state) = (&model.name, model.version, output::word(&model.state));
    let reason = model
        .reason
        .as_ref()
        .map_or_else(String::new, |reason| format!(": {reason}"));
    output::line(format!("{name} version {version} is {state}{reason}"))?;
    let mut table = output::table(&[]);
    let batch = match model.max_batch_size {
        0 => "none: one request at a time".to_owned(),
        rows => format!("at most {rows} rows"),
    };
    table.add_row(["objective", &format!("{} ms", number(model.slo_ms))]);
    table.add_row([
        "planned for",
        &format!("{} requests/s", number(model.rate_rps.get())),
    ]);
    table.add_row(["batch", &batch]);
    let queue = model.queue_limit.map_or_else(
        || "as many requests as the gateway lets wait".to_owned(),
        |limit| format!("at most {limit} requests wait"),
    );
    table.add_row(["queue", &queue]);
    table.add_row([
        "artifact",
        &format!("{} ({} bytes)", model.artifact, model.artifact_bytes),
    ]);
    for (side, specs) in [("input", &model.inputs), ("output", &model.outputs)] {
        for spec in specs {
            table.add_row([side, &signature(spec)]);
        }
    }
    for kind in &model.profiled_on {
        table.add_row(["profiled on", kind.as_str()]);
    }
    for profiling in &model.profiling {
        table.add_row(["profiling on", &profiling_text(profiling)]);
    }
    for replica in &model.replicas {
        table.add_row(["replica", &replica_text(replica)]);
    }
    Ok(output::table_or(&table, "")?)
}

fn signature(spec: &TensorSpec) -> String {
    let pad = spec.pad.map_or_else(String::new, |pad| {
        format!(", axis {} padded with {}", pad.axis, pad.value)
    });
    format!("{} {} {}{pad}", spec.name, spec.datatype, spec.shape_text())
}

/// How far a measurement is.
pub(super) fn profiling_text(profiling: &packhorse_api::ProfilingView) -> String {
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
        .map_or_else(String::new, |share| format!(", {share} % of it"));
    format!(
        "{} on {}, batch {}{share}: {}",
        replica.id,
        replica.device,
        replica.batch_size,
        replica_state(replica)
    )
}

/// Where a replica is on its way, and why.
pub(super) fn replica_state(replica: &ReplicaView) -> String {
    let mut text = match (replica.state, replica.serving) {
        (Some(ReplicaState::Ready), false) => "ready, not connected".to_owned(),
        (Some(state), _) => output::word(&state).replace('_', " "),
        (None, _) => "planned".to_owned(),
    };
    if let Some(reason) = &replica.reason {
        text.push_str(": ");
        text.push_str(reason);
    }
    match replica.restarts {
        0 => text,
        1 => text + " (restarted once)",
        times => format!("{text} (restarted {times} times)"),
    }
}

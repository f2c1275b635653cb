//! `packhorse status`: shows the gateway, its nodes, its models and their recent goodput.

use std::collections::BTreeSet;

use packhorse_api::{GoodputView, ModelView, NodeView};
use packhorse_client::{CallError, InferenceClient};
use packhorse_cluster::{ModelState, NodeName, NodeState};
use packhorse_terminal::{
    context::Context,
    output::{self, format_number, format_number_or_dash},
    versioned_name,
};
use serde::Serialize;

use crate::view;

/// The length of the window of the goodput, in seconds.
const WINDOW_S: u32 = 60;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse status\n  packhorse status --not-ready\n  packhorse status --node rack1 --json"
)]
pub(crate) struct StatusArgs {
    /// Show only models whose names contain this, and the nodes that they are on
    #[arg(long, value_name = "TEXT")]
    model: Option<String>,
    /// Show only this node, and the models that are on it
    #[arg(long, value_name = "NODE")]
    node: Option<NodeName>,
    /// Show only models that are not ready, and the nodes that they are on
    #[arg(long)]
    not_ready: bool,
}

#[derive(Serialize)]
struct Status {
    gateway: GatewayStatus,
    nodes: Vec<NodeView>,
    models: Vec<ModelView>,
    goodput: GoodputView,
}

#[derive(Serialize)]
struct GatewayStatus {
    url: String,
    admin_url: String,
    version: Option<String>,
    ready: bool,
    error: Option<String>,
}

impl StatusArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let mut status = Status {
            nodes: admin.nodes().await?,
            models: admin.models().await?,
            goodput: admin.goodput(WINDOW_S).await?,
            gateway: gateway_status(context, &context.inference()?).await,
        };
        let state = (!context.json()).then(|| state_text(&status));
        self.retain_shown(&mut status);
        let Some(state) = state else {
            return output::print_json(&status);
        };
        print(&status, &state, self.is_filtered())
    }

    fn is_filtered(&self) -> bool {
        self.model.is_some() || self.node.is_some() || self.not_ready
    }

    /// Removes what is not to be shown.
    fn retain_shown(&self, status: &mut Status) {
        if !self.is_filtered() {
            return;
        }
        let is_on = |model: &ModelView, node: &NodeName| {
            let mut replicas = model.replicas.iter();
            replicas.any(|replica| replica.device.node() == node)
        };
        status.models.retain(|model| {
            let is_named = |part: &String| model.name.as_str().contains(part.as_str());
            self.model.as_ref().is_none_or(is_named)
                && self.node.as_ref().is_none_or(|node| is_on(model, node))
                && (!self.not_ready || model.state != ModelState::Ready)
        });
        status.nodes.retain(|node| match &self.node {
            Some(name) => node.name == *name,
            None => status.models.iter().any(|model| is_on(model, &node.name)),
        });
        let shown: BTreeSet<_> = status.models.iter().map(|m| (&m.name, m.version)).collect();
        let goodput = &mut status.goodput;
        goodput
            .models
            .retain(|one| shown.contains(&(&one.name, one.version)));
        let families: BTreeSet<_> = status
            .models
            .iter()
            .filter_map(|m| m.family.as_ref())
            .collect();
        goodput.families.retain(|one| families.contains(&one.name));
    }
}

/// Returns the state of the inference listener. An error of that listener is part of the state.
async fn gateway_status(context: &Context, inference: &InferenceClient) -> GatewayStatus {
    let state = async {
        let version = inference.server_metadata().await?.version;
        Ok::<_, CallError>((version, inference.ready().await?))
    };
    let (url, admin_url) = (context.url().to_string(), context.admin_url().to_string());
    match state.await {
        Ok((version, ready)) => GatewayStatus {
            url,
            admin_url,
            version: Some(version),
            ready,
            error: None,
        },
        Err(e) => GatewayStatus {
            url,
            admin_url,
            version: None,
            ready: false,
            error: Some(format!("{:#}", anyhow::Error::from(e))),
        },
    }
}

/// Returns what a gateway that takes requests can do with them.
fn ready_text(nodes: &[NodeView], models: &[ModelView]) -> String {
    if nodes.is_empty() {
        return "nothing is served: there is no node".to_owned();
    }
    if nodes.iter().any(|node| node.state != NodeState::Lost) {
        return "ready".to_owned();
    }
    let lost = match nodes.len() {
        1 => "the only node is lost".to_owned(),
        all => format!("all {all} nodes are lost"),
    };
    let serves = |model: &&ModelView| model.replicas.iter().any(|replica| replica.serving);
    match models.iter().filter(serves).count() {
        0 => format!("nothing is served: {lost}"),
        count => format!(
            "{lost}; their workers still serve {count} of {} models",
            models.len()
        ),
    }
}

/// Returns what the gateway can do, whatever is shown of the cluster.
fn state_text(status: &Status) -> String {
    let gateway = &status.gateway;
    match (&gateway.error, gateway.ready) {
        (Some(error), _) => error.clone(),
        (None, true) => ready_text(&status.nodes, &status.models),
        (None, false) => "not ready".to_owned(),
    }
}

fn print(status: &Status, state: &str, is_filtered: bool) -> anyhow::Result<()> {
    let gateway = &status.gateway;
    let version = gateway
        .version
        .as_ref()
        .map_or_else(String::new, |version| format!(" {version}"));
    output::print_line(format!("gateway{version} at {}: {state}", gateway.url))?;
    let nodes = if status.nodes.is_empty() && is_filtered {
        "no node has them".to_owned()
    } else {
        view::cluster::node_tree(&status.nodes, &status.models)
    };
    output::print_line(format!("\n{nodes}\n"))?;
    view::model::print_list(&status.models)?;
    if status.goodput.models.is_empty() {
        return Ok(());
    }
    output::print_line(format!(
        "\nin the last {} s:",
        format_number(status.goodput.window_s)
    ))?;
    let header = [
        "MODEL",
        "OFFERED/S",
        "THROUGHPUT/S",
        "GOODPUT/S",
        "REFUSED/S",
        "LATE/S",
        "P50 MS",
        "P95 MS",
        "P99 MS",
        "MEAN BATCH",
    ];
    let mut table = output::new_table(&header);
    for model in &status.goodput.models {
        table.add_row([
            versioned_name(&model.name, model.version),
            format_number(model.offered_rps),
            format_number(model.throughput_rps),
            format_number(model.goodput_rps),
            format_number(model.refused_rps),
            format_number(model.late_rps),
            format_number_or_dash(model.p50_ms),
            format_number_or_dash(model.p95_ms),
            format_number_or_dash(model.p99_ms),
            format_number_or_dash(model.mean_batch),
        ]);
    }
    output::print_table(&table, "")?;
    if status.goodput.families.is_empty() {
        return Ok(());
    }
    output::print_line("")?;
    let header = [
        "FAMILY",
        "OFFERED/S",
        "GOODPUT/S",
        "ACCURATE/S",
        "ACCURACY %",
    ];
    let mut table = output::new_table(&header);
    for family in &status.goodput.families {
        table.add_row([
            family.name.to_string(),
            format_number(family.offered_rps),
            format_number(family.goodput_rps),
            format_number(family.accurate_goodput_rps),
            format_number_or_dash(family.accuracy_pct),
        ]);
    }
    Ok(output::print_table(&table, "")?)
}

//! `packhorse status`: shows the gateway, its nodes, its models and their recent goodput.

use packhorse_api::{GoodputView, ModelView, NodeView};
use packhorse_client::{CallError, InferenceClient};
use packhorse_cluster::NodeState;
use serde::Serialize;

use crate::{
    context::Context,
    output::{self, format_number, format_number_or_dash},
    view::{self, versioned_name},
};

/// The length of the window of the goodput, in seconds.
const WINDOW_S: u32 = 60;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  packhorse status\n  packhorse status --json")]
pub(crate) struct StatusArgs {}

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
        let status = Status {
            nodes: admin.nodes().await?,
            models: admin.models().await?,
            goodput: admin.goodput(WINDOW_S).await?,
            gateway: gateway_status(context, &context.inference()?).await,
        };
        if context.json() {
            output::print_json(&status)
        } else {
            print(&status)
        }
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
fn ready_text(nodes: &[NodeView]) -> String {
    let lost = nodes.iter().filter(|node| node.state == NodeState::Lost);
    match (lost.count(), nodes.len()) {
        (_, 0) => "nothing is served: there is no node".to_owned(),
        (1, 1) => "nothing is served: the only node is lost".to_owned(),
        (lost, all) if lost == all => format!("nothing is served: all {all} nodes are lost"),
        _ => "ready".to_owned(),
    }
}

fn print(status: &Status) -> anyhow::Result<()> {
    let gateway = &status.gateway;
    let state = match (&gateway.error, gateway.ready) {
        (Some(error), _) => error.clone(),
        (None, true) => ready_text(&status.nodes),
        (None, false) => "not ready".to_owned(),
    };
    let version = gateway
        .version
        .as_ref()
        .map_or_else(String::new, |version| format!(" {version}"));
    output::print_line(format!("gateway{version} at {}: {state}", gateway.url))?;
    output::print_line(format!(
        "\n{}\n",
        view::cluster::node_tree(&status.nodes, &status.models)
    ))?;
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

//! `packhorse status`: everything at a glance.

use packhorse_api::{GoodputView, ModelView, NodeView};
use packhorse_client::CallError;
use serde::Serialize;

use super::{model, model_text, picture};
use crate::{
    context::Context,
    output::{self, number, number_or_dash},
};

/// The window that goodput is shown for.
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
            gateway: gateway(context).await,
        };
        if context.json() {
            output::json(&status)
        } else {
            print(&status)
        }
    }
}

/// The admin listener answers; whether the inference listener does is part of the answer.
async fn gateway(context: &Context) -> GatewayStatus {
    let inference = context.inference();
    let asked = async {
        let version = inference.server_metadata().await?.version;
        Ok::<_, CallError>((version, inference.ready().await?))
    };
    let (url, admin_url) = (context.url().to_string(), context.admin_url().to_string());
    match asked.await {
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

fn print(status: &Status) -> anyhow::Result<()> {
    let gateway = &status.gateway;
    let state = match (&gateway.error, gateway.ready) {
        (Some(error), _) => error.clone(),
        (None, true) => "ready".to_owned(),
        (None, false) => "not ready".to_owned(),
    };
    let version = gateway
        .version
        .as_ref()
        .map_or_else(String::new, |version| format!(" {version}"));
    output::line(format!("gateway{version} at {}: {state}", gateway.url))?;
    output::line(format!(
        "\n{}\n",
        picture::nodes(&status.nodes, &status.models)
    ))?;
    model::print_list(&status.models)?;
    if status.goodput.models.is_empty() {
        return Ok(());
    }
    output::line(format!(
        "\nin the last {} s:",
        number(status.goodput.window_s)
    ))?;
    let header = [
        "MODEL",
        "OFFERED/S",
        "ANSWERED/S",
        "IN TIME/S",
        "DROPPED",
        "P50 MS",
        "P95 MS",
        "P99 MS",
        "MEAN BATCH",
    ];
    let mut table = output::table(&header);
    for model in &status.goodput.models {
        table.add_row([
            model_text(&model.name, model.version),
            number(model.offered_rps),
            number(model.throughput_rps),
            number(model.goodput_rps),
            model.dropped.to_string(),
            number_or_dash(model.p50_ms),
            number_or_dash(model.p95_ms),
            number_or_dash(model.p99_ms),
            number_or_dash(model.mean_batch),
        ]);
    }
    Ok(output::table_or(&table, "")?)
}

//! `packhorse node`: lists nodes, takes them out of service, and makes tokens for them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use packhorse_api::{Changed, NodeState, NodeView};
use packhorse_cluster::NodeName;
use packhorse_terminal::{context::Context, output};
use tokio::time::sleep;

use super::{arguments::parse_duration, consent::ConsentArgs};
use crate::view;

#[derive(clap::Subcommand)]
#[command(after_help = "Examples:\n  packhorse node list\n  packhorse node drain rack1")]
pub(crate) enum NodeCommand {
    /// List nodes with their devices and replicas
    #[command(visible_alias = "ls", after_help = "Example:\n  packhorse node list")]
    List,
    /// Place no new replicas on a node; its present replicas stay
    #[command(after_help = "Example:\n  packhorse node cordon rack1")]
    Cordon(NodeRef),
    /// Allow new replicas on a node again
    #[command(after_help = "Example:\n  packhorse node uncordon rack1")]
    Uncordon(NodeRef),
    /// Move the replicas of a node to other nodes
    #[command(
        after_help = "Examples:\n  packhorse node drain rack1\n  packhorse node drain rack1 --yes --deadline 5m --wait"
    )]
    Drain(Drain),
    /// Remove a node whose agent has stopped
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  packhorse node remove rack1"
    )]
    Remove(LeavingNode),
    /// Make a token for the agent of one node, which is then leased with no other token
    #[command(after_help = "Example:\n  packhorse node token rack1 > rack1.token")]
    Token(NodeRef),
}

#[derive(clap::Args)]
pub(crate) struct NodeRef {
    /// Name of the node
    name: NodeName,
}

#[derive(clap::Args)]
pub(crate) struct LeavingNode {
    #[command(flatten)]
    node: NodeRef,
    #[command(flatten)]
    consent: ConsentArgs,
}

#[derive(clap::Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    leaving: LeavingNode,
    /// Time, such as 90s or 5m, after which the replicas end whose models have no place elsewhere [default: they stay until there is one]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    deadline: Option<Duration>,
    /// Wait until the node has no replica any more
    #[arg(long)]
    wait: bool,
}

/// The time between two looks at a node that is drained.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl NodeCommand {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let node = match self {
            Self::List => return list(context).await,
            Self::Token(node) => return token(context, &node.name).await,
            Self::Cordon(node) => admin.cordon(&node.name).await?,
            Self::Uncordon(node) => admin.uncordon(&node.name).await?,
            Self::Drain(drain) => drain.run(context).await?,
            Self::Remove(leaving) => return leaving.remove(context).await,
        };
        if context.json() {
            return output::print_json(&node);
        }
        let node = node.view;
        Ok(output::print_line(format!(
            "{} is {}",
            node.name,
            output::state_name(&node.state)
        ))?)
    }
}

impl Drain {
    async fn run(self, context: &Context) -> anyhow::Result<Changed<NodeView>> {
        let (admin, name) = (context.admin()?, self.leaving.node.name);
        let dry_run = admin.dry_run().drain(&name);
        let drain = admin.drain(&name, self.deadline);
        let mut node = self.leaving.consent.make(&[], dry_run, drain).await?;
        let has_replicas = |node: &NodeView| {
            let mut devices = node.devices.iter();
            devices.any(|device| !device.replicas.is_empty())
        };
        while self.wait && has_replicas(&node.view) {
            sleep(POLL_INTERVAL).await;
            let nodes = admin.nodes().await?;
            let found = nodes.into_iter().find(|node| node.name == name);
            node.view = found.with_context(|| format!("node {name} was removed meanwhile"))?;
            ensure!(
                node.view.state == NodeState::Draining,
                "node {name} is {} and no longer drained, with replicas left",
                output::state_name(&node.view.state)
            );
        }
        Ok(node)
    }
}

impl LeavingNode {
    async fn remove(self, context: &Context) -> anyhow::Result<()> {
        let (admin, name) = (context.admin()?, self.node.name);
        let dry_run = admin.dry_run().remove_node(&name);
        let removal = admin.remove_node(&name);
        let removed = self.consent.make(&[], dry_run, removal).await?;
        if context.json() {
            return output::print_json(&removed);
        }
        Ok(output::print_line(format!("removed {name}"))?)
    }
}

async fn token(context: &Context, node: &NodeName) -> anyhow::Result<()> {
    let made = context.admin()?.new_node_token(node).await?;
    if context.json() {
        return output::print_json(&made);
    }
    Ok(output::print_line(made.token)?)
}

async fn list(context: &Context) -> anyhow::Result<()> {
    let admin = context.admin()?;
    let nodes = admin.nodes().await?;
    if context.json() {
        return output::print_json(&nodes);
    }
    let models = admin.models().await?;
    Ok(output::print_line(view::cluster::node_tree(
        &nodes, &models,
    ))?)
}

//! `packhorse node`: lists nodes, takes them out of service, and makes tokens for them.

use packhorse_api::{Changed, NodeView};
use packhorse_cluster::NodeName;
use packhorse_terminal::{context::Context, output};

use super::consent::ConsentArgs;
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
    #[command(after_help = "Example:\n  packhorse node drain rack1")]
    Drain(LeavingNode),
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

impl NodeCommand {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let node = match self {
            Self::List => return list(context).await,
            Self::Token(node) => return token(context, &node.name).await,
            Self::Cordon(node) => admin.cordon(&node.name).await?,
            Self::Uncordon(node) => admin.uncordon(&node.name).await?,
            Self::Drain(leaving) => leaving.drain(context).await?,
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

impl LeavingNode {
    async fn drain(self, context: &Context) -> anyhow::Result<Changed<NodeView>> {
        let (admin, name) = (context.admin()?, self.node.name);
        let dry_run = admin.dry_run().drain(&name);
        self.consent.make(&[], dry_run, admin.drain(&name)).await
    }

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

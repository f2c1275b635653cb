//! `packhorse node`: the machines and whether they take replicas.

use packhorse_cluster::NodeName;

use super::picture;
use crate::{context::Context, output};

#[derive(clap::Subcommand)]
#[command(after_help = "Examples:\n  packhorse node list\n  packhorse node drain rack1")]
pub(crate) enum NodeCommand {
    /// List nodes with their devices and who sits on them
    #[command(visible_alias = "ls", after_help = "Example:\n  packhorse node list")]
    List,
    /// Place nothing new on a node; what it serves stays
    #[command(after_help = "Example:\n  packhorse node cordon rack1")]
    Cordon(NodeRef),
    /// Let a node take replicas again
    #[command(after_help = "Example:\n  packhorse node uncordon rack1")]
    Uncordon(NodeRef),
    /// Move a node's replicas elsewhere
    #[command(after_help = "Example:\n  packhorse node drain rack1")]
    Drain(NodeRef),
}

#[derive(clap::Args)]
pub(crate) struct NodeRef {
    /// The node's name
    name: NodeName,
}

impl NodeCommand {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let node = match self {
            Self::List => return list(context).await,
            Self::Cordon(node) => admin.cordon(&node.name).await?,
            Self::Uncordon(node) => admin.uncordon(&node.name).await?,
            Self::Drain(node) => admin.drain(&node.name).await?,
        };
        if context.json() {
            return output::json(&node);
        }
        Ok(output::line(format!(
            "{} is {}",
            node.name,
            output::word(&node.state)
        ))?)
    }
}

async fn list(context: &Context) -> anyhow::Result<()> {
    let admin = context.admin()?;
    let nodes = admin.nodes().await?;
    if context.json() {
        return output::json(&nodes);
    }
    let models = admin.models().await?;
    Ok(output::line(picture::nodes(&nodes, &models))?)
}

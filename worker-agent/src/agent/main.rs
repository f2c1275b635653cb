//! The Packhorse agent: one per node, it makes the node's workers equal to the state that the gateway wants, and is never in the path of a
//! batch.
//!
//! This room is separate from the worker's so that the agent runs where libtorch is not installed and survives whatever a model does to
//! its worker. [`Reconciler`](packhorse_reconcile::Reconciler) decides; [`node`] owns the loop that passes it events and
//! carries out its actions. Beside that loop, [`session`] communicates with the gateway, and one task per worker watches its process
//! and its status. Without the gateway, workers run on unchanged. Without the agent they also run on, and the next agent adopts them, as it
//! adopts the MPS daemons of the GPUs.

mod artifact_cache;
mod blame_file;
mod config;
mod environment;
mod fence_file;
mod gateway;
mod gpus;
mod log_tail;
mod mps;
mod mutex;
mod node;
mod pipeline_options;
mod pools;
mod process;
mod reused_workers;
mod session;
mod state_folder;
mod status_watch;
mod worker_user;
mod worker_watch;
mod workers;

use clap::Parser;

use config::Options;
use packhorse_service::{print_manual_page, survive_hang_up};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if print_manual_page::<Options>()? {
        return Ok(());
    }
    let options = Options::parse();
    survive_hang_up()?;
    options.log.start()?;
    let supervisor = options.supervisor.watch()?;
    node::run(options.settings()?, supervisor).await?;
    Ok(())
}

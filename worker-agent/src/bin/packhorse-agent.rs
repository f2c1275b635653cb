//! The Packhorse agent: see [`packhorse_worker_agent::agent`].

use std::io::IsTerminal;

use anyhow::Context;
use clap::Parser;
use packhorse_worker_agent::agent::{self, LogFormat, Options};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let filter: EnvFilter = options.log.parse().context("--log")?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    agent::run(options.settings()?).await?;
    Ok(())
}

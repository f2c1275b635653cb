//! The Packhorse gateway's program: flags, logging, signals; everything else is in the library.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::Parser as _;
use packhorse_gateway::{
    app::App,
    config::{LogFormat, Options},
};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

// It keeps the memory of large bodies instead of giving it back to the kernel and faulting it in again for every request.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    start_log(options.log_format, &options.log)?;
    let settings = options.settings()?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let app = App::start(settings)
        .await
        .context("the gateway cannot start")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tokio::select! {
        () = app.shutdown() => {}
        // Asked twice: whoever waits has waited long enough.
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

fn start_log(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).context("--log: not a filter")?;
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    Ok(())
}

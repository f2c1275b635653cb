//! The program of the Packhorse gateway: flags, logging and signals. All else is in the library.

use anyhow::Context as _;
// Linked in place of the C library's `malloc`, which Rust's allocator calls. It keeps the memory of large bodies instead of returning it to the kernel and
// faulting it in again for every request. As Rust's allocator itself it would take longer, because it would get every request with an alignment.
use mimalloc as _;
use packhorse_gateway::{
    app::App,
    config::{OfflineCommand, Options},
    health_check,
};
use packhorse_service::{print_manual_page, survive_hang_up};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> anyhow::Result<()> {
    if print_manual_page::<Options>()? {
        return Ok(());
    }
    let options = Options::read();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.http_threads())
        .enable_all()
        .build()
        .context("start the threads of HTTP")?;
    runtime.block_on(run(options))
}

async fn run(options: Options) -> anyhow::Result<()> {
    if let Some(OfflineCommand::Store(command)) = options.command {
        return Ok(command.run().await?);
    }
    if options.check_health {
        return Ok(health_check::check(options.listen, options.tls_cert.is_some()).await?);
    }
    survive_hang_up().context("receive SIGHUP")?;
    options.log.start()?;
    let supervisor = options.supervisor;
    let settings = options.settings()?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut supervisor = supervisor.watch()?;
    let app = App::start(settings)
        .await
        .context("the gateway cannot start")?;
    let mut successor = None;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = supervisor.gone() => {}
        by = app.superseded() => {
            tracing::error!(by, "another gateway has taken the database");
            successor = Some(by);
        }
        task = app.failed() => anyhow::bail!("the {task} has ended; its panic is in the log above"),
    }
    tokio::select! {
        () = app.shutdown() => {}
        // A second signal ends the process without waiting for the shutdown.
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    match successor {
        Some(by) => anyhow::bail!("another gateway has taken the database: {by}"),
        None => Ok(()),
    }
}

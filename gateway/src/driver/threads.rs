//! The threads of the data plane. Whatever HTTP handlers, parsers or the control plane do, these have the processor to themselves as far
//! as the system shares it between threads.

use std::{
    io,
    sync::mpsc as std_mpsc,
    thread::{self, available_parallelism},
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
};

use super::{message::DriverMessage, task::Driver};

/// The most threads for the links to workers: each moves a few GB/s.
const LINK_THREADS_MAX: usize = 8;

/// Starts the driver on a thread, and the runtime of its links.
pub(super) fn start(
    driver: Driver,
    inbox: mpsc::UnboundedReceiver<DriverMessage>,
) -> io::Result<()> {
    let (report, started) = std_mpsc::channel();
    let run = move || {
        let (runtime, links) = match runtimes() {
            Ok(runtimes) => runtimes,
            Err(error) => {
                let _ = report.send(Err(error));
                return;
            }
        };
        let _ = report.send(Ok(()));
        runtime.block_on(driver.run(inbox, links.handle().clone()));
        links.shutdown_background();
    };
    thread::Builder::new()
        .name("driver".to_owned())
        .spawn(run)?;
    started
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("the driver's thread ended at once")))
}

/// The runtimes of the driver and of the links.
fn runtimes() -> io::Result<(Runtime, Runtime)> {
    let driver = Builder::new_current_thread().enable_time().build()?;
    let cores = available_parallelism().map_or(1, usize::from);
    let links = Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, LINK_THREADS_MAX))
        .thread_name("links")
        .enable_all()
        .build()?;
    Ok((driver, links))
}

//! The threads of the data plane: those of the links to workers, for what HTTP must not delay, and one for each driver's time.

use std::{
    io,
    sync::Arc,
    thread::{self, available_parallelism},
};

use tokio::runtime::{Builder, Runtime};

use super::drivers::Drivers;

/// The most threads for the links to workers: each moves a few GB/s.
const LINK_THREADS_MAX: usize = 8;

/// Starts the threads of the links.
pub(super) fn links() -> io::Result<Runtime> {
    let cores = available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, LINK_THREADS_MAX))
        .thread_name("links")
        .enable_all()
        .build()
}

/// Starts the drivers' own threads. They end with the drivers, and the last one ends those of the links.
pub(super) fn keep_time(drivers: &Arc<Drivers>, links: Runtime) -> io::Result<()> {
    let links = Arc::new(EndInBackground(Some(links)));
    for number in 0..drivers.inboxes().len() {
        let (drivers, links) = (Arc::clone(drivers), Arc::clone(&links));
        let keep_time = move || {
            drivers.inboxes()[number].keep_time();
            drop(links);
        };
        thread::Builder::new()
            .name(format!("driver-{number}"))
            .spawn(keep_time)?;
    }
    Ok(())
}

/// A runtime whose end nobody waits for.
struct EndInBackground(Option<Runtime>);

impl Drop for EndInBackground {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

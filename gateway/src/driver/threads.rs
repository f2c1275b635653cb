//! The threads of the data plane: those of the links to workers, for what HTTP must not delay, and one for the driver's time.

use std::{
    io,
    sync::Arc,
    thread::{self, available_parallelism},
};

use tokio::runtime::{Builder, Runtime};

use super::inbox::Inbox;

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

/// Starts the driver's own thread. It ends with the driver, and ends those of the links.
pub(super) fn keep_time(inbox: Arc<Inbox>, links: Runtime) -> io::Result<()> {
    let keep_time = move || {
        inbox.keep_time();
        links.shutdown_background();
    };
    thread::Builder::new()
        .name("driver".to_owned())
        .spawn(keep_time)?;
    Ok(())
}

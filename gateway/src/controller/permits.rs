//! The limit of previews and explanations that run at once, beside planning itself.

use tokio::sync::OwnedSemaphorePermit;

/// The largest number of previews and explanations that run at once. Each keeps a core busy for seconds, beside planning itself.
pub(super) const MAX_PREVIEWS: usize = 4;

/// Too many previews and explanations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at most {MAX_PREVIEWS} previews and explanations run at once; retry in a few seconds")]
pub struct Busy;

/// Runs a computation on a thread of its own, which holds the permit until the computation ends, even if the caller no longer
/// waits.
///
/// # Errors
/// If the computation panics; with its message.
pub(super) async fn run_with_permit<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let task = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        compute()
    });
    task.await.map_err(|e| e.to_string())
}

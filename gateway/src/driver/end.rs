//! The end of the drivers, for those who wait for it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio_util::sync::CancellationToken;

/// The end of the drivers: all have ended, or one has panicked, with which the data plane as a whole serves no longer.
#[derive(Debug)]
pub(super) struct End {
    /// The drivers that have not ended.
    left: AtomicUsize,
    token: CancellationToken,
}

impl End {
    /// Creates the end of so many drivers.
    pub(super) fn of(drivers: usize) -> Self {
        Self {
            left: AtomicUsize::new(drivers),
            token: CancellationToken::new(),
        }
    }

    /// Notes that one driver more has ended.
    pub(super) fn one(&self) {
        if self.left.fetch_sub(1, Relaxed) == 1 {
            self.token.cancel();
        }
    }

    /// Notes that a driver has panicked.
    pub(super) fn panicked(&self) {
        self.token.cancel();
    }

    pub(super) fn has_come(&self) -> bool {
        self.token.is_cancelled()
    }

    pub(super) async fn wait(&self) {
        self.token.cancelled().await;
    }
}

//! Things that last as long as an answer is on its way.

use std::{any::Any, fmt, sync::Arc};

/// A thing that is dropped once all of an answer was passed on to the connection, which holds less than 100 KB of it, or the connection has ended. An
/// extension of the answer.
#[derive(Clone)]
pub(crate) struct HeldUntilSent {
    _held: Arc<dyn Any + Send + Sync>,
}

impl HeldUntilSent {
    /// Returns the extension that holds a thing.
    pub(crate) fn new(held: impl Any + Send + Sync) -> Self {
        Self {
            _held: Arc::new(held),
        }
    }
}

impl fmt::Debug for HeldUntilSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldUntilSent").finish_non_exhaustive()
    }
}

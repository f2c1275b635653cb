//! The handle to the history.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use packhorse_history::History;

/// A handle to the history. Clones share it.
#[derive(Clone)]
pub struct HistoryLog(Arc<Mutex<History>>);

impl fmt::Debug for HistoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HistoryLog({} bytes)", self.read(History::bytes))
    }
}

impl HistoryLog {
    pub(super) fn new(history: History) -> Self {
        Self(Arc::new(Mutex::new(history)))
    }

    /// Reads the history.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&History) -> T) -> T {
        read(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

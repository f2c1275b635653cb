//! The locks of what several tasks of the agent share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A task that panicked with it has left a whole value.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

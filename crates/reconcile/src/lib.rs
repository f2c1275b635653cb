//! The agent's decisions, sans-io: from the wanted state of a node and its worker processes to the next action.
//!
//! The driver passes each [`Event`] to a [`Reconciler`], executes the [`Action`]s that it returns, and passes their outcome back
//! as further events. Whatever happened before, the running workers become the wanted ones: missing workers are started, dead
//! ones are restarted after a delay, unwanted ones are told to end and then killed, and workers of an earlier agent are adopted.
//!
//! No process is started on a device while an unwanted process there has not ended, because the gateway counts the memory of a
//! replica as free as soon as it no longer wants the replica.
//!
//! A device that fails takes all its workers with it. They are killed at once, and restarted when the device has recovered and
//! the last of them has ended. Workers of other devices continue.
//!
//! The crate is pure: it has no clock, file system or randomness and uses ordered maps only, so that equal input gives equal
//! output.

mod artifacts;
mod backoff;
mod event;
mod fence;
mod limits;
mod reason;
mod reconciler;
mod record;
mod report;
mod task;
mod warm_shelf;

pub use event::{Action, Event};
pub use fence::{Fence, FenceError};
pub use limits::Limits;
pub use reason::{ExitCause, Reason};
pub use reconciler::Reconciler;
pub use report::{AlsoListening, WorkerReport};
pub use task::{ServedReplicas, Task, TaskId};
pub use warm_shelf::{WarmProgram, leaving};

#[cfg(test)]
mod tests;

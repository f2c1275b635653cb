//! What happens to a request between its arrival and its answer: admission, queue, batching, routing, retries.
//!
//! [`Engine`] is sans-io: it takes `now` and an [`Event`] and gives [`Action`]s; it owns no socket, task, lock or clock. The
//! gateway's driver and the simulator are two thin loops around the same engine. How waiting requests become batches is a
//! discipline's decision, one file each in `discipline/`.

mod books;
mod discipline;
mod engine;
mod estimate;
mod event;
mod fleet;
mod hash;
mod queue;
mod shortages;

pub use books::Books;
pub use discipline::DeadlineOptions;
pub use engine::{Engine, EngineConfig};
pub use event::{
    Action, BatchId, DeviceKey, Event, ModelKey, ModelLimits, Outcome, Refusal, ReplicaKey,
    ReplicaSpec, Request, RequestId, ShapeClass,
};

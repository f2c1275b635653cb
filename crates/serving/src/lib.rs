//! Admission, queueing, batching, routing and retries of inference requests.
//!
//! [`Engine`] is sans-io: it takes `now` and an [`Event`] and returns [`Action`]s; it owns no socket, task, lock or clock. The
//! gateway's driver and the simulator are two thin loops around the same engine. A discipline, one file each in `discipline/`,
//! decides how waiting requests become batches. Where the models of a device share a pool, the device decides among them.

mod adaptive_batch;
mod books;
mod config;
mod device_pool;
mod discipline;
mod division_budget;
mod engine;
mod event;
mod health;
mod key;
mod link_estimate;
mod lost_replicas;
mod memory_limits;
mod outcome;
mod overhead_fit;
mod overloaded_models;
mod parameters;
mod queue;
mod refused_loads;
mod replica;
mod replica_pool;
mod request;
mod retry_budget;
mod speed_estimate;
mod tenant_blame;
mod tenant_shares;
mod turns;
mod waiting_members;
mod wakes;

pub use books::Books;
pub use config::{DeadlineOptions, EngineConfig};
pub use engine::{Engine, EnginePart};
pub use event::{Action, BatchError, Event};
pub use key::{BatchKey, DeviceKey, ModelKey, ReplicaKey, RequestKey, ShapeClass, TenantKey};
pub use outcome::{Refusal, RequestOutcome};
pub use parameters::{DeviceSharing, ModelLimits, PoolMember, ReplicaParameters};
pub use request::Request;

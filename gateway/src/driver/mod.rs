//! The data plane: one task owns the serving engine and drives it with the clock, the workers' links and clients' requests.
//!
//! The control plane sets what shall be served ([`Target`], level-triggered) and reads the state of every replica
//! ([`LinkState`]); HTTP handlers submit requests and wait for their answer.

mod batch;
mod batch_failure;
mod catalog;
mod computed_work;
mod config;
mod data_plane;
mod message;
mod padding;
mod replicas;
mod request;
mod shape_class;
mod target;
mod task;

pub(crate) use batch::OutputRows;
pub(crate) use batch_failure::BatchFailure;
pub(crate) use catalog::{Catalog, FindModelError, ServedModel};
pub use computed_work::ComputedWork;
pub use config::DataPlaneConfig;
pub use data_plane::DataPlane;
pub(crate) use request::{Submission, UnansweredRequest};
pub use target::{LinkState, Target, TargetReplica};

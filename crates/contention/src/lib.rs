//! The time that a batch takes on a device: one model for planner, simulator, simulated executor and serving engine.
//!
//! [`ServiceTimes`] has the times of a replica that has its device to itself, from its profile and its compute share.
//! [`Interference`] has the rates of replicas that are active on one device at the same time. [`SlowdownModel`] learns from
//! observations what neither contains, a [`SharedDevice`] computes batches in virtual time, and a [`PairTable`] holds measurements for it. [`inss_seconds`] is the model of InSS, another way
//! from measured batches to times. All are pure functions of their arguments:
//! they read no clock and have no global state.

mod inss;
mod interference;
mod pairs;
mod service;
mod shared_device;
mod slowdown;

pub use inss::{
    InssDevice, InssModel, InssWorkload, LocalRegression, RegressionError, RegressionPoint,
    WaitingRequest, inss_seconds,
};
pub use interference::{ComputeDemand, Interference};
pub use pairs::{PairMember, PairTable, PairTableError};
pub use service::ServiceTimes;
pub use shared_device::{CompletedBatch, QueuedBatch, SharedDevice};
pub use slowdown::{
    BySaturation, ColocatedReplica, MeasuredSlowdown, Sensitivity, Slowdown, SlowdownBesideSet,
    SlowdownModel,
};

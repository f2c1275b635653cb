//! How long a batch takes on a device: the one physics that planner, simulator, simulated executor and serving engine share.
//!
//! [`ServiceTimes`] answers for a replica that has its device to itself, from its profile and its compute share;
//! [`Interference`] answers how fast replicas progress that are active on one device at the same time; [`SlowdownModel`] learns from
//! what is observed what neither knows, and a [`PairTable`] is what was measured for it. Pure functions of their arguments: no clock, and no state that is not passed around.

mod interference;
mod pairs;
mod service;
mod slowdown;

pub use interference::{Active, Interference};
pub use pairs::{PairMember, PairTable, PairTableError};
pub use service::ServiceTimes;
pub use slowdown::{Measured, Sensitivity, Slowdown, SlowdownModel, Tenant};

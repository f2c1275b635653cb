//! The gateway's decisions between a plan and serving replicas, sans-io.
//!
//! [`rollout`] turns the newest plan and the nodes' reports into the wanted state of every node and the replicas that the data
//! plane serves. It is level-triggered: it compares the current state with the planned one and keeps no history that it could not
//! lose.
//!
//! [`fencing`] says when the gateway must raise its epoch before an agent obeys it.
//!
//! The crate is pure: it has no clock, file system or randomness and uses ordered maps only, so that equal input gives equal
//! output.

pub mod fencing;
pub mod rollout;

//! A run of a scenario: a [cluster in virtual time](packhorse_virtual) without delays of its own, with the devices, clients and faults of the scenario.

mod active_faults;
mod autoscaler;
mod check;
mod control;
mod faults;
mod run;
mod scaling;
mod surroundings;

pub use check::SimulateError;
pub(crate) use check::check_replicas;
pub(crate) use run::{Simulation, link_times};

//! A discrete-event simulation of arrivals, network and devices around the serving engine.
//!
//! The loop is that of the gateway's driver, with an event queue in the place of sockets: it passes events to the engine and executes
//! the engine's actions. Events of the same time are handled in the order in which they were scheduled.

mod admin;
mod agents;
mod autoscaler;
mod control;
mod event;
mod faults;
mod keys;
mod numbered_queue;
mod outage;
mod replica;
mod run;
mod scaling;
mod world;

pub use replica::SimulateError;
pub(crate) use replica::check_replica;
pub(crate) use world::Simulation;

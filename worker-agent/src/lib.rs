//! The node side of Packhorse: an agent that makes what runs equal what is wanted, and the workers that run it.

pub mod agent;
pub mod devices;
pub mod executor;
pub mod handoff;
pub mod worker;

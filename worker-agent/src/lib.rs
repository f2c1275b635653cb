//! The node side of Packhorse: an agent that makes what runs equal what is wanted, and what it shares with its workers.
//!
//! The worker itself is a binary of its own with its own modules, `executor` and `worker`: what uses libtorch is not even
//! linked to the agent.

pub mod agent;
pub mod devices;
pub mod handoff;

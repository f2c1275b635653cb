//! The decisions between a plan and running replicas, sans-io.
//!
//! [`rollout`] is the gateway's half: from the newest plan and what the nodes report to what is wanted of every node and what the
//! data plane shall serve. [`reconcile`] is the agent's half: from what is wanted of a node and what runs there to the next
//! action. Both are level-triggered: they compare what is with what shall be and remember no history that they could not lose.
//!
//! Pure: no clock, no file system, no randomness, and ordered maps only, so that equal input gives equal output.

pub mod reconcile;
pub mod rollout;

//! The part of a Packhorse node that its programs share: the hand-over folder between agent and worker, and the node's devices.
//!
//! The package has three rooms. This library depends on no libtorch, so that the agent and `gpu-check` can use it. `agent/main.rs` is
//! the program `packhorse-agent`; it runs on machines without libtorch. `worker/main.rs` is the program `packhorse-worker`, the only
//! one that links libtorch. Agent and worker share no modules but these: they are separate processes that meet in the hand-over folder.

pub mod devices;
pub mod handoff;

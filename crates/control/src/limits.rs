//! The limits of the control plane.

/// The largest number of registered model versions.
pub(crate) const MAX_MODELS: usize = 10_000;
/// The largest number of nodes.
pub(crate) const MAX_NODES: usize = 1024;
/// The largest number of measured pairs of one kind of device. A policy learns from all of them within its time limit.
pub(crate) const MAX_PAIRS: usize = 1024;
/// The largest number of problems of a model repository.
pub(crate) const MAX_REPOSITORY_PROBLEMS: usize = 100;
/// The number of commands that may wait for the store.
pub(crate) const MAX_WAITING: usize = 1024;

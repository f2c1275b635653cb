//! NVIDIA's Multi-Process Service (MPS): with it replicas compute on one GPU at the same time, each with its share of the
//! multiprocessors.
//!
//! There is one control daemon per GPU, because a server that fails takes down the clients on all of its GPUs. A supervisor starts the
//! daemon, or adopts that of an earlier agent, and watches it; daemons outlive the agent, as workers do. On a GPU without MPS the
//! replicas are time-sliced, without shares, and the agent reports the reason. Clocks, compute mode and MIG are left unchanged.
//!
//! Source: NVIDIA, "Multi-Process Service", chapters "Architecture" and "Tools and Interface Reference".

mod control;
mod devices;
mod failure;
mod sharing;
mod supervisor;

pub(super) use devices::{MAX_CLIENTS, Mps, MpsDevice, ObservedShare};
pub(super) use sharing::GpuSharing;

//! The libtorch shim: calls into `csrc`, and tensor memory as bytes. It is a room of its own because it is the only one with `unsafe`;
//! everything else is written against the safe types of this module.
//!
//! Every function of the shim catches libtorch's exceptions, and runs in inference mode on whatever thread it is called.
#![expect(unsafe_code, reason = "libtorch is C++")]

mod backbone;
mod buffer;
mod call;
mod ffi;
mod graph;
mod memory;
mod module;
mod operators;
mod process;
mod profiler;
mod region;
mod registered_memory;
mod shared_inputs;
mod stream;

pub(super) use backbone::{Backbone, BatchOf, weights};
pub(super) use buffer::{ALIGNMENT, Buffer, HostTensor, header_of};
pub(super) use graph::Graph;
pub(in crate::executor) use memory::{cuda_memory, release_cuda_memory};
pub(super) use memory::{cuda_multiprocessors, cuda_peak_memory};
pub(super) use module::{Module, Optimization, Rewriting};
pub(super) use operators::{Input, operators};
pub(in crate::executor) use process::exit_now;
pub(super) use process::on_terminate;
pub(super) use profiler::{ProfilerRange, ProfilerRecording};
pub(super) use region::Region;
pub(in crate::executor) use region::{prepare_regions, release_free_memory};
pub(super) use registered_memory::{RegisteredInputs, RegisteredMemory};
pub(super) use shared_inputs::SharedInputs;
pub(super) use stream::{StageStream, StreamEvent};

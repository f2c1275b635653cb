//! Recorded runs of programs (CUDA graphs).

use std::ptr::{self, NonNull};

use tch::Tensor;

use super::{
    call::{call, pointers, run_program},
    ffi,
    module::Module,
    stream::StageStream,
};
use crate::executor::torch::error::TorchError;

/// The recorded work of one run of a program. For inputs of the same shapes, the device repeats it without a launch of each kernel.
pub(in crate::executor::torch) struct Graph(NonNull<ffi::Graph>);

// SAFETY: neither a CUDA graph nor its tensors belong to a thread.
unsafe impl Send for Graph {}
// SAFETY: a graph is only replayed, one replay after the other, like the runs of its program.
unsafe impl Sync for Graph {}

impl Graph {
    /// Records a run. The program must have run with inputs of these shapes before, and nothing else may run meanwhile. Intermediate
    /// results are in the memory of `pool_owner`, if there is one, which is never replayed at the same time.
    pub(in crate::executor::torch) fn record(
        module: &Module,
        stream: &StageStream,
        inputs: &[Tensor],
        pool_owner: Option<&Self>,
    ) -> Result<Self, TorchError> {
        let inputs = pointers(inputs);
        let pool_owner = pool_owner.map_or(ptr::null_mut(), |graph| graph.0.as_ptr());
        let mut graph = ptr::null_mut();
        // SAFETY: module, stream, inputs and the other graph live during the call, and the pointers are valid for writes.
        call(|message| unsafe {
            ffi::packhorse_graph_record(
                module.as_ptr(),
                stream.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                pool_owner,
                &raw mut graph,
                message,
            )
        })?;
        Ok(Self(NonNull::new(graph).expect("a recorded graph")))
    }

    /// Repeats the run with other inputs, like [`Module::forward`]. The stream must be the one of the recording.
    pub(in crate::executor::torch) fn replay(
        &self,
        stream: &StageStream,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, TorchError> {
        let inputs = pointers(inputs);
        run_program(|outputs, capacity, count, message| {
            // SAFETY: graph, stream and inputs live during the call; there is room for `capacity` outputs.
            unsafe {
                ffi::packhorse_graph_replay(
                    self.0.as_ptr(),
                    stream.as_ptr(),
                    inputs.as_ptr(),
                    inputs.len(),
                    outputs,
                    capacity,
                    count,
                    message,
                )
            }
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the graph.
        unsafe { ffi::packhorse_graph_free(self.0.as_ptr()) }
    }
}

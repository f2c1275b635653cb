//! Loaded programs and recorded runs of them.

use std::{
    ffi::{CString, c_int},
    path::Path,
    ptr::{self, NonNull},
};

use packhorse_wire::MAX_TENSORS;
use tch::Tensor;

use super::{Lane, Thrown, ThrownKind, call, device_code, ffi};

/// How much is done to a program before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Treatment {
    /// As it was written.
    Plain = 0,
    /// Parameters become constants, and what follows from them is computed once.
    Frozen = 1,
    /// Frozen, and rewritten to the operators that are fastest on the device.
    Optimized = 2,
    /// Nothing any more: the file is a package.
    Compiled = 3,
}

/// A loaded program.
pub(in super::super) struct Module(NonNull<ffi::Module>);

// SAFETY: a torch::jit::Module belongs to no thread.
unsafe impl Send for Module {}
// SAFETY: running one module on several threads is allowed (the interpreter keeps its state per run); a program that writes
// to its own buffers, and a package, needs its runs one after the other, which is what `LoadedBatch::compute` demands of its caller.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a file. `name` is that of the program in a package; TorchScript has none.
    pub(in super::super) fn load(
        path: &Path,
        name: &str,
        cuda_device: Option<u32>,
        treatment: Treatment,
    ) -> Result<Self, Thrown> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())
            .expect("paths have no NUL: the operating system found this one");
        let name = CString::new(name).expect("names of programs have no NUL");
        let mut module = ptr::null_mut();
        // SAFETY: path and name are C strings, and the others are places to write to; all outlive the call.
        call(|message| unsafe {
            let device = device_code(cuda_device);
            ffi::packhorse_module_load(
                path.as_ptr(),
                name.as_ptr(),
                device,
                treatment as c_int,
                &raw mut module,
                message,
            )
        })?;
        Ok(Self(NonNull::new(module).expect("a loaded module")))
    }

    /// How many arguments `forward` must and may be given.
    pub(in super::super) fn arity(&self) -> Result<(usize, usize), Thrown> {
        let (mut required, mut accepted) = (0, 0);
        // SAFETY: the module lives as long as `self`, and the others are places to write to.
        call(|message| unsafe {
            ffi::packhorse_module_arity(
                self.0.as_ptr(),
                &raw mut required,
                &raw mut accepted,
                message,
            )
        })?;
        Ok((required, accepted))
    }

    /// Runs `forward` on a lane: the outputs are there when what the lane has been told is done. Nobody else has their memory.
    pub(in super::super) fn forward(
        &self,
        lane: &Lane,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, Thrown> {
        let inputs = pointers(inputs);
        outputs(|outputs, capacity, count, message| {
            // SAFETY: module, lane and inputs live across the call, which does not change the inputs' handles; there is room
            // for as many outputs as we say.
            unsafe {
                ffi::packhorse_module_forward(
                    self.0.as_ptr(),
                    lane.as_ptr(),
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

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is ours, and this is its end.
        unsafe { ffi::packhorse_module_free(self.0.as_ptr()) }
    }
}

/// What a device does in a run of a program, recorded (a CUDA graph): for inputs of the same shapes it does it again without
/// being told kernel by kernel.
pub(in super::super) struct Graph(NonNull<ffi::Graph>);

// SAFETY: neither a CUDA graph nor its tensors belong to a thread.
unsafe impl Send for Graph {}
// SAFETY: it is only ever replayed, one replay after the other, like the runs of the program it stands for.
unsafe impl Sync for Graph {}

impl Graph {
    /// Records a run. The program has run with inputs of these shapes before, and nothing else runs meanwhile. What is computed on the way
    /// to the outputs is kept in the memory of the recording `beside` this one, which is never replayed at the same time.
    pub(in super::super) fn record(
        module: &Module,
        lane: &Lane,
        inputs: &[Tensor],
        beside: Option<&Self>,
    ) -> Result<Self, Thrown> {
        let inputs = pointers(inputs);
        let beside = beside.map_or(ptr::null_mut(), |graph| graph.0.as_ptr());
        let mut graph = ptr::null_mut();
        // SAFETY: module, lane, inputs and the other graph live across the call, and the others are places to write to.
        call(|message| unsafe {
            ffi::packhorse_graph_record(
                module.0.as_ptr(),
                lane.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                beside,
                &raw mut graph,
                message,
            )
        })?;
        Ok(Self(NonNull::new(graph).expect("a recorded graph")))
    }

    /// As [`Module::forward`], on the lane of the recording.
    pub(in super::super) fn replay(
        &self,
        lane: &Lane,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, Thrown> {
        let inputs = pointers(inputs);
        outputs(|outputs, capacity, count, message| {
            // SAFETY: graph, lane and inputs live across the call; there is room for as many outputs as we say.
            unsafe {
                ffi::packhorse_graph_replay(
                    self.0.as_ptr(),
                    lane.as_ptr(),
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
        // SAFETY: the graph is ours, and this is its end.
        unsafe { ffi::packhorse_graph_free(self.0.as_ptr()) }
    }
}

fn pointers(tensors: &[Tensor]) -> Vec<ffi::TensorPtr> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    tensors.iter().map(pointer).collect()
}

/// Calls a function of the shim that writes outputs.
fn outputs(
    function: impl FnOnce(*mut ffi::TensorPtr, usize, *mut usize, ffi::Message) -> c_int,
) -> Result<Vec<Tensor>, Thrown> {
    let mut outputs = [ptr::null_mut(); MAX_TENSORS];
    let mut count = 0;
    call(|message| function(outputs.as_mut_ptr(), outputs.len(), &raw mut count, message))?;
    let Some(outputs) = outputs.get(..count) else {
        let text = format!("{count} tensors");
        let kind = ThrownKind::NoTensors;
        return Err(Thrown { text, kind });
    };
    // SAFETY: the shim made these many tensors and left them to us.
    let own = |tensor: &ffi::TensorPtr| unsafe { Tensor::from_ptr(*tensor) };
    Ok(outputs.iter().map(own).collect())
}

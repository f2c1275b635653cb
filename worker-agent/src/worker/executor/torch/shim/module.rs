//! Loaded programs.

use std::{
    ffi::{CString, c_char, c_int},
    path::Path,
    ptr::{self, NonNull},
};

use packhorse_cluster::TensorSpec;
use tch::Tensor;

use super::{
    call::{call, device_code, pointers, run_program, text},
    ffi,
    stream::StageStream,
};
use crate::executor::torch::error::TorchError;

/// The optimization of a program before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::executor::torch) enum Optimization {
    /// None.
    Plain = 0,
    /// Parameters become constants, and expressions of constants are computed once.
    Frozen = 1,
    /// Frozen, and rewritten to the operators that are fastest on the device.
    Optimized = 2,
    /// None, because the file is a package, which was compiled ahead of time.
    Compiled = 3,
    /// Optimized with all of libtorch's steps, also those that are known to be wrong.
    #[cfg(test)]
    Unguarded = 4,
}

/// The rewriting of a program when it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::executor::torch) struct Rewriting {
    /// The optimization.
    pub(in crate::executor::torch) optimization: Optimization,
    /// The operators that are not rewritten to oneDNN's.
    pub(in crate::executor::torch) kept: Vec<String>,
}

impl From<Optimization> for Rewriting {
    fn from(optimization: Optimization) -> Self {
        Self {
            optimization,
            kept: Vec::new(),
        }
    }
}

/// A loaded program.
pub(in crate::executor::torch) struct Module(NonNull<ffi::Module>);

// SAFETY: a torch::jit::Module belongs to no thread.
unsafe impl Send for Module {}
// SAFETY: several threads may run one module, because the interpreter keeps its state per run. A program that writes to its own
// buffers, and a package, must run one batch after the other, which `LoadedBatch::compute` requires of its callers.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a file. `name` is the name of the program in a package, and is empty for TorchScript.
    pub(in crate::executor::torch) fn load(
        path: &Path,
        name: &str,
        cuda_device: Option<u32>,
        rewriting: &Rewriting,
    ) -> Result<Self, TorchError> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())
            .expect("a path from the operating system has no NUL");
        let name = CString::new(name).expect("the name of a program has no NUL");
        let kept = CString::new(rewriting.kept.join(" "))
            .expect("names of operators from the shim have no NUL");
        let mut module = ptr::null_mut();
        // SAFETY: path, name and kept are C strings that live during the call, and the pointers are valid for writes.
        call(|message| unsafe {
            let device = device_code(cuda_device);
            ffi::packhorse_module_load(
                path.as_ptr(),
                name.as_ptr(),
                device,
                rewriting.optimization as c_int,
                kept.as_ptr(),
                &raw mut module,
                message,
            )
        })?;
        Ok(Self(NonNull::new(module).expect("a loaded module")))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::Module {
        self.0.as_ptr()
    }

    /// Returns the least and the largest number of arguments of `forward`.
    pub(in crate::executor::torch) fn arity(&self) -> Result<(usize, usize), TorchError> {
        let (mut required, mut accepted) = (0, 0);
        // SAFETY: the module lives as long as `self`, and the pointers are valid for writes during the call.
        call(|message| unsafe {
            ffi::packhorse_module_arity(
                self.as_ptr(),
                &raw mut required,
                &raw mut accepted,
                message,
            )
        })?;
        Ok((required, accepted))
    }

    /// Returns the operators that were rewritten to oneDNN's, or would have been if they had not been kept.
    pub(in crate::executor::torch) fn rewritten(&self) -> Result<Vec<String>, TorchError> {
        // SAFETY: the module lives as long as `self`, and the pointer is valid for writes during the call.
        let words = text(|text, message| unsafe {
            ffi::packhorse_module_rewritten(self.as_ptr(), text, message)
        })?;
        Ok(words.split_whitespace().map(str::to_owned).collect())
    }

    /// Says which outputs are declared: those of a dict that the program answers have their names as keys.
    pub(in crate::executor::torch) fn declare(
        &mut self,
        outputs: &[TensorSpec],
    ) -> Result<(), TorchError> {
        let names = outputs.iter().map(|output| {
            CString::new(output.name.as_str()).expect("a name has no control characters")
        });
        let names: Vec<CString> = names.collect();
        let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: the module lives as long as `self`, and the names are C strings that live during the call.
        call(|message| unsafe {
            ffi::packhorse_module_declare(self.as_ptr(), pointers.as_ptr(), pointers.len(), message)
        })
    }

    /// Returns the names of the tensors in the last dict that was answered while no output was declared; none if there was no dict.
    pub(in crate::executor::torch) fn answered(&self) -> Result<Vec<String>, TorchError> {
        // SAFETY: the module lives as long as `self`, and the pointer is valid for writes during the call.
        let lines = text(|text, message| unsafe {
            ffi::packhorse_module_answered(self.as_ptr(), text, message)
        })?;
        Ok(lines.lines().map(str::to_owned).collect())
    }

    /// Returns true unless it is certain that a run leaves nothing behind that the next one reads.
    pub(in crate::executor::torch) fn has_state(&self) -> bool {
        // SAFETY: the module lives as long as `self`.
        unsafe { ffi::packhorse_module_has_state(self.as_ptr()) != 0 }
    }

    /// Returns true if it is certain that no run writes to the program's constants.
    pub(in crate::executor::torch) fn only_reads_weights(&self) -> bool {
        // SAFETY: the module lives as long as `self`.
        unsafe { ffi::packhorse_module_only_reads_weights(self.as_ptr()) != 0 }
    }

    /// Returns true if it is certain that no run writes to an input or keeps one.
    pub(in crate::executor::torch) fn only_reads_inputs(&self) -> bool {
        // SAFETY: the module lives as long as `self`.
        unsafe { ffi::packhorse_module_only_reads_inputs(self.as_ptr()) != 0 }
    }

    /// Runs `forward` in a stream. The outputs, whose memory belongs to the caller alone, are complete when the stream has done its work.
    pub(in crate::executor::torch) fn forward(
        &self,
        stream: &StageStream,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, TorchError> {
        let inputs = pointers(inputs);
        run_program(|outputs, capacity, count, message| {
            // SAFETY: module, stream and inputs live during the call, which does not change the inputs' handles; there is room for
            // `capacity` outputs.
            unsafe {
                ffi::packhorse_module_forward(
                    self.as_ptr(),
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

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the module.
        unsafe { ffi::packhorse_module_free(self.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use tch::{CModule, Kind};

    use super::*;

    /// Returns true if it is certain of this program that it only reads its input.
    fn only_reads(optimization: Optimization, program: fn(&Tensor) -> Tensor) -> bool {
        let example = [Tensor::ones([2, 3], (Kind::Float, tch::Device::Cpu))];
        let mut traced = |inputs: &[Tensor]| vec![program(&inputs[0])];
        let module = CModule::create_by_tracing("Traced", "forward", &example, &mut traced);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("traced.pt");
        module.unwrap().save(&file).unwrap();
        let module = Module::load(&file, "", None, &optimization.into()).unwrap();
        module.only_reads_inputs()
    }

    #[test]
    fn a_program_that_writes_to_its_input_or_to_a_view_of_it_is_known() {
        for optimization in [Optimization::Frozen, Optimization::Optimized] {
            assert!(only_reads(optimization, |x| x * 2.0 + x.relu()));
            assert!(only_reads(optimization, |x| x.view([3, 2])));
            assert!(only_reads(optimization, |x| (x * 2.0).relu_()));
            assert!(!only_reads(optimization, |x| x.shallow_clone().relu_()));
            assert!(!only_reads(optimization, |x| x.view([3, 2]).relu_()));
        }
    }
}

//! Programs with a shared backbone.

use std::{
    ffi::{CStr, CString, c_char},
    path::Path,
    ptr::{self, NonNull},
};

use packhorse_wire::MAX_TENSORS;
use tch::Tensor;

use super::{
    call::{call, device_code, pointers},
    ffi,
    stream::StageStream,
};
use crate::executor::torch::error::{TorchError, TorchErrorKind};

/// Loaded programs that begin with the same operators on the same weights, which exist once.
pub(in crate::executor::torch) struct Backbone(NonNull<ffi::Backbone>);

// SAFETY: the interpreter's compiled programs belong to no thread.
unsafe impl Send for Backbone {}
// SAFETY: it is run by one thread after the other, which `Executor::run_together` requires of its callers.
unsafe impl Sync for Backbone {}

/// A batch for one of the programs.
pub(in crate::executor::torch) struct BatchOf<'a> {
    /// The index of the program.
    pub(in crate::executor::torch) program: usize,
    /// The inputs. All batches have as many.
    pub(in crate::executor::torch) inputs: &'a [Tensor],
}

impl Backbone {
    /// Loads TorchScript files.
    pub(in crate::executor::torch) fn load(
        paths: &[&Path],
        cuda_device: Option<u32>,
    ) -> Result<Self, TorchError> {
        let paths: Vec<CString> = paths.iter().map(|path| c_path(path)).collect();
        let pointers: Vec<*const c_char> = paths.iter().map(|path| path.as_ptr()).collect();
        let mut backbone = ptr::null_mut();
        // SAFETY: the paths are C strings that live during the call, and the pointers are valid for writes.
        call(|message| unsafe {
            ffi::packhorse_backbone_load(
                pointers.as_ptr(),
                pointers.len(),
                device_code(cuda_device),
                &raw mut backbone,
                message,
            )
        })?;
        Ok(Self(NonNull::new(backbone).expect("a loaded backbone")))
    }

    /// Returns true if the shared operators keep the rows of these inputs apart, so that batches may run together.
    pub(in crate::executor::torch) fn keeps_rows(
        &self,
        stream: &StageStream,
        inputs: &[Tensor],
    ) -> Result<bool, TorchError> {
        let inputs = pointers(inputs);
        let mut keeps = 0;
        // SAFETY: backbone, stream and inputs live during the call, and the pointer is valid for writes.
        call(|message| unsafe {
            ffi::packhorse_backbone_keeps_rows(
                self.0.as_ptr(),
                stream.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                &raw mut keeps,
                message,
            )
        })?;
        Ok(keeps != 0)
    }

    /// Runs batches together in a stream, and returns the outputs of each. They are complete when the stream has done its work.
    pub(in crate::executor::torch) fn forward(
        &self,
        stream: &StageStream,
        batches: &[BatchOf<'_>],
    ) -> Result<Vec<Vec<Tensor>>, TorchError> {
        let input_count = batches.first().map_or(0, |batch| batch.inputs.len());
        let inputs = batches.iter().flat_map(|batch| pointers(batch.inputs));
        let inputs: Vec<ffi::TensorPtr> = inputs.collect();
        assert_eq!(inputs.len(), input_count * batches.len(), "inputs differ");
        let programs: Vec<usize> = batches.iter().map(|batch| batch.program).collect();
        let mut outputs = vec![ptr::null_mut(); MAX_TENSORS * batches.len()];
        let mut counts = vec![0; batches.len()];
        // SAFETY: all arrays live during the call and have the lengths that it is told: `input_count` inputs and a program for each batch, and
        // a number of outputs for each batch. There is room for `capacity` outputs.
        call(|message| unsafe {
            ffi::packhorse_backbone_forward(
                self.0.as_ptr(),
                stream.as_ptr(),
                inputs.as_ptr(),
                input_count,
                programs.as_ptr(),
                programs.len(),
                outputs.as_mut_ptr(),
                outputs.len(),
                counts.as_mut_ptr(),
                message,
            )
        })?;
        let count: usize = counts.iter().sum();
        if count > outputs.len() {
            let text = format!("{count} tensors");
            let kind = TorchErrorKind::NoTensors;
            return Err(TorchError { text, kind });
        }
        let mut next = outputs.into_iter();
        // SAFETY: the shim created `count` tensors, which now belong to the caller.
        let own = |tensor| unsafe { Tensor::from_ptr(tensor) };
        let of_batch = |count: &usize| next.by_ref().take(*count).map(own).collect();
        Ok(counts.iter().map(of_batch).collect())
    }
}

impl Drop for Backbone {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the backbone.
        unsafe { ffi::packhorse_backbone_free(self.0.as_ptr()) }
    }
}

/// Returns the operators of a file that read weights, as the lines that `csrc/shim.h` describes.
pub(in crate::executor::torch) fn weights(path: &Path) -> Result<String, TorchError> {
    let path = c_path(path);
    let mut text = ptr::null_mut();
    // SAFETY: the path is a C string that lives during the call, and the pointer is valid for writes.
    call(|message| unsafe {
        ffi::packhorse_backbone_weights(path.as_ptr(), &raw mut text, message)
    })?;
    // SAFETY: the shim wrote a C string here, which this function owns until it frees it.
    unsafe {
        let lines = CStr::from_ptr(text).to_string_lossy().into_owned();
        ffi::packhorse_message_free(text);
        Ok(lines)
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes())
        .expect("a path from the operating system has no NUL")
}

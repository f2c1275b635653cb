//! The calling convention of the shim: codes and messages become errors, pointers become tensors.

use std::{
    ffi::{CStr, c_char, c_int},
    ptr,
};

use packhorse_cluster::Datatype;
use packhorse_wire::MAX_TENSORS;
use tch::Tensor;

use super::ffi;
use crate::executor::torch::error::{TorchError, TorchErrorKind};

/// Calls a function of the shim whose last argument receives the message of an exception.
pub(super) fn call(function: impl FnOnce(*mut *mut c_char) -> c_int) -> Result<(), TorchError> {
    let mut message = ptr::null_mut();
    let kind = match function(&raw mut message) {
        ffi::OK => return Ok(()),
        code => error_kind(code),
    };
    let mut text = String::new();
    if !message.is_null() {
        // SAFETY: the shim wrote a C string here, which this function owns until it frees it.
        unsafe {
            text.push_str(&CStr::from_ptr(message).to_string_lossy());
            ffi::packhorse_message_free(message);
        }
    }
    Err(TorchError { text, kind })
}

/// Calls a function of the shim that writes a text.
pub(super) fn text(
    function: impl FnOnce(*mut *mut c_char, ffi::Message) -> c_int,
) -> Result<String, TorchError> {
    let mut text = ptr::null_mut();
    call(|message| function(&raw mut text, message))?;
    // SAFETY: the shim wrote a C string here, which this function owns until it frees it.
    unsafe {
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        ffi::packhorse_message_free(text);
        Ok(owned)
    }
}

/// Calls a function of the shim that creates a tensor.
pub(super) fn create_tensor(
    function: impl FnOnce(*mut ffi::TensorPtr, ffi::Message) -> c_int,
) -> Result<Tensor, TorchError> {
    let mut tensor = ptr::null_mut();
    call(|message| function(&raw mut tensor, message))?;
    // SAFETY: the shim created this tensor, which now belongs to the caller.
    Ok(unsafe { Tensor::from_ptr(tensor) })
}

/// Calls a function of the shim that runs a program and writes its outputs.
pub(super) fn run_program(
    function: impl FnOnce(*mut ffi::TensorPtr, usize, *mut usize, ffi::Message) -> c_int,
) -> Result<Vec<Tensor>, TorchError> {
    let mut outputs = [ptr::null_mut(); MAX_TENSORS];
    let mut count = 0;
    call(|message| function(outputs.as_mut_ptr(), outputs.len(), &raw mut count, message))?;
    let Some(outputs) = outputs.get(..count) else {
        let text = format!("{count} tensors");
        let kind = TorchErrorKind::NoTensors;
        return Err(TorchError { text, kind });
    };
    // SAFETY: the shim created `count` tensors, which now belong to the caller.
    let own = |tensor: &ffi::TensorPtr| unsafe { Tensor::from_ptr(*tensor) };
    Ok(outputs.iter().map(own).collect())
}

/// Returns the tensors' pointers, which live as long as the tensors.
pub(super) fn pointers(tensors: &[Tensor]) -> Vec<ffi::TensorPtr> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    tensors.iter().map(pointer).collect()
}

/// Returns the number of a device in the shim: a CUDA index, or -1 for the CPU.
pub(super) fn device_code(cuda_device: Option<u32>) -> c_int {
    cuda_device.map_or(-1, |index| c_int::try_from(index).unwrap_or(c_int::MAX))
}

/// Returns the kind of an error by its code.
pub(super) fn error_kind(code: c_int) -> TorchErrorKind {
    match code {
        ffi::OUT_OF_MEMORY => TorchErrorKind::OutOfMemory,
        ffi::NO_TENSORS => TorchErrorKind::NoTensors,
        ffi::DEVICE_FAILED => TorchErrorKind::DeviceFailed,
        _ => TorchErrorKind::Exception,
    }
}

/// Returns the number of a datatype in `c10::ScalarType`; `None` if libtorch has no such type.
pub(super) const fn scalar_type(datatype: Datatype) -> Option<c_int> {
    Some(match datatype {
        Datatype::Uint8 => 0,
        Datatype::Int8 => 1,
        Datatype::Int16 => 2,
        Datatype::Int32 => 3,
        Datatype::Int64 => 4,
        Datatype::Fp16 => 5,
        Datatype::Fp32 => 6,
        Datatype::Fp64 => 7,
        Datatype::Bool => 11,
        Datatype::Bf16 => 15,
        Datatype::Uint16 => 27,
        Datatype::Uint32 => 28,
        Datatype::Uint64 => 29,
        Datatype::Bytes => return None,
    })
}

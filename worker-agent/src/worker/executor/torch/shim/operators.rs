//! The operators of a TorchScript file.

use std::{
    ffi::{CStr, CString},
    path::Path,
    ptr,
};

use packhorse_cluster::Datatype;

use super::{
    call::{call, scalar_type},
    ffi,
};
use crate::executor::torch::error::TorchError;

/// An input of a program.
pub(in crate::executor::torch) struct Input {
    /// The datatype.
    pub(in crate::executor::torch) datatype: Datatype,
    /// The dimensions, with -1 in place of the batch size.
    pub(in crate::executor::torch) dims: Vec<i64>,
}

/// Returns the operators of a file for batches of these sizes, as the lines that `csrc/shim.h` describes. Reads the whole file and computes
/// nothing.
pub(in crate::executor::torch) fn operators(
    path: &Path,
    inputs: &[Input],
    batches: &[u32],
) -> Result<String, TorchError> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())
        .expect("a path from the operating system has no NUL");
    let batches: Vec<i64> = batches.iter().copied().map(i64::from).collect();
    let types = inputs
        .iter()
        .map(|input| scalar_type(input.datatype).expect("the program's signature was checked"));
    let types: Vec<_> = types.collect();
    let dims: Vec<i64> = inputs
        .iter()
        .flat_map(|input| &input.dims)
        .copied()
        .collect();
    let ranks: Vec<usize> = inputs.iter().map(|input| input.dims.len()).collect();
    let mut text = ptr::null_mut();
    // SAFETY: all arrays live during the call and have the lengths that it is told: as many types and ranks as inputs, and as many dims as
    // the sum of the ranks. The pointers are valid for writes.
    call(|message| unsafe {
        ffi::packhorse_operators(
            path.as_ptr(),
            batches.as_ptr(),
            batches.len(),
            types.as_ptr(),
            dims.as_ptr(),
            ranks.as_ptr(),
            inputs.len(),
            &raw mut text,
            message,
        )
    })?;
    // SAFETY: the shim wrote a C string here, which this function owns until it frees it.
    unsafe {
        let lines = CStr::from_ptr(text).to_string_lossy().into_owned();
        ffi::packhorse_message_free(text);
        Ok(lines)
    }
}

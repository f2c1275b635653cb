//! Inputs that lie in another process's memory.

use std::{ptr::NonNull, sync::Arc};

use packhorse_wire::{ByteRange, TensorHeader};
use tch::Tensor;

use super::{
    buffer::{ALIGNMENT, dims_and_type},
    call::create_tensor,
    ffi,
};
use crate::executor::{stages::InputMemory, torch::error::TorchError};

/// The inputs of a batch in another process's memory, which can only be read.
pub(in crate::executor::torch) struct SharedInputs {
    addresses: Vec<NonNull<u8>>,
    headers: Vec<TensorHeader>,
    /// Keeps the memory mapped.
    _memory: Arc<dyn InputMemory>,
}

// SAFETY: the addresses are of memory that belongs to no thread and stays mapped as long as this lives.
unsafe impl Send for SharedInputs {}

impl SharedInputs {
    /// Finds inputs that lie in these ranges; `None` if they lie in several, or one is not within the memory, or not aligned as libtorch aligns
    /// tensors.
    pub(in crate::executor::torch) fn find(
        memory: &Arc<dyn InputMemory>,
        ranges: &[ByteRange],
        headers: Vec<TensorHeader>,
    ) -> Option<Self> {
        let [range] = ranges else { return None };
        let mut offset = range.offset;
        let find = |header: &TensorHeader| {
            let length = header.byte_len();
            let address = memory.view().address(offset, length as usize).ok()?;
            offset += length;
            address
                .addr()
                .get()
                .is_multiple_of(ALIGNMENT)
                .then_some(address)
        };
        let addresses = headers.iter().map(find).collect::<Option<_>>()?;
        Some(Self {
            addresses,
            headers,
            _memory: Arc::clone(memory),
        })
    }

    /// Returns the inputs as tensors, which only programs may get that do not write to them, and which must not outlive this.
    pub(in crate::executor::torch) fn tensors(&self) -> Result<Vec<Tensor>, TorchError> {
        let tensor = |(address, header): (&NonNull<u8>, &TensorHeader)| {
            let (dims, scalar_type) = dims_and_type(header);
            // SAFETY: `dims` has `dims.len()` elements, the pointers are valid for writes, and the memory is readable as long as `self`.
            create_tensor(|tensor, message| unsafe {
                ffi::packhorse_tensor_over(
                    address.as_ptr().cast(),
                    scalar_type,
                    dims.as_ptr(),
                    dims.len(),
                    tensor,
                    message,
                )
            })
        };
        self.addresses
            .iter()
            .zip(&self.headers)
            .map(tensor)
            .collect()
    }
}

//! Host memory for tensors.

use std::{ffi::c_int, slice};

use packhorse_cluster::{Datatype, Shape};
use packhorse_wire::TensorHeader;
use tch::Tensor;

use super::{
    call::{create_tensor, scalar_type},
    ffi,
};
use crate::executor::torch::error::{TorchError, TorchErrorKind};

/// The alignment of tensors in host memory, in bytes: that of libtorch's allocator.
pub(in crate::executor::torch) const ALIGNMENT: usize = 64;

/// Host memory that is reused for one batch after the other. A device copies from and to pinned memory asynchronously.
pub(in crate::executor::torch) struct Buffer {
    bytes: Tensor,
    size: usize,
    pinned: bool,
}

// SAFETY: through a shared reference the bytes are only read, and the handle, whose reference count is atomic, is only copied.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates memory with undefined content.
    pub(in crate::executor::torch) fn new(size: usize, pinned: bool) -> Result<Self, TorchError> {
        // SAFETY: the pointers are valid for writes during the call.
        let bytes = create_tensor(|tensor, message| unsafe {
            ffi::packhorse_buffer_new(size as u64, c_int::from(pinned), tensor, message)
        })?;
        Ok(Self {
            bytes,
            size,
            pinned,
        })
    }

    /// Makes room for `size` bytes that nothing else uses; the content is lost. If a program has kept an input, the memory is left to the
    /// program and replaced here.
    pub(in crate::executor::torch) fn reserve(&mut self, size: usize) -> Result<(), TorchError> {
        // SAFETY: the tensor lives as long as `self`.
        let shared = unsafe { ffi::packhorse_buffer_is_shared(self.bytes.as_ptr()) } != 0;
        if shared || size > self.size {
            *self = Self::new(size.max(self.size), self.pinned)?;
        }
        Ok(())
    }

    /// Gives memory back beyond this size.
    pub(in crate::executor::torch) fn shrink_to(&mut self, size: usize) -> Result<(), TorchError> {
        if self.size > size {
            *self = Self::new(size, self.pinned)?;
        }
        Ok(())
    }

    /// Returns the size in bytes.
    pub(in crate::executor::torch) fn size(&self) -> usize {
        self.size
    }

    /// Returns `len` bytes at `start`.
    pub(in crate::executor::torch) fn bytes(&self, start: usize, len: usize) -> &[u8] {
        assert!(start + len <= self.size, "the buffer was reserved for this");
        if len == 0 {
            return &[];
        }
        // SAFETY: the buffer has these bytes, and nothing writes to them while they are borrowed: tensors in the buffer are written before
        // they are passed on.
        unsafe { slice::from_raw_parts(self.bytes.data_ptr().cast::<u8>().add(start), len) }
    }

    /// Returns `len` bytes at `start`.
    pub(in crate::executor::torch) fn bytes_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start + len <= self.size, "the buffer was reserved for this");
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the buffer has these bytes, this is the only reference, and every byte pattern is a `u8`.
        unsafe { slice::from_raw_parts_mut(self.bytes.data_ptr().cast::<u8>().add(start), len) }
    }

    /// Returns a tensor in the buffer at `start`, a multiple of [`ALIGNMENT`].
    pub(in crate::executor::torch) fn tensor(
        &self,
        start: usize,
        header: &TensorHeader,
    ) -> Result<Tensor, TorchError> {
        assert!(
            start + header.byte_len() as usize <= self.size,
            "the buffer was reserved for this"
        );
        let (dims, scalar_type) = dims_and_type(header);
        // SAFETY: `dims` has `dims.len()` elements, the buffer lives during the call, and the pointers are valid for writes.
        create_tensor(|tensor, message| unsafe {
            ffi::packhorse_buffer_view(
                self.bytes.as_ptr(),
                start as u64,
                scalar_type,
                dims.as_ptr(),
                dims.len(),
                tensor,
                message,
            )
        })
    }
}

/// Returns the dimensions of a tensor and the number of its datatype, as the shim has them.
pub(super) fn dims_and_type(header: &TensorHeader) -> (Vec<i64>, c_int) {
    let dims = header.shape().dims().iter().map(|dim| dim.cast_signed());
    let scalar_type = scalar_type(header.datatype()).expect("headers have a sized datatype");
    (dims.collect(), scalar_type)
}

/// Returns the datatype and shape of a program's output.
pub(in crate::executor::torch) fn header_of(tensor: &Tensor) -> Result<TensorHeader, TorchError> {
    let unsupported = |text: String| TorchError {
        text,
        kind: TorchErrorKind::NoTensors,
    };
    // SAFETY: the tensor lives during the call.
    let code = unsafe { ffi::packhorse_tensor_scalar_type(tensor.as_ptr()) };
    let datatype = Datatype::ALL
        .into_iter()
        .find(|datatype| scalar_type(*datatype) == Some(code))
        .ok_or_else(|| {
            unsupported("a tensor of a datatype that the protocol does not support".to_owned())
        })?;
    let shape = Shape::new(&tensor.size()).map_err(|e| unsupported(e.to_string()))?;
    TensorHeader::new(datatype, shape).map_err(|e| unsupported(e.to_string()))
}

/// A contiguous tensor in host memory that nothing writes to any more.
pub(in crate::executor::torch) struct HostTensor {
    tensor: Tensor,
    byte_len: usize,
}

impl HostTensor {
    /// Returns `None` if the tensor is not contiguous or not in host memory.
    pub(in crate::executor::torch) fn new(tensor: Tensor, header: &TensorHeader) -> Option<Self> {
        let readable = tensor.device() == tch::Device::Cpu && tensor.is_contiguous();
        let byte_len = header.byte_len() as usize;
        readable.then_some(Self { tensor, byte_len })
    }
}

impl AsRef<[u8]> for HostTensor {
    fn as_ref(&self) -> &[u8] {
        if self.byte_len == 0 {
            return &[];
        }
        // SAFETY: a contiguous CPU tensor of this many bytes starts here, and nothing writes to it (see the type).
        unsafe { slice::from_raw_parts(self.tensor.data_ptr().cast(), self.byte_len) }
    }
}

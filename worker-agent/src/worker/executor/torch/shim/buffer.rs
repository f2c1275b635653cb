//! Memory of the host that tensors come and go in.

use std::{ffi::c_int, slice};

use packhorse_cluster::{Datatype, Shape};
use packhorse_wire::TensorHeader;
use tch::Tensor;

use super::{Thrown, ThrownKind, ffi, make_tensor, scalar_type};

/// Memory of the host that is used again and again, for one batch after the other. Pinned, a device copies from and to it by
/// itself.
pub(in super::super) struct Buffer {
    bytes: Tensor,
    size: usize,
    pinned: bool,
}

// SAFETY: through a shared reference its bytes are only read and its handle, whose count is atomic, only copied.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// What it holds is not said.
    pub(in super::super) fn new(size: usize, pinned: bool) -> Result<Self, Thrown> {
        // SAFETY: the arguments are places to write to.
        let bytes = make_tensor(|tensor, message| unsafe {
            ffi::packhorse_buffer_new(size as u64, c_int::from(pinned), tensor, message)
        })?;
        Ok(Self {
            bytes,
            size,
            pinned,
        })
    }

    /// Makes room for `size` bytes that nobody else has, and forgets what was there. A program may have kept an input, whose
    /// memory is then left to it.
    pub(in super::super) fn reserve(&mut self, size: usize) -> Result<(), Thrown> {
        // SAFETY: the tensor lives as long as `self`.
        let shared = unsafe { ffi::packhorse_buffer_is_shared(self.bytes.as_ptr()) } != 0;
        if shared || size > self.size {
            *self = Self::new(size.max(self.size), self.pinned)?;
        }
        Ok(())
    }

    pub(in super::super) fn size(&self) -> usize {
        self.size
    }

    pub(in super::super) fn bytes(&self, start: usize, len: usize) -> &[u8] {
        assert!(start + len <= self.size, "the buffer was reserved for this");
        if len == 0 {
            return &[];
        }
        // SAFETY: so many bytes are there, and nobody writes to them while they are borrowed: tensors in them are only
        // written to before they are handed out.
        unsafe { slice::from_raw_parts(self.bytes.data_ptr().cast::<u8>().add(start), len) }
    }

    pub(in super::super) fn bytes_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start + len <= self.size, "the buffer was reserved for this");
        if len == 0 {
            return &mut [];
        }
        // SAFETY: so many bytes are there, this is the only reference, and every byte pattern is a `u8`.
        unsafe { slice::from_raw_parts_mut(self.bytes.data_ptr().cast::<u8>().add(start), len) }
    }

    /// A tensor in the bytes from `start` on, a multiple of 64.
    pub(in super::super) fn tensor(
        &self,
        start: usize,
        header: &TensorHeader,
    ) -> Result<Tensor, Thrown> {
        assert!(
            start + header.byte_len() as usize <= self.size,
            "the buffer was reserved for this"
        );
        let dims = header.shape().dims().iter();
        let dims: Vec<i64> = dims.map(|dim| dim.cast_signed()).collect();
        let scalar_type = scalar_type(header.datatype()).expect("headers have a sized datatype");
        // SAFETY: as many dimensions are there as we say, the buffer lives across the call, and the others are places to write
        // to.
        make_tensor(|tensor, message| unsafe {
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

/// Datatype and shape of a program's output.
pub(in super::super) fn header_of(tensor: &Tensor) -> Result<TensorHeader, Thrown> {
    let no_tensor = |text: String| Thrown {
        text,
        kind: ThrownKind::NoTensors,
    };
    // SAFETY: the tensor lives.
    let code = unsafe { ffi::packhorse_tensor_scalar_type(tensor.as_ptr()) };
    let datatype = Datatype::ALL
        .into_iter()
        .find(|datatype| scalar_type(*datatype) == Some(code))
        .ok_or_else(|| no_tensor("a tensor of a datatype that the protocol lacks".to_owned()))?;
    let shape = Shape::new(&tensor.size()).map_err(|e| no_tensor(e.to_string()))?;
    TensorHeader::new(datatype, shape).map_err(|e| no_tensor(e.to_string()))
}

/// A tensor without gaps in the host's memory that nobody writes to any more.
pub(in super::super) struct HostTensor {
    tensor: Tensor,
    byte_len: usize,
}

impl HostTensor {
    /// `None` if it has gaps, or is elsewhere.
    pub(in super::super) fn new(tensor: Tensor, header: &TensorHeader) -> Option<Self> {
        let plain = tensor.device() == tch::Device::Cpu && tensor.is_contiguous();
        let byte_len = header.byte_len() as usize;
        plain.then_some(Self { tensor, byte_len })
    }
}

impl AsRef<[u8]> for HostTensor {
    fn as_ref(&self) -> &[u8] {
        if self.byte_len == 0 {
            return &[];
        }
        // SAFETY: a contiguous CPU tensor of this many bytes starts here, and nobody writes to it (see the type).
        unsafe { slice::from_raw_parts(self.tensor.data_ptr().cast(), self.byte_len) }
    }
}

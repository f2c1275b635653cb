//! A mapping of a whole memory file.

use std::{ffi::c_void, io, num::NonZeroUsize, os::fd::AsFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The mapped bytes of a memory file whose size cannot change.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to no thread. Its users say who may read and write which bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives no more than an address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `size` bytes of a file that has at least as many, and cannot shrink.
    pub(crate) fn new(file: impl AsFd, size: usize, writable: bool) -> io::Result<Self> {
        let length = NonZeroUsize::new(size).ok_or(io::ErrorKind::InvalidInput)?;
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, writable);
        // SAFETY: the kernel chooses an address where nothing is.
        let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, 0)? };
        Ok(Self {
            start: start.cast(),
            size,
        })
    }

    /// Returns the number of bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the address of the byte at `offset`.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.size, "the caller keeps to the mapping");
        // SAFETY: the address is within the mapping, or one past its end.
        unsafe { self.start.add(offset) }
    }

    /// Returns the offset of bytes that lie in the mapping.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = bytes.as_ptr().addr().checked_sub(self.start.addr().get())?;
        let end = offset.checked_add(bytes.len())?;
        (end <= self.size).then_some(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these are the address and the size that were mapped, and whoever has borrowed bytes has also borrowed `self`.
        let unmapped = unsafe { munmap(self.start.cast::<c_void>(), self.size) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

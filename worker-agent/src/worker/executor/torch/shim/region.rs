//! The memory of a program, on the CPU or on a CUDA device, which can be given back and brought back.

use std::{
    ffi::CString,
    path::Path,
    ptr::{self, NonNull},
};

use super::{
    call::{call, device_code},
    ffi,
};
use crate::executor::torch::error::TorchError;

/// The memory of what a program allocates on its device while it is loaded.
pub(in crate::executor::torch) struct Region(NonNull<ffi::Region>);

// SAFETY: a region belongs to no thread.
unsafe impl Send for Region {}
// SAFETY: allocations lock the region. What changes the memory as a whole is called by one thread at a time, when nothing runs that uses it.
unsafe impl Sync for Region {}

/// Ends the loading into a region when it is dropped.
struct Entered<'a>(&'a Region);

/// Prepares this process for regions. Must be called before the process hides its memory.
pub(in crate::executor) fn prepare_regions() {
    // SAFETY: opens a file.
    unsafe { ffi::packhorse_region_prepare() }
}

/// Returns the memory to the system that was freed and is kept for later.
pub(in crate::executor) fn release_free_memory() {
    // SAFETY: the allocator locks itself.
    unsafe { ffi::packhorse_release_free_memory() }
}

impl Region {
    /// Reserves addresses of a CUDA device, or of the CPU.
    pub(in crate::executor::torch) fn new(cuda_device: Option<u32>) -> Result<Self, TorchError> {
        let mut region = ptr::null_mut();
        let device = device_code(cuda_device);
        // SAFETY: the pointer is valid for writes during the call.
        call(|message| unsafe { ffi::packhorse_region_new(device, &raw mut region, message) })?;
        Ok(Self(NonNull::new(region).expect("a new region")))
    }

    /// Has everything lie in the region that a function allocates on this thread, on the region's device. It must be freed before the region is dropped.
    pub(in crate::executor::torch) fn during<T>(
        &self,
        load: impl FnOnce() -> Result<T, TorchError>,
    ) -> Result<T, TorchError> {
        // SAFETY: the region lives longer than the guard.
        call(|message| unsafe { ffi::packhorse_region_enter(self.0.as_ptr(), message) })?;
        let _entered = Entered(self);
        load()
    }

    /// Moves the region's memory to a file without a name in a folder, or has the host keep a copy of that on a CUDA device. Returns the bytes that
    /// [`Region::park`] gives back.
    pub(in crate::executor::torch) fn seal(&self, folder: &Path) -> Result<u64, TorchError> {
        let folder = CString::new(folder.as_os_str().as_encoded_bytes())
            .expect("a path from the environment has no NUL");
        let mut bytes = 0;
        // SAFETY: the region lives as long as `self`, and the pointers are valid during the call.
        call(|message| unsafe {
            ffi::packhorse_region_seal(self.0.as_ptr(), folder.as_ptr(), &raw mut bytes, message)
        })?;
        Ok(bytes)
    }

    /// Gives the memory back. Returns false, and does nothing, if it is known to be written to since it was sealed. Nothing may run that uses it.
    pub(in crate::executor::torch) fn park(&self) -> Result<bool, TorchError> {
        let mut parked = 0;
        // SAFETY: the region lives as long as `self`, and the pointers are valid during the call.
        call(|message| unsafe {
            ffi::packhorse_region_park(self.0.as_ptr(), &raw mut parked, message)
        })?;
        Ok(parked != 0)
    }

    /// Returns true if the memory was written to since it was sealed.
    pub(in crate::executor::torch) fn is_written(&self) -> Result<bool, TorchError> {
        let mut written = 0;
        // SAFETY: the region lives as long as `self`, and the pointers are valid during the call.
        call(|message| unsafe {
            ffi::packhorse_region_is_written(self.0.as_ptr(), &raw mut written, message)
        })?;
        Ok(written != 0)
    }

    /// Brings the memory back.
    pub(in crate::executor::torch) fn restore(&self) -> Result<(), TorchError> {
        // SAFETY: the region lives as long as `self`.
        call(|message| unsafe { ffi::packhorse_region_restore(self.0.as_ptr(), message) })
    }

    /// Returns a number that the region's bytes determine.
    pub(in crate::executor::torch) fn digest(&self) -> Result<u64, TorchError> {
        let mut digest = 0;
        // SAFETY: the region lives as long as `self`, and the pointers are valid during the call.
        call(|message| unsafe {
            ffi::packhorse_region_digest(self.0.as_ptr(), &raw mut digest, message)
        })?;
        Ok(digest)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: the region was entered by this thread.
        let left =
            call(|message| unsafe { ffi::packhorse_region_leave(self.0.0.as_ptr(), message) });
        if let Err(error) = left {
            tracing::warn!(
                error = error.summary(),
                "the loading into a region did not end"
            );
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the region.
        unsafe { ffi::packhorse_region_free(self.0.as_ptr()) }
    }
}

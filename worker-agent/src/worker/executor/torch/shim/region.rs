//! The memory of a program on the CPU, which can be given back and brought back.

use std::{
    ffi::CString,
    path::Path,
    ptr::{self, NonNull},
};

use super::{call::call, ffi};
use crate::executor::torch::error::TorchError;

/// The memory of what a program allocates on the CPU while it is loaded.
pub(in crate::executor::torch) struct Region(NonNull<ffi::Region>);

// SAFETY: a region belongs to no thread.
unsafe impl Send for Region {}
// SAFETY: allocations lock the region. What changes the memory as a whole keeps every byte readable and the same.
unsafe impl Sync for Region {}

/// Ends the loading into a region when it is dropped.
struct Entered;

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
    /// Reserves addresses.
    pub(in crate::executor::torch) fn new() -> Result<Self, TorchError> {
        let mut region = ptr::null_mut();
        // SAFETY: the pointer is valid for writes during the call.
        call(|message| unsafe { ffi::packhorse_region_new(&raw mut region, message) })?;
        Ok(Self(NonNull::new(region).expect("a new region")))
    }

    /// Has everything lie in the region that a function allocates on this thread. It must be freed before the region is dropped.
    pub(in crate::executor::torch) fn during<T>(&self, load: impl FnOnce() -> T) -> T {
        // SAFETY: the region lives longer than the guard.
        unsafe { ffi::packhorse_region_enter(self.0.as_ptr()) };
        let _entered = Entered;
        load()
    }

    /// Moves the region's memory to a file without a name in a folder. Returns the bytes that [`Region::park`] gives back.
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

    /// Gives the memory back to the system. Returns false, and does nothing, if it was written to since it was sealed.
    pub(in crate::executor::torch) fn park(&self) -> bool {
        // SAFETY: the region lives as long as `self`.
        unsafe { ffi::packhorse_region_park(self.0.as_ptr()) != 0 }
    }

    /// Returns true if the memory was written to since it was sealed.
    pub(in crate::executor::torch) fn is_written(&self) -> bool {
        // SAFETY: the region lives as long as `self`.
        unsafe { ffi::packhorse_region_is_written(self.0.as_ptr()) != 0 }
    }

    /// Brings the memory back.
    pub(in crate::executor::torch) fn restore(&self) -> Result<(), TorchError> {
        // SAFETY: the region lives as long as `self`.
        call(|message| unsafe { ffi::packhorse_region_restore(self.0.as_ptr(), message) })
    }

    /// Returns a number that the region's bytes determine.
    pub(in crate::executor::torch) fn digest(&self) -> u64 {
        // SAFETY: the region lives as long as `self`.
        unsafe { ffi::packhorse_region_digest(self.0.as_ptr()) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: no region is entered.
        unsafe { ffi::packhorse_region_enter(ptr::null_mut()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the region.
        unsafe { ffi::packhorse_region_free(self.0.as_ptr()) }
    }
}

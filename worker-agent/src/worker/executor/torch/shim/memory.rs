//! The memory and the multiprocessors of CUDA devices.

use super::{
    call::{call, device_code},
    ffi,
};

/// Returns the most memory that libtorch's allocator has held on a device so far, in bytes; `None` if it is unknown.
pub(in crate::executor::torch) fn cuda_peak_memory(cuda_device: u32) -> Option<u64> {
    let mut bytes = 0;
    // SAFETY: the pointers are valid for writes during the call.
    call(|message| unsafe {
        let device = device_code(Some(cuda_device));
        ffi::packhorse_cuda_peak_memory(device, &raw mut bytes, message)
    })
    .ok()?;
    Some(bytes)
}

/// Returns the memory of a device that libtorch and the weights there have now, in bytes; `None` if it is unknown. Memory that is kept for other weights is
/// given back as far as it is more than `most` with them.
pub(in crate::executor) fn cuda_memory(cuda_device: u32, most: u64) -> Option<u64> {
    let mut bytes = 0;
    // SAFETY: the pointers are valid for writes during the call.
    let outcome = call(|message| unsafe {
        let device = device_code(Some(cuda_device));
        ffi::packhorse_cuda_memory(device, most, &raw mut bytes, message)
    });
    match outcome {
        Ok(()) => Some(bytes),
        Err(error) => {
            let reason = error.summary();
            tracing::warn!(reason, "the memory of a CUDA device is unknown");
            None
        }
    }
}

/// Returns the memory that libtorch's allocator keeps in reserve to the CUDA devices.
pub(in crate::executor) fn release_cuda_memory() {
    // SAFETY: the pointer is valid for writes during the call.
    let outcome = call(|message| unsafe { ffi::packhorse_cuda_release_memory(message) });
    if let Err(error) = outcome {
        tracing::warn!(
            error = error.summary(),
            "the memory of a CUDA device was not released"
        );
    }
}

/// Returns the number of multiprocessors of a device that this process may use; `None` if it is unknown.
pub(in crate::executor::torch) fn cuda_multiprocessors(cuda_device: u32) -> Option<u32> {
    let mut count = 0;
    // SAFETY: the pointers are valid for writes during the call.
    call(|message| unsafe {
        let device = device_code(Some(cuda_device));
        ffi::packhorse_cuda_multiprocessors(device, &raw mut count, message)
    })
    .ok()?;
    Some(count)
}

//! Recordings of libtorch's profiler, and the range of a profiler around the process.

use std::{
    ffi::{CString, c_int},
    marker::PhantomData,
    path::Path,
    ptr,
};

use super::{call::call, ffi};
use crate::executor::torch::error::TorchError;

/// A running recording of this thread's work. A process has one at a time.
pub(in crate::executor::torch) struct ProfilerRecording {
    /// The recording must end on the thread on which it started.
    _not_send: PhantomData<*const ()>,
}

impl ProfilerRecording {
    /// Sets up the profiler for kernels of a GPU, or operators of the CPU. Part of the set-up happens with the first work after it.
    pub(in crate::executor::torch) fn prepare(cuda: bool) -> Result<(), TorchError> {
        // SAFETY: takes a number and a pointer that is valid for writes.
        call(|message| unsafe { ffi::packhorse_profiler_prepare(c_int::from(cuda), message) })
    }

    /// Starts to record, after [`ProfilerRecording::prepare`] with the same argument.
    pub(in crate::executor::torch) fn start(cuda: bool) -> Result<Self, TorchError> {
        // SAFETY: takes a number and a pointer that is valid for writes.
        call(|message| unsafe { ffi::packhorse_profiler_start(c_int::from(cuda), message) })?;
        Ok(Self {
            _not_send: PhantomData,
        })
    }

    /// Stops the recording and writes it to a file.
    pub(in crate::executor::torch) fn save(self, trace: &Path) -> Result<(), TorchError> {
        std::mem::forget(self);
        let path = CString::new(trace.as_os_str().as_encoded_bytes())
            .expect("a path from the operating system has no NUL");
        // SAFETY: the path lives during the call, and the pointer is valid for writes.
        call(|message| unsafe { ffi::packhorse_profiler_stop(path.as_ptr(), message) })
    }
}

impl Drop for ProfilerRecording {
    fn drop(&mut self) {
        // The recording is discarded, and so is a failure to stop it.
        // SAFETY: the path may be null, and the pointer is valid for writes.
        let _ = call(|message| unsafe { ffi::packhorse_profiler_stop(ptr::null(), message) });
    }
}

/// The range that a profiler around this process measures. It ends when this is dropped.
pub(in crate::executor::torch) struct ProfilerRange(());

impl ProfilerRange {
    /// Begins the range.
    pub(in crate::executor::torch) fn begin() -> Self {
        // SAFETY: takes a number.
        unsafe { ffi::packhorse_profiler_range(1) };
        Self(())
    }
}

impl Drop for ProfilerRange {
    fn drop(&mut self) {
        // SAFETY: takes a number.
        unsafe { ffi::packhorse_profiler_range(0) };
    }
}

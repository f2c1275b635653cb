//! Recordings of what runs on a device, by libtorch's profiler: calls into `csrc/kineto.cpp`.

use std::{
    ffi::{CString, c_char, c_int},
    marker::PhantomData,
    path::Path,
    ptr,
};

use super::{Thrown, call};

mod ffi {
    use super::{c_char, c_int};

    unsafe extern "C" {
        pub(super) fn packhorse_recording_prepare(cuda: c_int, message: *mut *mut c_char) -> c_int;
        pub(super) fn packhorse_recording_begin(cuda: c_int, message: *mut *mut c_char) -> c_int;
        pub(super) fn packhorse_recording_end(
            path: *const c_char,
            message: *mut *mut c_char,
        ) -> c_int;
        pub(super) fn packhorse_profiler_range(begin: c_int);
    }
}

/// A recording under way of what this thread runs. One at a time in a process.
pub(in super::super) struct Recording {
    /// It ends on the thread on which it began.
    _not_send: PhantomData<*const ()>,
}

impl Recording {
    /// Sets the profiler up, which goes on in the first work that it sees.
    pub(in super::super) fn prepare(cuda: bool) -> Result<(), Thrown> {
        // SAFETY: takes a number and a place to write to.
        call(|message| unsafe { ffi::packhorse_recording_prepare(c_int::from(cuda), message) })
    }

    /// Begins to record what it was prepared for: a GPU's kernels, or a CPU's operators.
    pub(in super::super) fn begin(cuda: bool) -> Result<Self, Thrown> {
        // SAFETY: takes a number and a place to write to.
        call(|message| unsafe { ffi::packhorse_recording_begin(c_int::from(cuda), message) })?;
        Ok(Self {
            _not_send: PhantomData,
        })
    }

    /// Ends it and writes what was recorded to a file.
    pub(in super::super) fn save(self, trace: &Path) -> Result<(), Thrown> {
        std::mem::forget(self);
        let path = CString::new(trace.as_os_str().as_encoded_bytes())
            .expect("paths have no NUL: they come from the operating system");
        // SAFETY: the path lives across the call, and the other is a place to write to.
        call(|message| unsafe { ffi::packhorse_recording_end(path.as_ptr(), message) })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // What was recorded is of no use, and whether that could be said is of none either.
        // SAFETY: no path is allowed, and the other is a place to write to.
        let _ = call(|message| unsafe { ffi::packhorse_recording_end(ptr::null(), message) });
    }
}

/// What a profiler around this process is to look at, for as long as this lives.
pub(in super::super) struct ProfilerRange;

impl ProfilerRange {
    pub(in super::super) fn begin() -> Self {
        // SAFETY: takes a number.
        unsafe { ffi::packhorse_profiler_range(1) };
        Self
    }
}

impl Drop for ProfilerRange {
    fn drop(&mut self) {
        // SAFETY: takes a number.
        unsafe { ffi::packhorse_profiler_range(0) };
    }
}

//! The end of the process.

use std::{
    ffi::{CStr, c_char, c_int},
    sync::OnceLock,
};

use super::{call::error_kind, ffi};
use crate::executor::torch::error::TorchError;

type Report = Box<dyn Fn(TorchError) + Send + Sync>;

static REPORT: OnceLock<Report> = OnceLock::new();

/// Exits without running destructors: libtorch's threads may still work.
pub(in crate::executor) fn exit_now(code: u8) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { ffi::packhorse_exit_now(c_int::from(code)) }
}

/// Sets a function that is called with an exception that cannot be caught, after which the process exits with `code`. Only the first
/// call in a process has an effect.
pub(in crate::executor::torch) fn on_terminate(report: Report, code: u8) {
    extern "C" fn call_report(kind: c_int, message: *const c_char) {
        // SAFETY: the shim passes a C string that lives during this call.
        let text = unsafe { CStr::from_ptr(message) };
        let text = text.to_string_lossy().into_owned();
        if let Some(report) = REPORT.get() {
            report(TorchError {
                text,
                kind: error_kind(kind),
            });
        }
    }
    if REPORT.set(report).is_ok() {
        // SAFETY: takes a function that lives as long as the process, and a number.
        unsafe { ffi::packhorse_on_terminate(call_report, c_int::from(code)) }
    }
}

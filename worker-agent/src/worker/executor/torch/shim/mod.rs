//! The one place with `unsafe`: calls into `csrc`, and tensors' memory as bytes.
//!
//! Every function of the shim catches what libtorch throws and runs in inference mode, on whatever thread it is called.
#![expect(
    unsafe_code,
    reason = "libtorch is C++; everything else is written against the safe types of this module"
)]

mod buffer;
mod ffi;
mod kineto;
mod lane;
mod program;

use std::{
    ffi::{CStr, c_char, c_int},
    ptr,
    sync::OnceLock,
};

use packhorse_cluster::Datatype;
use tch::Tensor;

pub(super) use buffer::{Buffer, HostTensor, header_of};
pub(super) use kineto::{ProfilerRange, Recording};
pub(super) use lane::{Lane, Mark};
pub(super) use program::{Graph, Module, Treatment};

/// What libtorch threw.
#[derive(Debug)]
pub(super) struct Thrown {
    /// The exception's whole text, stack traces and paths included: not for the world.
    pub(super) text: String,
    pub(super) kind: ThrownKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrownKind {
    Exception,
    OutOfMemory,
    /// The program's result is neither a tensor nor a tuple or list of tensors.
    NoTensors,
    /// The device cannot compute any more.
    DeviceFailed,
}

/// Calls a function of the shim, whose last argument takes the message of an exception.
fn call(function: impl FnOnce(*mut *mut c_char) -> c_int) -> Result<(), Thrown> {
    let mut message = ptr::null_mut();
    let kind = match function(&raw mut message) {
        ffi::OK => return Ok(()),
        code => kind_of(code),
    };
    let mut text = String::new();
    if !message.is_null() {
        // SAFETY: the shim wrote a C string here, which is ours until we give it back.
        unsafe {
            text.push_str(&CStr::from_ptr(message).to_string_lossy());
            ffi::packhorse_message_free(message);
        }
    }
    Err(Thrown { text, kind })
}

/// Calls a function of the shim that makes a tensor.
fn make_tensor(
    function: impl FnOnce(*mut ffi::TensorPtr, ffi::Message) -> c_int,
) -> Result<Tensor, Thrown> {
    let mut tensor = ptr::null_mut();
    call(|message| function(&raw mut tensor, message))?;
    // SAFETY: the shim made this tensor and left it to us.
    Ok(unsafe { Tensor::from_ptr(tensor) })
}

fn device_code(cuda_device: Option<u32>) -> c_int {
    cuda_device.map_or(-1, |index| c_int::try_from(index).unwrap_or(c_int::MAX))
}

/// The most memory that libtorch's allocator held at any time on a device, in bytes.
pub(super) fn cuda_peak_memory(cuda_device: u32) -> Option<u64> {
    let mut bytes = 0;
    // SAFETY: the arguments are places to write to.
    call(|message| unsafe {
        let device = device_code(Some(cuda_device));
        ffi::packhorse_cuda_peak_memory(device, &raw mut bytes, message)
    })
    .ok()?;
    Some(bytes)
}

/// Gives the memory that libtorch keeps on CUDA devices for later back.
pub(super) fn release_cuda_memory() {
    // SAFETY: the argument is a place to write to.
    let outcome = call(|message| unsafe { ffi::packhorse_cuda_release_memory(message) });
    if let Err(thrown) = outcome {
        tracing::warn!(error = thrown.summary(), "memory not released");
    }
}

/// How many multiprocessors of a device this process may use.
pub(super) fn cuda_multiprocessors(cuda_device: u32) -> Option<u32> {
    let mut count = 0;
    // SAFETY: the arguments are places to write to.
    call(|message| unsafe {
        let device = device_code(Some(cuda_device));
        ffi::packhorse_cuda_multiprocessors(device, &raw mut count, message)
    })
    .ok()?;
    Some(count)
}

/// Ends the process without running destructors.
pub(super) fn exit_now(code: u8) -> ! {
    // SAFETY: takes a number and does not come back.
    unsafe { ffi::packhorse_exit_now(c_int::from(code)) }
}

/// Has `last_words` told of an exception that nobody caught, whereupon the process ends with `code`. For once.
pub(super) fn on_terminate(last_words: LastWords, code: u8) {
    extern "C" fn tell(kind: c_int, message: *const c_char) {
        // SAFETY: the shim gives a C string that lives as long as this call.
        let text = unsafe { CStr::from_ptr(message) };
        let text = text.to_string_lossy().into_owned();
        if let Some(last_words) = LAST_WORDS.get() {
            last_words(Thrown {
                text,
                kind: kind_of(kind),
            });
        }
    }
    if LAST_WORDS.set(last_words).is_ok() {
        // SAFETY: takes a function that lives as long as the process, and a number.
        unsafe { ffi::packhorse_on_terminate(tell, c_int::from(code)) }
    }
}

type LastWords = Box<dyn Fn(Thrown) + Send + Sync>;

static LAST_WORDS: OnceLock<LastWords> = OnceLock::new();

fn kind_of(code: c_int) -> ThrownKind {
    match code {
        ffi::OUT_OF_MEMORY => ThrownKind::OutOfMemory,
        ffi::NO_TENSORS => ThrownKind::NoTensors,
        ffi::DEVICE_FAILED => ThrownKind::DeviceFailed,
        _ => ThrownKind::Exception,
    }
}

/// The number of a datatype in `c10::ScalarType`.
const fn scalar_type(datatype: Datatype) -> Option<c_int> {
    Some(match datatype {
        Datatype::Uint8 => 0,
        Datatype::Int8 => 1,
        Datatype::Int16 => 2,
        Datatype::Int32 => 3,
        Datatype::Int64 => 4,
        Datatype::Fp16 => 5,
        Datatype::Fp32 => 6,
        Datatype::Fp64 => 7,
        Datatype::Bool => 11,
        Datatype::Bf16 => 15,
        Datatype::Uint16 => 27,
        Datatype::Uint32 => 28,
        Datatype::Uint64 => 29,
        Datatype::Bytes => return None,
    })
}

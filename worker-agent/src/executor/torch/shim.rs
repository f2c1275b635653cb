//! The one place with `unsafe`: calls into `csrc/shim.cpp`, and tensors' memory as bytes.
#![expect(
    unsafe_code,
    reason = "libtorch is C++; everything else is written against the safe types of this module"
)]

use std::{
    ffi::{CStr, CString, c_char, c_int},
    path::Path,
    ptr::{self, NonNull},
    slice,
};

use packhorse_cluster::{Datatype, Shape};
use packhorse_wire::{MAX_TENSORS, TensorHeader};
use tch::Tensor;

mod ffi {
    use super::{c_char, c_int};

    pub(super) const OK: c_int = 0;
    pub(super) const OUT_OF_MEMORY: c_int = 2;
    pub(super) const NO_TENSORS: c_int = 3;

    /// `packhorse_module`, only ever seen through a pointer.
    #[repr(C)]
    pub(super) struct Module {
        opaque: [u8; 0],
    }

    pub(super) type TensorPtr = *mut torch_sys::C_tensor;

    unsafe extern "C" {
        pub(super) fn packhorse_message_free(message: *mut c_char);
        pub(super) fn packhorse_module_load(
            path: *const c_char,
            cuda_device: c_int,
            treatment: c_int,
            module: *mut *mut Module,
            message: *mut *mut c_char,
        ) -> c_int;
        pub(super) fn packhorse_module_arity(
            module: *const Module,
            required: *mut usize,
            accepted: *mut usize,
            message: *mut *mut c_char,
        ) -> c_int;
        pub(super) fn packhorse_module_forward(
            module: *mut Module,
            inputs: *const TensorPtr,
            input_count: usize,
            outputs: *mut TensorPtr,
            capacity: usize,
            output_count: *mut usize,
            message: *mut *mut c_char,
        ) -> c_int;
        pub(super) fn packhorse_module_free(module: *mut Module);
        pub(super) fn packhorse_tensor_empty(
            scalar_type: c_int,
            dims: *const i64,
            rank: usize,
            tensor: *mut TensorPtr,
            message: *mut *mut c_char,
        ) -> c_int;
        pub(super) fn packhorse_tensor_to_host(
            source: *const torch_sys::C_tensor,
            tensor: *mut TensorPtr,
            message: *mut *mut c_char,
        ) -> c_int;
        pub(super) fn packhorse_tensor_scalar_type(tensor: *const torch_sys::C_tensor) -> c_int;
        pub(super) fn packhorse_cuda_peak_memory(
            cuda_device: c_int,
            bytes: *mut u64,
            message: *mut *mut c_char,
        ) -> c_int;
        pub(super) fn packhorse_exit_now(code: c_int) -> !;
    }
}

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
}

/// Calls a function of the shim, whose last argument takes the message of an exception.
fn call(function: impl FnOnce(*mut *mut c_char) -> c_int) -> Result<(), Thrown> {
    let mut message = ptr::null_mut();
    let kind = match function(&raw mut message) {
        ffi::OK => return Ok(()),
        ffi::OUT_OF_MEMORY => ThrownKind::OutOfMemory,
        ffi::NO_TENSORS => ThrownKind::NoTensors,
        _ => ThrownKind::Exception,
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

/// How much is done to a program before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// As it was written.
    Plain = 0,
    /// Parameters become constants, and what follows from them is computed once.
    Frozen = 1,
    /// Frozen, and rewritten to the operators that are fastest on the device.
    Optimized = 2,
    /// Nothing any more: the file is a package.
    Compiled = 3,
}

fn device_code(cuda_device: Option<u32>) -> c_int {
    cuda_device.map_or(-1, |index| c_int::try_from(index).unwrap_or(c_int::MAX))
}

/// A loaded program.
pub(super) struct Module(NonNull<ffi::Module>);

// SAFETY: a torch::jit::Module belongs to no thread.
unsafe impl Send for Module {}
// SAFETY: running one module on several threads is allowed (the interpreter keeps its state per run); a program that writes
// to its own buffers, and a package, needs its runs one after the other, which is what `PreparedBatch::run` demands of its caller.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn load(
        path: &Path,
        cuda_device: Option<u32>,
        treatment: Treatment,
    ) -> Result<Self, Thrown> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())
            .expect("paths have no NUL: the operating system found this one");
        let mut module = ptr::null_mut();
        // SAFETY: the path is a C string, and the others are places to write to; all outlive the call.
        call(|message| unsafe {
            let device = device_code(cuda_device);
            ffi::packhorse_module_load(
                path.as_ptr(),
                device,
                treatment as c_int,
                &raw mut module,
                message,
            )
        })?;
        Ok(Self(NonNull::new(module).expect("a loaded module")))
    }

    /// How many arguments `forward` must and may be given.
    pub(super) fn arity(&self) -> Result<(usize, usize), Thrown> {
        let (mut required, mut accepted) = (0, 0);
        // SAFETY: the module lives as long as `self`, and the others are places to write to.
        call(|message| unsafe {
            ffi::packhorse_module_arity(
                self.0.as_ptr(),
                &raw mut required,
                &raw mut accepted,
                message,
            )
        })?;
        Ok((required, accepted))
    }

    /// Runs `forward` in inference mode.
    pub(super) fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Thrown> {
        let inputs: Vec<_> = inputs
            .iter()
            .map(|tensor| tensor.as_ptr().cast_mut())
            .collect();
        let mut outputs = [ptr::null_mut(); MAX_TENSORS];
        let mut count = 0;
        // SAFETY: module and inputs live across the call, which does not change the inputs' handles; there is room for as many
        // outputs as we say.
        call(|message| unsafe {
            ffi::packhorse_module_forward(
                self.0.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                outputs.as_mut_ptr(),
                outputs.len(),
                &raw mut count,
                message,
            )
        })?;
        let Some(outputs) = outputs.get(..count) else {
            let text = format!("{count} tensors");
            let kind = ThrownKind::NoTensors;
            return Err(Thrown { text, kind });
        };
        // SAFETY: the shim made these many tensors and left them to us.
        let own = |tensor: &ffi::TensorPtr| unsafe { Tensor::from_ptr(*tensor) };
        Ok(outputs.iter().map(own).collect())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is ours, and this is its end.
        unsafe { ffi::packhorse_module_free(self.0.as_ptr()) }
    }
}

/// A contiguous tensor in the host's memory that nobody else holds: neither another tensor nor a program's state.
pub(super) struct HostTensor {
    tensor: Tensor,
    byte_len: usize,
}

impl HostTensor {
    /// Memory for a tensor. What it holds is not said.
    pub(super) fn empty(header: &TensorHeader) -> Result<Self, Thrown> {
        let dims: Vec<i64> = header
            .shape()
            .dims()
            .iter()
            .map(|dim| dim.cast_signed())
            .collect();
        let scalar_type = scalar_type(header.datatype()).expect("headers have a sized datatype");
        let mut tensor = ptr::null_mut();
        // SAFETY: as many dimensions are there as we say, and the others are places to write to.
        call(|message| unsafe {
            ffi::packhorse_tensor_empty(
                scalar_type,
                dims.as_ptr(),
                dims.len(),
                &raw mut tensor,
                message,
            )
        })?;
        // SAFETY: the shim made this tensor and left it to us.
        let tensor = unsafe { Tensor::from_ptr(tensor) };
        Ok(Self {
            tensor,
            byte_len: header.byte_len() as usize,
        })
    }

    /// Brings a program's output to the host; copies it also where the program, or an input, shares its memory.
    pub(super) fn from_output(output: Tensor) -> Result<(TensorHeader, Self), Thrown> {
        let mut tensor = ptr::null_mut();
        // SAFETY: the output lives across the call, and the others are places to write to.
        call(|message| unsafe {
            ffi::packhorse_tensor_to_host(output.as_ptr(), &raw mut tensor, message)
        })?;
        drop(output);
        // SAFETY: the shim made this tensor and left it to us.
        let tensor = unsafe { Tensor::from_ptr(tensor) };
        let no_tensor = |text: String| Thrown {
            text,
            kind: ThrownKind::NoTensors,
        };
        // SAFETY: the tensor lives.
        let code = unsafe { ffi::packhorse_tensor_scalar_type(tensor.as_ptr()) };
        let datatype = Datatype::ALL
            .into_iter()
            .find(|datatype| scalar_type(*datatype) == Some(code))
            .ok_or_else(|| {
                no_tensor("a tensor of a datatype that the protocol lacks".to_owned())
            })?;
        let shape = Shape::new(&tensor.size()).map_err(|e| no_tensor(e.to_string()))?;
        let header = TensorHeader::new(datatype, shape).map_err(|e| no_tensor(e.to_string()))?;
        let byte_len = header.byte_len() as usize;
        Ok((header, Self { tensor, byte_len }))
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.byte_len == 0 {
            return &mut [];
        }
        // SAFETY: a contiguous CPU tensor of this many bytes starts here, nobody else has it (see the type), and every byte
        // pattern the allocator may have left is a `u8`.
        unsafe { slice::from_raw_parts_mut(self.tensor.data_ptr().cast(), self.byte_len) }
    }

    pub(super) fn into_tensor(self) -> Tensor {
        self.tensor
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

/// Ends the process without running destructors.
pub(super) fn exit_now(code: u8) -> ! {
    // SAFETY: takes a number and does not come back.
    unsafe { ffi::packhorse_exit_now(c_int::from(code)) }
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

//! The functions of `csrc/shim.h`, one to one.

use std::ffi::{c_char, c_int};

pub(super) const OK: c_int = 0;
pub(super) const OUT_OF_MEMORY: c_int = 2;
pub(super) const NO_TENSORS: c_int = 3;
pub(super) const DEVICE_FAILED: c_int = 4;

/// `packhorse_module`, only ever seen through a pointer.
#[repr(C)]
pub(super) struct Module {
    opaque: [u8; 0],
}

/// `packhorse_lane`, only ever seen through a pointer.
#[repr(C)]
pub(super) struct Lane {
    opaque: [u8; 0],
}

/// `packhorse_mark`, only ever seen through a pointer.
#[repr(C)]
pub(super) struct Mark {
    opaque: [u8; 0],
}

/// `packhorse_graph`, only ever seen through a pointer.
#[repr(C)]
pub(super) struct Graph {
    opaque: [u8; 0],
}

pub(super) type TensorPtr = *mut torch_sys::C_tensor;
pub(super) type ConstTensorPtr = *const torch_sys::C_tensor;
pub(super) type Message = *mut *mut c_char;

unsafe extern "C" {
    pub(super) fn packhorse_message_free(message: *mut c_char);
    pub(super) fn packhorse_module_load(
        path: *const c_char,
        name: *const c_char,
        cuda_device: c_int,
        treatment: c_int,
        module: *mut *mut Module,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_module_arity(
        module: *const Module,
        required: *mut usize,
        accepted: *mut usize,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_module_forward(
        module: *mut Module,
        lane: *const Lane,
        inputs: *const TensorPtr,
        input_count: usize,
        outputs: *mut TensorPtr,
        capacity: usize,
        output_count: *mut usize,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_module_free(module: *mut Module);
    pub(super) fn packhorse_graph_record(
        module: *mut Module,
        lane: *const Lane,
        inputs: *const TensorPtr,
        input_count: usize,
        beside: *mut Graph,
        graph: *mut *mut Graph,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_graph_replay(
        graph: *mut Graph,
        lane: *const Lane,
        inputs: *const TensorPtr,
        input_count: usize,
        outputs: *mut TensorPtr,
        capacity: usize,
        output_count: *mut usize,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_graph_free(graph: *mut Graph);
    pub(super) fn packhorse_tensor_scalar_type(tensor: ConstTensorPtr) -> c_int;
    pub(super) fn packhorse_lane_new(
        cuda_device: c_int,
        lane: *mut *mut Lane,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_lane_free(lane: *mut Lane);
    pub(super) fn packhorse_lane_mark(
        lane: *const Lane,
        mark: *mut *mut Mark,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_lane_follow(
        lane: *const Lane,
        mark: *const Mark,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_mark_is_past(
        mark: *const Mark,
        past: *mut c_int,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_mark_since(
        mark: *const Mark,
        earlier: *const Mark,
        nanoseconds: *mut u64,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_mark_free(mark: *mut Mark);
    pub(super) fn packhorse_buffer_new(
        size: u64,
        pinned: c_int,
        buffer: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_buffer_is_shared(buffer: ConstTensorPtr) -> c_int;
    pub(super) fn packhorse_buffer_view(
        buffer: ConstTensorPtr,
        offset: u64,
        scalar_type: c_int,
        dims: *const i64,
        rank: usize,
        tensor: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_lane_bring(
        lane: *const Lane,
        source: ConstTensorPtr,
        tensor: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_lane_straighten(
        lane: *const Lane,
        source: ConstTensorPtr,
        tensor: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_lane_copy(
        lane: *const Lane,
        destination: TensorPtr,
        source: ConstTensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_cuda_peak_memory(
        cuda_device: c_int,
        bytes: *mut u64,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_cuda_release_memory(message: Message) -> c_int;
    pub(super) fn packhorse_cuda_multiprocessors(
        cuda_device: c_int,
        count: *mut u32,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_exit_now(code: c_int) -> !;
    pub(super) fn packhorse_on_terminate(
        last_words: extern "C" fn(kind: c_int, message: *const c_char),
        code: c_int,
    );
}

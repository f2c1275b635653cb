//! The declarations of `csrc/shim.h`.

use std::ffi::{c_char, c_int, c_void};

pub(super) const OK: c_int = 0;
pub(super) const OUT_OF_MEMORY: c_int = 2;
pub(super) const NO_TENSORS: c_int = 3;
pub(super) const DEVICE_FAILED: c_int = 4;

/// The opaque type `packhorse_module`.
#[repr(C)]
pub(super) struct Module {
    opaque: [u8; 0],
}

/// The opaque type `packhorse_backbone`.
#[repr(C)]
pub(super) struct Backbone {
    opaque: [u8; 0],
}

/// The opaque type `packhorse_region`.
#[repr(C)]
pub(super) struct Region {
    opaque: [u8; 0],
}

/// The opaque type `packhorse_stream`.
#[repr(C)]
pub(super) struct Stream {
    opaque: [u8; 0],
}

/// The opaque type `packhorse_event`.
#[repr(C)]
pub(super) struct Event {
    opaque: [u8; 0],
}

/// The opaque type `packhorse_graph`.
#[repr(C)]
pub(super) struct Graph {
    opaque: [u8; 0],
}

/// The type `packhorse_piece`.
#[repr(C)]
pub(super) struct Piece {
    pub(super) memory: *const c_void,
    pub(super) size: u64,
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
        optimization: c_int,
        kept: *const c_char,
        module: *mut *mut Module,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_module_rewritten(
        module: *const Module,
        text: *mut *mut c_char,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_module_declare(
        module: *mut Module,
        names: *const *const c_char,
        count: usize,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_module_answered(
        module: *const Module,
        text: *mut *mut c_char,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_module_arity(
        module: *const Module,
        required: *mut usize,
        accepted: *mut usize,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_module_only_reads_weights(module: *const Module) -> c_int;
    pub(super) fn packhorse_module_only_reads_inputs(module: *const Module) -> c_int;
    pub(super) fn packhorse_module_has_state(module: *const Module) -> c_int;
    pub(super) fn packhorse_module_forward(
        module: *mut Module,
        stream: *const Stream,
        inputs: *const TensorPtr,
        input_count: usize,
        outputs: *mut TensorPtr,
        capacity: usize,
        output_count: *mut usize,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_region_prepare();
    pub(super) fn packhorse_region_new(
        cuda_device: c_int,
        region: *mut *mut Region,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_region_enter(region: *mut Region, message: Message) -> c_int;
    pub(super) fn packhorse_region_leave(region: *mut Region, message: Message) -> c_int;
    pub(super) fn packhorse_region_seal(
        region: *mut Region,
        folder: *const c_char,
        bytes: *mut u64,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_region_park(
        region: *mut Region,
        parked: *mut c_int,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_region_is_written(
        region: *const Region,
        written: *mut c_int,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_region_restore(region: *mut Region, message: Message) -> c_int;
    pub(super) fn packhorse_region_digest(
        region: *const Region,
        digest: *mut u64,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_region_free(region: *mut Region);
    pub(super) fn packhorse_cuda_memory(
        cuda_device: c_int,
        most: u64,
        bytes: *mut u64,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_release_free_memory();
    pub(super) fn packhorse_module_free(module: *mut Module);
    pub(super) fn packhorse_backbone_load(
        paths: *const *const c_char,
        count: usize,
        cuda_device: c_int,
        backbone: *mut *mut Backbone,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_backbone_keeps_rows(
        backbone: *mut Backbone,
        stream: *const Stream,
        inputs: *const TensorPtr,
        input_count: usize,
        keeps: *mut c_int,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_backbone_forward(
        backbone: *mut Backbone,
        stream: *const Stream,
        inputs: *const TensorPtr,
        input_count: usize,
        programs: *const usize,
        batch_count: usize,
        outputs: *mut TensorPtr,
        capacity: usize,
        output_counts: *mut usize,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_backbone_weights(
        path: *const c_char,
        text: *mut *mut c_char,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_backbone_free(backbone: *mut Backbone);
    pub(super) fn packhorse_operators(
        path: *const c_char,
        batches: *const i64,
        batch_count: usize,
        scalar_types: *const c_int,
        dims: *const i64,
        ranks: *const usize,
        input_count: usize,
        text: *mut *mut c_char,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_graph_record(
        module: *mut Module,
        stream: *const Stream,
        inputs: *const TensorPtr,
        input_count: usize,
        pool_owner: *mut Graph,
        graph: *mut *mut Graph,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_graph_replay(
        graph: *mut Graph,
        stream: *const Stream,
        inputs: *const TensorPtr,
        input_count: usize,
        outputs: *mut TensorPtr,
        capacity: usize,
        output_count: *mut usize,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_graph_free(graph: *mut Graph);
    pub(super) fn packhorse_tensor_scalar_type(tensor: ConstTensorPtr) -> c_int;
    pub(super) fn packhorse_stream_new(
        cuda_device: c_int,
        stream: *mut *mut Stream,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_stream_free(stream: *mut Stream);
    pub(super) fn packhorse_stream_record_event(
        stream: *const Stream,
        event: *mut *mut Event,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_stream_wait_event(
        stream: *const Stream,
        event: *const Event,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_event_query(
        event: *const Event,
        complete: *mut c_int,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_event_elapsed(
        start: *const Event,
        end: *const Event,
        nanoseconds: *mut u64,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_event_free(event: *mut Event);
    pub(super) fn packhorse_buffer_new(
        size: u64,
        pinned: c_int,
        buffer: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_buffer_is_shared(buffer: ConstTensorPtr) -> c_int;
    pub(super) fn packhorse_tensor_over(
        memory: *const c_void,
        scalar_type: c_int,
        dims: *const i64,
        rank: usize,
        tensor: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_buffer_view(
        buffer: ConstTensorPtr,
        offset: u64,
        scalar_type: c_int,
        dims: *const i64,
        rank: usize,
        tensor: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_stream_to_device(
        stream: *const Stream,
        source: ConstTensorPtr,
        tensor: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_stream_contiguous(
        stream: *const Stream,
        source: ConstTensorPtr,
        tensor: *mut TensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_stream_copy(
        stream: *const Stream,
        destination: TensorPtr,
        source: ConstTensorPtr,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_host_register(
        cuda_device: c_int,
        memory: *const c_void,
        size: u64,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_host_unregister(
        cuda_device: c_int,
        memory: *const c_void,
        message: Message,
    ) -> c_int;
    pub(super) fn packhorse_stream_join(
        stream: *const Stream,
        pieces: *const Piece,
        piece_count: usize,
        scalar_type: c_int,
        dims: *const i64,
        rank: usize,
        tensor: *mut TensorPtr,
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
    pub(super) fn packhorse_profiler_prepare(cuda: c_int, message: Message) -> c_int;
    pub(super) fn packhorse_profiler_start(cuda: c_int, message: Message) -> c_int;
    pub(super) fn packhorse_profiler_stop(path: *const c_char, message: Message) -> c_int;
    pub(super) fn packhorse_profiler_range(begin: c_int);
    pub(super) fn packhorse_exit_now(code: c_int) -> !;
    pub(super) fn packhorse_on_terminate(
        report: extern "C" fn(kind: c_int, message: *const c_char),
        code: c_int,
    );
}

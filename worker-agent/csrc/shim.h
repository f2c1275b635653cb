// The C interface of the shim: functions of libtorch that the worker needs and tch does not offer. No exception leaves a function. A
// function with a `message` returns one of the codes below; if the code is not PACKHORSE_OK, it writes the exception's text to
// `message`, which the caller must free with packhorse_message_free.

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  PACKHORSE_OK = 0,
  // libtorch or the program threw an exception.
  PACKHORSE_THREW = 1,
  // There was not enough memory.
  PACKHORSE_OUT_OF_MEMORY = 2,
  // The program's result is neither a tensor nor a tuple or list of tensors.
  PACKHORSE_NO_TENSORS = 3,
  // The device failed and cannot compute anything any more.
  PACKHORSE_DEVICE_FAILED = 4,
};

// The optimization of a program before it runs.
enum {
  // None.
  PACKHORSE_PLAIN = 0,
  // Parameters become constants, and expressions of constants are computed once.
  PACKHORSE_FROZEN = 1,
  // Frozen, and rewritten to the operators that are fastest on the device.
  PACKHORSE_OPTIMIZED = 2,
  // None, because the file is an AOTInductor package, which was compiled ahead of time.
  PACKHORSE_COMPILED = 3,
  // Optimized with all steps of libtorch's, also those that are known to be wrong. For tests of what finds them.
  PACKHORSE_UNGUARDED = 4,
};

typedef struct packhorse_module packhorse_module;
typedef struct packhorse_backbone packhorse_backbone;
// The memory of what a program allocates while it is loaded, on the CPU or on a CUDA device.
typedef struct packhorse_region packhorse_region;
typedef struct packhorse_tensor packhorse_tensor;  // an at::Tensor, as in tch
// A stream of a CUDA device; on the CPU the calling thread.
typedef struct packhorse_stream packhorse_stream;
// An event in a stream of a CUDA device: a point in the stream's work, with its time. The caller keeps times of the CPU itself.
typedef struct packhorse_event packhorse_event;
// A CUDA graph: the recorded work of one run of a program.
typedef struct packhorse_graph packhorse_graph;

void packhorse_message_free(char *message);

// Programs (program.cpp).

// Loads a TorchScript file in evaluation mode, or a package, which is unpacked into TMPDIR. `cuda_device` is an index, or -1 for the CPU.
// `program` is the name of a program in a package, whose files are `data/aotinductor/PROGRAM/…`. `kept` has the names of operators, separated by
// spaces, that are not rewritten to oneDNN's.
int packhorse_module_load(const char *path, const char *program, int cuda_device, int optimization, const char *kept,
                          packhorse_module **module, char **message);

// Writes the names of the operators that were rewritten to oneDNN's, or would have been if they had not been kept, separated by spaces. The
// caller frees `text` with packhorse_message_free.
int packhorse_module_rewritten(const packhorse_module *module, char **text, char **message);

// Says which outputs are declared: those of a dict that the program answers have their names as keys.
int packhorse_module_declare(packhorse_module *module, const char *const *names, size_t count, char **message);

// Writes the names of the tensors in the last dict that was answered while no output was declared, each with a line feed behind it. The caller frees
// `text` with packhorse_message_free.
int packhorse_module_answered(const packhorse_module *module, char **text, char **message);

// The least and the largest number of arguments of `forward`. A package does not check the number of its arguments.
int packhorse_module_arity(const packhorse_module *module, size_t *required, size_t *accepted, char **message);

// 1 if it is certain that no run writes to the program's constants, else 0.
int packhorse_module_only_reads_weights(const packhorse_module *module);

// 1 if it is certain that no run of the program writes to an input or keeps one, else 0. A package is never certain.
int packhorse_module_only_reads_inputs(const packhorse_module *module);

// 1 unless it is certain that a run of the program leaves nothing behind that the next one reads, else 0. A package is never certain.
int packhorse_module_has_state(const packhorse_module *module);

// Runs `forward` in a stream. Writes at most `capacity` outputs, which then belong to the caller alone, and their number; if there are more
// than `capacity`, none is written.
int packhorse_module_forward(packhorse_module *module, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                             size_t input_count, packhorse_tensor **outputs, size_t capacity, size_t *output_count,
                             char **message);

void packhorse_module_free(packhorse_module *module);

// Writes the operators of a TorchScript file as lines, found without computing anything (operators.cpp):
//   parameters,NUMBER,BYTES
// and for each batch size, after a line
//   batch,ROWS,MOST BYTES OF INTERMEDIATE RESULTS
// a line for each operator in the order of the run:
//   NAME,OPERATIONS,BYTES OF PARAMETERS READ,OTHER BYTES READ,BYTES WRITTEN,ELEMENTS OF THE RESULT
// `dims` has the dimensions of all inputs one after the other, with -1 where the batch size stands. The caller frees `text` with
// packhorse_message_free.
int packhorse_operators(const char *path, const int64_t *batches, size_t batch_count, const int *scalar_types, const int64_t *dims,
                        const size_t *ranks, size_t input_count, char **text, char **message);

// Regions (region.cpp, device_region.cpp).

// Prepares this process for regions. Must be called before the process hides its memory.
void packhorse_region_prepare(void);

// Creates a region of a CUDA device, or of the CPU if its index is negative. It is to be freed after the program that is loaded into it.
int packhorse_region_new(int cuda_device, packhorse_region **region, char **message);

// Has what this thread allocates on the region's device lie in it from now on, until packhorse_region_leave.
int packhorse_region_enter(packhorse_region *region, char **message);
int packhorse_region_leave(packhorse_region *region, char **message);

// Ends loading into the region. On the CPU its memory is from now on that of a file without a name in this folder, which must exist; on a CUDA device
// the host has a copy of it. Writes the bytes that packhorse_region_park gives back.
int packhorse_region_seal(packhorse_region *region, const char *folder, uint64_t *bytes, char **message);

// Gives the memory of a sealed region back, and writes 1; or does nothing, and writes 0, if it is known to be written to since. Nothing may run that
// uses it: on the CPU its bytes stay readable, slowly, and a CUDA device fails.
int packhorse_region_park(packhorse_region *region, int *parked, char **message);

// Writes 1 if a sealed region was written to, else 0.
int packhorse_region_is_written(const packhorse_region *region, int *written, char **message);

// Brings the memory of a sealed region back.
int packhorse_region_restore(packhorse_region *region, char **message);

// Writes a number that the bytes of a sealed region determine.
int packhorse_region_digest(const packhorse_region *region, uint64_t *digest, char **message);

void packhorse_region_free(packhorse_region *region);

// Writes the bytes of a CUDA device that libtorch and regions have now. What they keep for other regions is not among them, and is given back as far as
// it is more than `most` with them.
int packhorse_cuda_memory(int cuda_device, uint64_t most, uint64_t *bytes, char **message);

// Returns the memory to the system that was freed and is kept for later.
void packhorse_release_free_memory(void);

// Programs with a shared backbone (backbone.cpp).

// Loads TorchScript files, frozen and optimised. Equal weights, and the operators with which all programs begin, exist once.
int packhorse_backbone_load(const char *const *paths, size_t count, int cuda_device, packhorse_backbone **backbone,
                            char **message);

// Writes 1 to `keeps` if the shared operators keep the rows of these inputs apart: all tensors that the heads take from them have the rows as
// their first dimension. Only then may a batch have rows for several programs.
int packhorse_backbone_keeps_rows(packhorse_backbone *backbone, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                                  size_t input_count, int *keeps, char **message);

// Runs several batches together, of which each is for one of the programs: the shared operators once on the rows of all of them, and each
// head once. `inputs` has the inputs of the batches one after the other, `input_count` for each. Writes the outputs of the batches one after
// the other, and the number of each batch's outputs; if there are more than `capacity` in all, only the numbers. Of one batch alone the rows
// need not be kept apart.
int packhorse_backbone_forward(packhorse_backbone *backbone, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                               size_t input_count, const size_t *programs, size_t batch_count, packhorse_tensor **outputs,
                               size_t capacity, size_t *output_counts, char **message);

// Writes the operators of a TorchScript file that read weights as lines:
//   DIGEST,BYTES OF WEIGHTS
// Two programs share an operator if its digest is the same in both and not 0. The caller frees `text` with packhorse_message_free.
int packhorse_backbone_weights(const char *path, char **text, char **message);

void packhorse_backbone_free(packhorse_backbone *backbone);

// Recorded runs (graph.cpp).

// Records the work of one run of a program in a stream, which can be replayed for inputs of the same shapes without launching each
// kernel. The program must have run with such inputs before, and nothing else may run meanwhile. A program with state is refused. If
// `pool_owner` is not null, the graph computes in that graph's memory, and the two must never be replayed at the same time.
int packhorse_graph_record(packhorse_module *module, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                           size_t input_count, packhorse_graph *pool_owner, packhorse_graph **graph, char **message);

// Like packhorse_module_forward. The stream must be the one of the recording.
int packhorse_graph_replay(packhorse_graph *graph, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                           size_t input_count, packhorse_tensor **outputs, size_t capacity, size_t *output_count,
                           char **message);

void packhorse_graph_free(packhorse_graph *graph);

// Streams and events (stream.cpp). A stream executes its work in order; the work is done when an event recorded after it is complete.

// `cuda_device` is an index, or -1 for the CPU.
int packhorse_stream_new(int cuda_device, packhorse_stream **stream, char **message);

void packhorse_stream_free(packhorse_stream *stream);

// Records an event after the work that the stream has so far. This and the functions of events must not be called for the CPU.
int packhorse_stream_record_event(const packhorse_stream *stream, packhorse_event **event, char **message);

// Makes the stream's later work wait for an event of any stream of the same device. Does not block the caller.
int packhorse_stream_wait_event(const packhorse_stream *stream, const packhorse_event *event, char **message);

// Writes 1 to `complete` if the device has reached the event, else 0.
int packhorse_event_query(const packhorse_event *event, int *complete, char **message);

// Writes the time between two events that are complete.
int packhorse_event_elapsed(const packhorse_event *start, const packhorse_event *end, uint64_t *nanoseconds, char **message);

void packhorse_event_free(packhorse_event *event);

// Copies a tensor to the stream's device. Must not be called for the CPU, where it is already.
int packhorse_stream_to_device(const packhorse_stream *stream, const packhorse_tensor *source, packhorse_tensor **tensor,
                               char **message);

// Makes a tensor contiguous on its device. Returns `source` itself if it is contiguous already.
int packhorse_stream_contiguous(const packhorse_stream *stream, const packhorse_tensor *source, packhorse_tensor **tensor,
                                char **message);

// Overwrites a tensor with another of the same shape.
int packhorse_stream_copy(const packhorse_stream *stream, packhorse_tensor *destination, const packhorse_tensor *source,
                          char **message);

// Tensors and memory (memory.cpp).

// The tensor's datatype, a number of c10::ScalarType.
int packhorse_tensor_scalar_type(const packhorse_tensor *tensor);

// Allocates host memory as a tensor of bytes with undefined content; pinned, so that a device copies from and to it asynchronously.
int packhorse_buffer_new(uint64_t size, int pinned, packhorse_tensor **buffer, char **message);

// 1 if another tensor uses the buffer's memory, else 0.
int packhorse_buffer_is_shared(const packhorse_tensor *buffer);

// Creates a tensor over memory of the caller's, whose address is a multiple of 64. The memory must be readable as long as the tensor, and
// whatever a program makes of it without a copy.
int packhorse_tensor_over(const void *memory, int scalar_type, const int64_t *dims, size_t rank, packhorse_tensor **tensor, char **message);

// Creates a tensor in the buffer's memory at `offset`, a multiple of 64.
int packhorse_buffer_view(const packhorse_tensor *buffer, uint64_t offset, int scalar_type, const int64_t *dims, size_t rank,
                          packhorse_tensor **tensor, char **message);

// Registered memory (registered_memory.cpp): memory of another process that is mapped for reading, and that a CUDA device reads as pinned
// memory.

// Registers memory that begins with a page. The pages that it does not have yet are allocated.
int packhorse_host_register(int cuda_device, const void *memory, uint64_t size, char **message);

// Undoes a registration, before the memory is unmapped. No copy from it may be under way.
int packhorse_host_unregister(int cuda_device, const void *memory, char **message);

// A piece of registered memory, within one registration.
typedef struct {
  const void *memory;
  uint64_t size;
} packhorse_piece;

// Creates a tensor on the stream's CUDA device, and copies to it these pieces, which have its bytes one after the other.
int packhorse_stream_join(const packhorse_stream *stream, const packhorse_piece *pieces, size_t piece_count, int scalar_type,
                          const int64_t *dims, size_t rank, packhorse_tensor **tensor, char **message);

// The most memory that the allocator of a CUDA device has held so far, in bytes.
int packhorse_cuda_peak_memory(int cuda_device, uint64_t *bytes, char **message);

// Returns the memory that the allocators of CUDA devices keep in reserve to the devices.
int packhorse_cuda_release_memory(char **message);

// The number of multiprocessors of a CUDA device that this process may use.
int packhorse_cuda_multiprocessors(int cuda_device, uint32_t *count, char **message);

// libtorch's profiler, Kineto (profiler.cpp).

// Sets up the profiler, for kernels if `cuda` is not 0, else for operators. Part of the set-up happens with the first work after it.
int packhorse_profiler_prepare(int cuda, char **message);

// Starts to record the work of this thread. There is one recording at a time; the same thread must stop it.
int packhorse_profiler_start(int cuda, char **message);

// Stops the recording. Unless `path` is null, writes it to a file in Chrome's trace format.
int packhorse_profiler_stop(const char *path, char **message);

// Marks the begin (1) or the end (0) of the range for a profiler around this process, such as ncu. Does nothing without CUDA.
void packhorse_profiler_range(int begin);

// The end of the process (process.cpp).

// Ends the process without running the destructors of libraries, whose threads may still work.
void packhorse_exit_now(int code);

// Sets the handler for exceptions that leave a destructor, as in many of libtorch's once a CUDA device has failed: `report` is called
// with the exception's code and message, and the process ends with `code`.
void packhorse_on_terminate(void (*report)(int kind, const char *message), int code);

#ifdef __cplusplus
}
#endif

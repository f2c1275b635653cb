// What the worker needs of libtorch and tch does not offer. No exception leaves a function: each says how it went, and gives
// the exception's text in `message`, which is to be given back with packhorse_message_free.

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  PACKHORSE_OK = 0,
  PACKHORSE_THREW = 1,
  PACKHORSE_OUT_OF_MEMORY = 2,
  // The program's result is neither a tensor nor a tuple or list of tensors.
  PACKHORSE_NO_TENSORS = 3,
  // The device cannot compute any more, whatever it is given.
  PACKHORSE_DEVICE_FAILED = 4,
};

// How much is done to a program before it runs.
enum {
  PACKHORSE_PLAIN = 0,
  // Parameters become constants, and what follows from them is computed once.
  PACKHORSE_FROZEN = 1,
  // Frozen, and rewritten to the operators that are fastest on the device.
  PACKHORSE_OPTIMIZED = 2,
  // Nothing: the file is an AOTInductor package, not TorchScript.
  PACKHORSE_COMPILED = 3,
};

typedef struct packhorse_module packhorse_module;
typedef struct packhorse_tensor packhorse_tensor;  // an at::Tensor, as tch has it
// A queue of work: a stream of a CUDA device, or on the CPU the calling thread.
typedef struct packhorse_lane packhorse_lane;
// A point in a lane's work.
typedef struct packhorse_mark packhorse_mark;

void packhorse_message_free(char *message);

// Loads a TorchScript file in evaluation mode, or a package, which unpacks itself into TMPDIR. `cuda_device` is an index, or -1 for the CPU.
// `program` is the name of one in a package: its files are `data/aotinductor/PROGRAM/…`.
int packhorse_module_load(const char *path, const char *program, int cuda_device, int treatment, packhorse_module **module,
                          char **message);

// How many arguments `forward` must and may be given. A package does not look how many it is given.
int packhorse_module_arity(const packhorse_module *module, size_t *required, size_t *accepted, char **message);

// Runs `forward` on a lane. Writes at most `capacity` outputs, which then are the caller's and nobody else's, and how many there
// are; with more than `capacity` none is written.
int packhorse_module_forward(packhorse_module *module, const packhorse_lane *lane, packhorse_tensor *const *inputs,
                             size_t input_count, packhorse_tensor **outputs, size_t capacity, size_t *output_count,
                             char **message);

void packhorse_module_free(packhorse_module *module);

// As in c10::ScalarType.
int packhorse_tensor_scalar_type(const packhorse_tensor *tensor);

// Ends the process without running the destructors of libraries, some of whose threads may be at work.
void packhorse_exit_now(int code);

// What C++ does where an exception gets out of a destructor, as many of libtorch's do once a CUDA device has failed: `last_words` is told
// of the exception, by its code and its message, and the process ends with `code`.
void packhorse_on_terminate(void (*last_words)(int kind, const char *message), int code);

// Lanes and marks (lane.cpp). A lane works in the order in which it is told; what it is told to do is done when a mark set
// behind it is past.

// `cuda_device` is an index, or -1 for the CPU.
int packhorse_lane_new(int cuda_device, packhorse_lane **lane, char **message);
void packhorse_lane_free(packhorse_lane *lane);

// Marks what the lane has been told so far.
int packhorse_lane_mark(const packhorse_lane *lane, packhorse_mark **mark, char **message);

// What the lane is told from now on waits for the mark, of whatever lane of its device. Does not wait itself.
int packhorse_lane_follow(const packhorse_lane *lane, const packhorse_mark *mark, char **message);

// Whether the device has got there.
int packhorse_mark_is_past(const packhorse_mark *mark, int *past, char **message);

// The time between two marks that are past.
int packhorse_mark_since(const packhorse_mark *mark, const packhorse_mark *earlier, uint64_t *nanoseconds, char **message);
void packhorse_mark_free(packhorse_mark *mark);

// Memory of the host, as a tensor of bytes that holds anything; pinned, so that a device copies from and to it by itself.
int packhorse_buffer_new(uint64_t size, int pinned, packhorse_tensor **buffer, char **message);

// Whether another tensor uses the buffer's memory.
int packhorse_buffer_is_shared(const packhorse_tensor *buffer);

// A tensor in the buffer's memory from `offset` on, a multiple of 64 inside it.
int packhorse_buffer_view(const packhorse_tensor *buffer, uint64_t offset, int scalar_type, const int64_t *dims, size_t rank,
                          packhorse_tensor **tensor, char **message);

// The same elements in the memory of the lane's device: `source` itself where it is there already.
int packhorse_lane_bring(const packhorse_lane *lane, const packhorse_tensor *source, packhorse_tensor **tensor, char **message);

// The same elements without gaps, on the device where they are: `source` itself where it is so already.
int packhorse_lane_straighten(const packhorse_lane *lane, const packhorse_tensor *source, packhorse_tensor **tensor,
                              char **message);

// Overwrites a tensor.
int packhorse_lane_copy(const packhorse_lane *lane, packhorse_tensor *destination, const packhorse_tensor *source,
                        char **message);

// The most memory that the allocator of a CUDA device held at any time, in bytes.
int packhorse_cuda_peak_memory(int cuda_device, uint64_t *bytes, char **message);

// Gives the memory that the allocators of CUDA devices keep for later back.
int packhorse_cuda_release_memory(char **message);

// How many multiprocessors of a CUDA device this process may use.
int packhorse_cuda_multiprocessors(int cuda_device, uint32_t *count, char **message);

// Recorded runs (graph.cpp).

typedef struct packhorse_graph packhorse_graph;

// Records what a lane's device does in one run of a program, to be done again for inputs of the same shapes without telling it
// kernel by kernel. The program has run with such inputs before. Nothing else may run meanwhile. It shares the memory in which it computes
// with `beside`, unless that is null: they are never replayed at the same time.
int packhorse_graph_record(packhorse_module *module, const packhorse_lane *lane, packhorse_tensor *const *inputs,
                           size_t input_count, packhorse_graph *beside, packhorse_graph **graph, char **message);

// As packhorse_module_forward, on the lane of the recording.
int packhorse_graph_replay(packhorse_graph *graph, const packhorse_lane *lane, packhorse_tensor *const *inputs,
                           size_t input_count, packhorse_tensor **outputs, size_t capacity, size_t *output_count,
                           char **message);
void packhorse_graph_free(packhorse_graph *graph);

#ifdef __cplusplus
}
#endif

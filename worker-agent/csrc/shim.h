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

void packhorse_message_free(char *message);

// Loads a TorchScript file in evaluation mode, or a package, which unpacks itself into TMPDIR. `cuda_device` is an index, or -1 for the CPU.
int packhorse_module_load(const char *path, int cuda_device, int treatment, packhorse_module **module, char **message);

// How many arguments `forward` must and may be given. A package does not look how many it is given.
int packhorse_module_arity(const packhorse_module *module, size_t *required, size_t *accepted, char **message);

// Runs `forward` in inference mode. Writes at most `capacity` outputs, which then are the caller's, and how many there are;
// with more than `capacity` none is written.
int packhorse_module_forward(packhorse_module *module, packhorse_tensor *const *inputs, size_t input_count,
                             packhorse_tensor **outputs, size_t capacity, size_t *output_count, char **message);

void packhorse_module_free(packhorse_module *module);

// A CPU tensor with memory that holds anything; `scalar_type` as in c10::ScalarType.
int packhorse_tensor_empty(int scalar_type, const int64_t *dims, size_t rank, packhorse_tensor **tensor, char **message);

// A contiguous CPU tensor with the same elements that shares its memory with nobody: `source` itself where it is that already,
// which is for the caller to drop then.
int packhorse_tensor_to_host(const packhorse_tensor *source, packhorse_tensor **tensor, char **message);

// As in c10::ScalarType.
int packhorse_tensor_scalar_type(const packhorse_tensor *tensor);

// The most memory that the allocator of a CUDA device held at any time, in bytes.
int packhorse_cuda_peak_memory(int cuda_device, uint64_t *bytes, char **message);

// Ends the process without running the destructors of libraries, some of whose threads may be at work.
void packhorse_exit_now(int code);

#ifdef __cplusplus
}
#endif

// CUDA graphs. libtorch's class for them, which also directs the allocator to memory that a graph can reuse, needs headers of CUDA. Without
// them at build time nothing can be recorded, and programs run kernel by kernel.

#include "program.h"
#include "region.h"

#include <stdexcept>

#ifdef PACKHORSE_CUDA_HEADERS

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/from_blob.h>

struct packhorse_graph {
  at::cuda::CUDAGraph graph;
  // The memory that the recorded kernels read.
  std::vector<at::Tensor> inputs;
  // The memory that the recorded kernels write, which belongs to the graph's pool.
  std::vector<at::Tensor> outputs;
};

namespace {

// Returns contiguous memory for a graph's input: the beginning of the other graph's, if there is one and it is large enough.
at::Tensor input_memory(const at::Tensor &input, const at::Tensor *other) {
  if (other == nullptr || other->dtype() != input.dtype() || other->numel() < input.numel()) {
    return at::empty_like(input, at::MemoryFormat::Contiguous);
  }
  return other->flatten().narrow(0, 0, input.numel()).view(input.sizes());
}

// Returns the tensor without ownership of its memory.
at::Tensor without_ownership(const at::Tensor &tensor) {
  return at::for_blob(tensor.mutable_data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .options(tensor.options())
      .target_device(tensor.device())
      .make_tensor();
}

}  // namespace

extern "C" {

int packhorse_graph_record(packhorse_module *module, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                           size_t input_count, packhorse_graph *pool_owner, packhorse_graph **graph, char **message) {
  return guarded(message, [&]() -> int {
    if (!stream->cuda) {
      throw std::runtime_error("only CUDA devices can record graphs");
    }
    if (module->has_state) {
      throw std::runtime_error("the program has state, which a graph would not change");
    }
    const CurrentStream current(*stream);
    auto made = std::make_unique<packhorse_graph>();
    for (size_t i = 0; i < input_count; ++i) {
      const auto *other = pool_owner != nullptr ? &pool_owner->inputs.at(i) : nullptr;
      made->inputs.push_back(input_memory(*unwrap(inputs[i]), other));
      made->inputs.back().copy_(*unwrap(inputs[i]));
    }
    std::vector<at::Tensor> outputs;
    // The work of other threads at the same time is neither recorded nor refused.
    const auto pool = pool_owner != nullptr ? pool_owner->graph.pool() : c10::MempoolId_t{0, 0};
    const Capture capture;
    made->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      outputs = run_program(*module, made->inputs);
    } catch (...) {
      try {
        // Without this the stream would stay in recording mode.
        made->graph.capture_end();
      } catch (...) {  // The first exception has the reason.
      }
      throw;
    }
    made->graph.capture_end();
    for (const auto &output : outputs) {
      if (output.layout() != c10::kStrided || !output.is_cuda()) {
        throw std::runtime_error("an output of the program is not in the device's memory");
      }
      // A replay's outputs are copied before the next replay, so that the graphs of a pool can have theirs in the same memory.
      made->outputs.push_back(without_ownership(output));
    }
    *graph = made.release();
    return PACKHORSE_OK;
  });
}

int packhorse_graph_replay(packhorse_graph *graph, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                           size_t input_count, packhorse_tensor **outputs, size_t capacity, size_t *output_count,
                           char **message) {
  return guarded(message, [&] {
    const CurrentStream current(*stream);
    for (size_t i = 0; i < input_count; ++i) {
      graph->inputs.at(i).copy_(*unwrap(inputs[i]), /*non_blocking=*/true);
    }
    graph->graph.replay();
    *output_count = graph->outputs.size();
    for (size_t i = 0; graph->outputs.size() <= capacity && i < graph->outputs.size(); ++i) {
      // The next replay overwrites the graph's outputs.
      outputs[i] = wrap(graph->outputs[i].clone(at::MemoryFormat::Contiguous));
    }
    return PACKHORSE_OK;
  });
}

void packhorse_graph_free(packhorse_graph *graph) { delete graph; }

}  // extern "C"

#else

extern "C" {

int packhorse_graph_record(packhorse_module *, const packhorse_stream *, packhorse_tensor *const *, size_t,
                           packhorse_graph *, packhorse_graph **, char **message) {
  return guarded(message, []() -> int { throw std::runtime_error("this worker was built without CUDA's headers"); });
}

int packhorse_graph_replay(packhorse_graph *, const packhorse_stream *, packhorse_tensor *const *, size_t, packhorse_tensor **,
                           size_t, size_t *, char **message) {
  return guarded(message, []() -> int { throw std::runtime_error("there are no recorded graphs"); });
}

void packhorse_graph_free(packhorse_graph *) {}

}  // extern "C"

#endif

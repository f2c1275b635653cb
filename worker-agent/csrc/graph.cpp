// CUDA graphs. libtorch's class for them, which also directs the allocator to memory that a graph can reuse, needs headers of CUDA. Without
// them at build time nothing can be recorded, and programs run kernel by kernel.

#include "program.h"

#include <stdexcept>

#ifdef PACKHORSE_CUDA_HEADERS

#include <ATen/cuda/CUDAGraph.h>

struct packhorse_graph {
  at::cuda::CUDAGraph graph;
  // The memory that the recorded kernels read and write.
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
};

extern "C" {

int packhorse_graph_record(packhorse_module *module, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                           size_t input_count, packhorse_graph *pool_owner, packhorse_graph **graph, char **message) {
  return guarded(message, [&]() -> int {
    if (!stream->cuda) {
      throw std::runtime_error("only CUDA devices can record graphs");
    }
    const CurrentStream current(*stream);
    auto made = std::make_unique<packhorse_graph>();
    for (size_t i = 0; i < input_count; ++i) {
      made->inputs.push_back(unwrap(inputs[i])->clone());
    }
    // The compilation and set-up in the first runs of a shape cannot be recorded.
    for (int run = 0; run < 2; ++run) {
      run_program(*module, made->inputs);
    }
    std::optional<std::vector<at::Tensor>> outputs;
    // The work of other threads at the same time is neither recorded nor refused.
    const auto pool = pool_owner != nullptr ? pool_owner->graph.pool() : c10::MempoolId_t{0, 0};
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
    if (!outputs) {
      return PACKHORSE_NO_TENSORS;
    }
    for (const auto &output : *outputs) {
      if (output.layout() != c10::kStrided || !output.is_cuda()) {
        throw std::runtime_error("an output of the program is not in the device's memory");
      }
    }
    made->outputs = std::move(*outputs);
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

// libtorch's profiler (Kineto), and the range of a profiler around this process.

#include "call.h"

#include <dlfcn.h>

#include <set>

#include <torch/csrc/autograd/profiler_kineto.h>

namespace {

torch::profiler::impl::ProfilerConfig profiler_config() {
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO);
}

std::set<torch::profiler::impl::ActivityType> profiler_activities(int cuda) {
  using torch::profiler::impl::ActivityType;
  return {cuda != 0 ? ActivityType::CUDA : ActivityType::CPU};
}

}  // namespace

extern "C" {

int packhorse_profiler_prepare(int cuda, char **message) {
  return guarded(message, [&] {
    torch::autograd::profiler::prepareProfiler(profiler_config(), profiler_activities(cuda));
    return PACKHORSE_OK;
  });
}

int packhorse_profiler_start(int cuda, char **message) {
  return guarded(message, [&] {
    torch::autograd::profiler::enableProfiler(profiler_config(), profiler_activities(cuda), {at::RecordScope::FUNCTION});
    return PACKHORSE_OK;
  });
}

int packhorse_profiler_stop(const char *path, char **message) {
  return guarded(message, [&] {
    const auto result = torch::autograd::profiler::disableProfiler();
    if (path != nullptr) {
      result->save(path);
    }
    return PACKHORSE_OK;
  });
}

// The CUDA runtime is in the process if libtorch is a build with CUDA; its headers are not needed to build this.
void packhorse_profiler_range(int begin) {
  const char *name = begin != 0 ? "cudaProfilerStart" : "cudaProfilerStop";
  if (void *function = dlsym(RTLD_DEFAULT, name)) {
    reinterpret_cast<int (*)()>(function)();
  }
}

}  // extern "C"

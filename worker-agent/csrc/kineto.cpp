#include "kineto.h"
#include "shim.h"

#include <cstring>
#include <exception>
#include <set>

#include <dlfcn.h>

#include <torch/csrc/autograd/profiler_kineto.h>

namespace {

template <typename Body>
int guarded(char **message, Body body) {
  try {
    body();
    return PACKHORSE_OK;
  } catch (const c10::Error &e) {
    *message = strdup(e.what_without_backtrace());
  } catch (const std::exception &e) {
    *message = strdup(e.what());
  } catch (...) {
    *message = strdup("unknown exception");
  }
  return PACKHORSE_THREW;
}

torch::profiler::impl::ProfilerConfig config() {
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO);
}

std::set<torch::profiler::impl::ActivityType> activities(int cuda) {
  using torch::profiler::impl::ActivityType;
  return {cuda != 0 ? ActivityType::CUDA : ActivityType::CPU};
}

}  // namespace

extern "C" {

int packhorse_recording_prepare(int cuda, char **message) {
  return guarded(message, [&] { torch::autograd::profiler::prepareProfiler(config(), activities(cuda)); });
}

int packhorse_recording_begin(int cuda, char **message) {
  return guarded(message, [&] {
    torch::autograd::profiler::enableProfiler(config(), activities(cuda), {at::RecordScope::FUNCTION});
  });
}

int packhorse_recording_end(const char *path, char **message) {
  return guarded(message, [&] {
    const auto result = torch::autograd::profiler::disableProfiler();
    if (path != nullptr) {
      result->save(path);
    }
  });
}

// The library is in the process when libtorch is a build with CUDA; its headers need not be there to build this.
void packhorse_profiler_range(int begin) {
  const char *name = begin != 0 ? "cudaProfilerStart" : "cudaProfilerStop";
  if (void *function = dlsym(RTLD_DEFAULT, name)) {
    reinterpret_cast<int (*)()>(function)();
  }
}

}  // extern "C"

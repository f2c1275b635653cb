// What the files of the shim share.

#pragma once

#include "shim.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

struct packhorse_lane {
  c10::Device device;
  // None on the CPU, whose work is done when the call returns.
  std::optional<c10::Stream> stream;
};

struct packhorse_mark {
  std::optional<c10::Event> event;
  std::chrono::steady_clock::time_point at;
};

// Runs a program; none if its result is something else than tensors.
std::optional<std::vector<at::Tensor>> run_program(packhorse_module &module, std::vector<at::Tensor> inputs);

namespace {

at::Tensor *unwrap(packhorse_tensor *tensor) { return reinterpret_cast<at::Tensor *>(tensor); }

const at::Tensor *unwrap(const packhorse_tensor *tensor) { return reinterpret_cast<const at::Tensor *>(tensor); }

packhorse_tensor *wrap(at::Tensor tensor) {
  return reinterpret_cast<packhorse_tensor *>(new at::Tensor(std::move(tensor)));
}

void say(char **message, const char *text) { *message = strdup(text); }

// Whether a CUDA device still does what it is told. After a fault nothing does, in this process, whatever it is.
bool device_works() {
  try {
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    c10::Event event(c10::kCUDA);
    event.record(cuda.getStream(cuda.getDevice()));
    event.query();
    return true;
  } catch (...) {
    return false;
  }
}

// What went wrong, by the exception's text: the interpreter throws one of its own for whatever a program threw.
int kind_of(const char *text) {
  const auto says = [text](const char *words) { return std::strstr(text, words) != nullptr; };
  if (says("DefaultCPUAllocator") || says("CUDA out of memory") || says("CUDA error: out of memory") ||
      says("CUBLAS_STATUS_ALLOC_FAILED")) {
    return PACKHORSE_OUT_OF_MEMORY;
  }
  return says("CUDA error") && !device_works() ? PACKHORSE_DEVICE_FAILED : PACKHORSE_THREW;
}

// Runs `body`, which returns a code, and turns whatever it throws into one. Everything runs in inference mode, on whatever
// thread: a program first run with gradients cannot change over.
template <typename Body>
int guarded(char **message, Body body) {
  try {
    c10::InferenceMode inference;
    return body();
  } catch (const c10::OutOfMemoryError &e) {
    say(message, e.what_without_backtrace());
    return PACKHORSE_OUT_OF_MEMORY;
  } catch (const c10::Error &e) {
    say(message, e.what_without_backtrace());
    return kind_of(e.what_without_backtrace());
  } catch (const std::bad_alloc &) {
    say(message, "out of memory");
    return PACKHORSE_OUT_OF_MEMORY;
  } catch (const std::exception &e) {
    say(message, e.what());
    return kind_of(e.what());
  } catch (...) {
    say(message, "unknown exception");
    return PACKHORSE_THREW;
  }
}

c10::Device device_of(int cuda_device) {
  if (cuda_device < 0) {
    return c10::Device(c10::kCPU);
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
}

// While it lives, this thread's work for the lane's device goes to the lane.
class OnLane {
 public:
  explicit OnLane(const packhorse_lane &lane) {
    if (lane.stream) {
      guard_.emplace(*lane.stream);
    }
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace

// The helpers of all parts of the shim: tensors and devices as the C interface has them, and the conversion of exceptions into codes.

#pragma once

#include "shim.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace {

at::Tensor *unwrap(packhorse_tensor *tensor) { return reinterpret_cast<at::Tensor *>(tensor); }

const at::Tensor *unwrap(const packhorse_tensor *tensor) { return reinterpret_cast<const at::Tensor *>(tensor); }

packhorse_tensor *wrap(at::Tensor tensor) {
  return reinterpret_cast<packhorse_tensor *>(new at::Tensor(std::move(tensor)));
}

void set_message(char **message, const char *text) { *message = strdup(text); }

// Returns true if the current CUDA device still executes work. After a fault it refuses everything from this process.
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

// Classifies an exception by its text, because the interpreter throws an exception of its own for whatever a program threw.
int kind_of(const char *text) {
  const auto contains = [text](const char *words) { return std::strstr(text, words) != nullptr; };
  if (contains("DefaultCPUAllocator") || contains("CUDA out of memory") || contains("CUDA error: out of memory") ||
      contains("CUBLAS_STATUS_ALLOC_FAILED")) {
    return PACKHORSE_OUT_OF_MEMORY;
  }
  return contains("CUDA error") && !device_works() ? PACKHORSE_DEVICE_FAILED : PACKHORSE_THREW;
}

// Runs `body`, which returns a code, and turns an exception into a code and a message. The body runs in inference mode on every thread: a
// program that first runs with gradients cannot change to inference mode later.
template <typename Body>
int guarded(char **message, Body body) {
  try {
    c10::InferenceMode inference;
    return body();
  } catch (const c10::OutOfMemoryError &e) {
    set_message(message, e.what_without_backtrace());
    return PACKHORSE_OUT_OF_MEMORY;
  } catch (const c10::Error &e) {
    set_message(message, e.what_without_backtrace());
    return kind_of(e.what_without_backtrace());
  } catch (const std::bad_alloc &) {
    set_message(message, "out of memory");
    return PACKHORSE_OUT_OF_MEMORY;
  } catch (const std::exception &e) {
    set_message(message, e.what());
    return kind_of(e.what());
  } catch (...) {
    set_message(message, "unknown exception");
    return PACKHORSE_THREW;
  }
}

c10::Device device_of(int cuda_device) {
  if (cuda_device < 0) {
    return c10::Device(c10::kCPU);
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
}

}  // namespace

extern "C" {

void packhorse_message_free(char *message) { std::free(message); }

}  // extern "C"

// The helpers of all parts of the shim: tensors and devices as the C interface has them, and the conversion of exceptions into codes.

#pragma once

#include "shim.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

// True from the first call that names a CUDA device, if libtorch has CUDA. A process that computes on the CPU does not touch the host's GPUs.
inline std::atomic<bool> cuda_is_used = false;

namespace {

at::Tensor *unwrap(packhorse_tensor *tensor) { return reinterpret_cast<at::Tensor *>(tensor); }

const at::Tensor *unwrap(const packhorse_tensor *tensor) { return reinterpret_cast<const at::Tensor *>(tensor); }

packhorse_tensor *wrap(at::Tensor tensor) {
  return reinterpret_cast<packhorse_tensor *>(new at::Tensor(std::move(tensor)));
}

void set_message(char **message, const char *text) { *message = strdup(text); }

// Returns the text of the exception that is being handled.
std::string exception_text() {
  try {
    throw;
  } catch (const c10::Error &e) {
    return e.what_without_backtrace();
  } catch (const std::exception &e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

// Returns the error of the current CUDA device if it refuses work: after a fault it refuses everything from this process.
std::optional<std::string> device_fault() {
  try {
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    c10::Event event(c10::kCUDA);
    event.record(cuda.getStream(cuda.getDevice()));
    event.query();
    return std::nullopt;
  } catch (...) {
    return exception_text();
  }
}

// Returns true if an error of libtorch with this text is a lack of memory.
bool is_out_of_memory(const std::string &text) {
  for (const char *words :
       {"DefaultCPUAllocator", "CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"}) {
    if (text.find(words) != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Returns the code of an exception with this text, and sets the message. The text decides what it can, because the interpreter throws an
// exception of its own for whatever a program threw. It does not always tell that the device failed: where libtorch only warns of that, it
// throws something else later. So the device is asked; one that has no memory left works.
int code_of(char **message, const std::string &text) {
  if (is_out_of_memory(text)) {
    set_message(message, text.c_str());
    return PACKHORSE_OUT_OF_MEMORY;
  }
  if (cuda_is_used) {
    const auto fault = device_fault();
    if (fault && !is_out_of_memory(*fault)) {
      const bool tells = text.find("CUDA error") != std::string::npos;
      set_message(message, (tells ? text : *fault).c_str());
      return PACKHORSE_DEVICE_FAILED;
    }
  }
  set_message(message, text.c_str());
  return PACKHORSE_THREW;
}

// The exception for a result that is not made of tensors.
struct NoTensors : std::runtime_error {
  using std::runtime_error::runtime_error;
};

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
  } catch (const NoTensors &e) {
    set_message(message, e.what());
    return PACKHORSE_NO_TENSORS;
  } catch (const std::bad_alloc &) {
    set_message(message, "out of memory");
    return PACKHORSE_OUT_OF_MEMORY;
  } catch (...) {
    return code_of(message, exception_text());
  }
}

c10::Device device_of(int cuda_device) {
  if (cuda_device < 0) {
    return c10::Device(c10::kCPU);
  }
  cuda_is_used = c10::impl::hasDeviceGuardImpl(c10::kCUDA);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
}

}  // namespace

extern "C" {

void packhorse_message_free(char *message) { std::free(message); }

}  // extern "C"

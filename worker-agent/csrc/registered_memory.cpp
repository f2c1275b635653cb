// Memory of another process that is registered with CUDA, and the copies from it.

#include "stream.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include <c10/core/DeviceGuard.h>

namespace {

// Returns a function of the CUDA runtime. libtorch depends on it, but its header is not installed with every libtorch; types and numbers are
// those of its ABI.
template <typename Function>
Function *cuda_function(const char *name) {
  void *const function = dlsym(RTLD_DEFAULT, name);
  if (function == nullptr) {
    throw std::runtime_error(std::string("the CUDA runtime has no ") + name);
  }
  return reinterpret_cast<Function *>(function);
}

// Throws if `error` is not cudaSuccess. The runtime forgets the error, which libtorch would otherwise report after a call of its own.
void check_cuda(int error) {
  if (error != 0) {
    cuda_function<int()>("cudaGetLastError")();
    const char *const text = cuda_function<const char *(int)>("cudaGetErrorString")(error);
    throw std::runtime_error(std::string("CUDA error: ") + text);
  }
}

}  // namespace

extern "C" {

int packhorse_host_register(int cuda_device, const void *memory, uint64_t size, char **message) {
  return guarded(message, [&] {
    // cudaHostRegisterReadOnly, without which the runtime refuses memory that cannot be written.
    constexpr unsigned read_only = 8;
    static const auto host_register = cuda_function<int(void *, size_t, unsigned)>("cudaHostRegister");
    const c10::DeviceGuard device(device_of(cuda_device));
    check_cuda(host_register(const_cast<void *>(memory), size, read_only));
    return PACKHORSE_OK;
  });
}

int packhorse_host_unregister(int cuda_device, const void *memory, char **message) {
  return guarded(message, [&] {
    static const auto unregister = cuda_function<int(void *)>("cudaHostUnregister");
    const c10::DeviceGuard device(device_of(cuda_device));
    check_cuda(unregister(const_cast<void *>(memory)));
    return PACKHORSE_OK;
  });
}

int packhorse_stream_join(const packhorse_stream *stream, const packhorse_piece *pieces, size_t piece_count, int scalar_type,
                          const int64_t *dims, size_t rank, packhorse_tensor **tensor, char **message) {
  return guarded(message, [&] {
    constexpr int host_to_device = 1;  // cudaMemcpyHostToDevice
    static const auto copy = cuda_function<int(void *, const void *, size_t, int, void *)>("cudaMemcpyAsync");
    const CurrentStream current(*stream);
    const auto options = at::TensorOptions().dtype(static_cast<c10::ScalarType>(scalar_type)).device(stream->device);
    at::Tensor joined = at::empty(at::IntArrayRef(dims, rank), options);
    char *to = static_cast<char *>(joined.data_ptr());
    for (size_t i = 0; i < piece_count; ++i) {
      check_cuda(copy(to, pieces[i].memory, pieces[i].size, host_to_device, stream->cuda.value().native_handle()));
      to += pieces[i].size;
    }
    *tensor = wrap(std::move(joined));
    return PACKHORSE_OK;
  });
}

}  // extern "C"

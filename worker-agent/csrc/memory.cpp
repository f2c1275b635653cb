// Tensors in host memory, and the memory and multiprocessors of CUDA devices.

#include "call.h"

#include <dlfcn.h>

#include <stdexcept>

#include <ATen/DeviceAccelerator.h>

extern "C" {

int packhorse_tensor_scalar_type(const packhorse_tensor *tensor) {
  return static_cast<int>(unwrap(tensor)->scalar_type());
}

int packhorse_buffer_new(uint64_t size, int pinned, packhorse_tensor **buffer, char **message) {
  return guarded(message, [&] {
    const auto options = at::TensorOptions().dtype(at::kByte).pinned_memory(pinned != 0);
    *buffer = wrap(at::empty({static_cast<int64_t>(size)}, options));
    return PACKHORSE_OK;
  });
}

int packhorse_buffer_is_shared(const packhorse_tensor *buffer) { return unwrap(buffer)->storage().use_count() > 1 ? 1 : 0; }

int packhorse_buffer_view(const packhorse_tensor *buffer, uint64_t offset, int scalar_type, const int64_t *dims, size_t rank,
                          packhorse_tensor **tensor, char **message) {
  return guarded(message, [&] {
    const auto type = c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(scalar_type));
    const at::Tensor &bytes = *unwrap(buffer);
    // A tensor of the storage, made directly: through the operators (narrow, and view twice) it takes several times as long.
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(bytes.storage()), bytes.key_set(), type);
    made.unsafeGetTensorImpl()->set_storage_offset(static_cast<int64_t>(offset / type.itemsize()));
    made.unsafeGetTensorImpl()->set_sizes_contiguous(at::IntArrayRef(dims, rank));
    *tensor = wrap(std::move(made));
    return PACKHORSE_OK;
  });
}

int packhorse_tensor_over(const void *memory, int scalar_type, const int64_t *dims, size_t rank, packhorse_tensor **tensor, char **message) {
  return guarded(message, [&] {
    const auto options = at::TensorOptions().dtype(static_cast<c10::ScalarType>(scalar_type));
    // libtorch has no tensors that cannot be written. The caller's program does not write.
    *tensor = wrap(at::from_blob(const_cast<void *>(memory), at::IntArrayRef(dims, rank), options));
    return PACKHORSE_OK;
  });
}

int packhorse_cuda_peak_memory(int cuda_device, uint64_t *bytes, char **message) {
  return guarded(message, [&] {
    const auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(cuda_device));
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *bytes = static_cast<uint64_t>(stats.reserved_bytes[all].peak);
    return PACKHORSE_OK;
  });
}

int packhorse_cuda_release_memory(char **message) {
  return guarded(message, [&] {
    at::accelerator::emptyCache();
    return PACKHORSE_OK;
  });
}

int packhorse_cuda_multiprocessors(int cuda_device, uint32_t *count, char **message) {
  return guarded(message, [&] {
    // libtorch depends on the CUDA runtime, whose header is not installed with every libtorch. The number is part of its ABI:
    // cudaDevAttrMultiProcessorCount of cudaDeviceAttr.
    constexpr int multiprocessor_count = 16;
    using GetAttribute = int (*)(int *, int, int);
    const auto get = reinterpret_cast<GetAttribute>(dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
    int value = 0;
    if (get == nullptr || get(&value, multiprocessor_count, cuda_device) != 0) {
      throw std::runtime_error("the CUDA runtime does not report the number of multiprocessors");
    }
    *count = static_cast<uint32_t>(value);
    return PACKHORSE_OK;
  });
}

}  // extern "C"

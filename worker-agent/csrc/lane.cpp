// Lanes, marks and the memory that batches come and go in, without a header of CUDA: through what libtorch has for all devices.

#include "internal.h"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>

#include <ATen/DeviceAccelerator.h>

extern "C" {

int packhorse_lane_new(int cuda_device, packhorse_lane **lane, char **message) {
  return guarded(message, [&] {
    const c10::Device device = device_of(cuda_device);
    std::optional<c10::Stream> stream;
    if (!device.is_cpu()) {
      stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
    }
    *lane = new packhorse_lane{device, stream};
    return PACKHORSE_OK;
  });
}

void packhorse_lane_free(packhorse_lane *lane) { delete lane; }

int packhorse_lane_mark(const packhorse_lane *lane, packhorse_mark **mark, char **message) {
  return guarded(message, [&] {
    auto made = std::make_unique<packhorse_mark>();
    if (lane->stream) {
      // With the flag that keeps the time.
      made->event.emplace(lane->device.type(), c10::EventFlag::BACKEND_DEFAULT);
      made->event->record(*lane->stream);
    } else {
      made->at = std::chrono::steady_clock::now();
    }
    *mark = made.release();
    return PACKHORSE_OK;
  });
}

int packhorse_lane_follow(const packhorse_lane *lane, const packhorse_mark *mark, char **message) {
  return guarded(message, [&] {
    if (lane->stream && mark->event) {
      mark->event->block(*lane->stream);
    }
    return PACKHORSE_OK;
  });
}

int packhorse_mark_is_past(const packhorse_mark *mark, int *past, char **message) {
  return guarded(message, [&] {
    *past = !mark->event || mark->event->query() ? 1 : 0;
    return PACKHORSE_OK;
  });
}

int packhorse_mark_since(const packhorse_mark *mark, const packhorse_mark *earlier, uint64_t *nanoseconds, char **message) {
  return guarded(message, [&] {
    std::chrono::duration<double, std::nano> elapsed{mark->at - earlier->at};
    if (mark->event && earlier->event) {
      elapsed = std::chrono::duration<double, std::milli>(earlier->event->elapsedTime(*mark->event));
    }
    *nanoseconds = static_cast<uint64_t>(std::max(0.0, elapsed.count()));
    return PACKHORSE_OK;
  });
}

void packhorse_mark_free(packhorse_mark *mark) { delete mark; }

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
    const auto type = static_cast<c10::ScalarType>(scalar_type);
    const at::IntArrayRef shape(dims, rank);
    const auto bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(type));
    const auto part = unwrap(buffer)->narrow(0, static_cast<int64_t>(offset), bytes);
    *tensor = wrap(part.view(type).view(shape));
    return PACKHORSE_OK;
  });
}

int packhorse_lane_bring(const packhorse_lane *lane, const packhorse_tensor *source, packhorse_tensor **tensor, char **message) {
  return guarded(message, [&] {
    const OnLane on(*lane);
    *tensor = wrap(unwrap(source)->to(lane->device, /*non_blocking=*/true));
    return PACKHORSE_OK;
  });
}

int packhorse_lane_straighten(const packhorse_lane *lane, const packhorse_tensor *source, packhorse_tensor **tensor,
                              char **message) {
  return guarded(message, [&] {
    const OnLane on(*lane);
    *tensor = wrap(unwrap(source)->contiguous().resolve_neg());
    return PACKHORSE_OK;
  });
}

int packhorse_lane_copy(const packhorse_lane *lane, packhorse_tensor *destination, const packhorse_tensor *source,
                        char **message) {
  return guarded(message, [&] {
    const OnLane on(*lane);
    unwrap(destination)->copy_(*unwrap(source), /*non_blocking=*/true);
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
    // libtorch depends on the CUDA runtime, whose header is not there wherever libtorch is. The numbers are those of its ABI:
    // cudaDevAttrMultiProcessorCount of cudaDeviceAttr.
    constexpr int multiprocessor_count = 16;
    using GetAttribute = int (*)(int *, int, int);
    const auto get = reinterpret_cast<GetAttribute>(dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
    int value = 0;
    if (get == nullptr || get(&value, multiprocessor_count, cuda_device) != 0) {
      throw std::runtime_error("the CUDA runtime does not tell");
    }
    *count = static_cast<uint32_t>(value);
    return PACKHORSE_OK;
  });
}

}  // extern "C"

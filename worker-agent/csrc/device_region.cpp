// Regions of a CUDA device: the weights of a program lie in a range of addresses that stays, while the memory behind it comes and goes. So programs
// and recorded graphs stay as they are. The host has a copy of the weights, in memory from which the device reads by itself.
//
// The memory is in chunks, of which any serves any region: nothing is fragmented. Without CUDA's headers there is no such region.

#include "region.h"

#include <stdexcept>

#ifdef PACKHORSE_CUDA_HEADERS

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

namespace {

// A multiple of the size of a device's pages. Larger chunks are mapped with fewer calls, and more of the last one of a program is unused.
constexpr size_t chunk_size = size_t{4} << 20;
// The addresses of a region. They cost nothing.
constexpr size_t most_bytes = size_t{64} << 30;
// libtorch's own unit of the segments that it asks for.
constexpr size_t segment_unit = size_t{2} << 20;

// Functions of the driver, which the runtime knows.
struct Driver {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_addresses;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;

  static const Driver &get() {
    static const Driver driver = {
        function<decltype(reserve)>("cuMemAddressReserve"), function<decltype(free_addresses)>("cuMemAddressFree"),
        function<decltype(create)>("cuMemCreate"),          function<decltype(release)>("cuMemRelease"),
        function<decltype(map)>("cuMemMap"),                function<decltype(unmap)>("cuMemUnmap"),
        function<decltype(set_access)>("cuMemSetAccess"),
    };
    return driver;
  }

 private:
  template <typename Function>
  static Function function(const char *name) {
    // All of them are of CUDA 10.2.
    constexpr unsigned version = 10020;
    using Find = cudaError_t(const char *, void **, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *);
    static const auto find = cuda_function<Find>("cudaGetDriverEntryPointByVersion");
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(find(name, &found, version, cudaEnableDefault, &result));
    if (found == nullptr || result != cudaDriverEntryPointSuccess) {
      throw std::runtime_error(std::string("the CUDA driver has no ") + name);
    }
    return reinterpret_cast<Function>(found);
  }
};

void check_driver(CUresult result, const char *what) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw std::runtime_error(std::string("CUDA out of memory: ") + what);
  }
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(std::string("CUDA error: ") + what + ": " + std::to_string(static_cast<int>(result)));
  }
}

// The chunks of a device that are in no region. They are kept because creating one takes longer than a copy to it.
class SpareChunks {
 public:
  using Chunk = CUmemGenericAllocationHandle;

  static SpareChunks &of(int device) {
    static std::mutex mutex;
    static std::map<int, SpareChunks> all;
    const std::lock_guard<std::mutex> lock(mutex);
    return all.try_emplace(device, device).first->second;
  }

  explicit SpareChunks(int device) : device_(device) {}

  Chunk take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!spare_.empty()) {
        const Chunk chunk = spare_.back();
        spare_.pop_back();
        return chunk;
      }
    }
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_;
    Chunk chunk{};
    check_driver(Driver::get().create(&chunk, chunk_size, &properties, 0), "memory for weights");
    const std::lock_guard<std::mutex> lock(mutex_);
    ++created_;
    return chunk;
  }

  void give_back(Chunk chunk) {
    const std::lock_guard<std::mutex> lock(mutex_);
    spare_.push_back(chunk);
  }

  // Gives the memory of so many bytes of spare chunks back, or of all.
  void release(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t released = 0; released < bytes && !spare_.empty(); released += chunk_size) {
      check_driver(Driver::get().release(spare_.back()), "memory of weights");
      spare_.pop_back();
      --created_;
    }
  }

  // Returns the bytes of the chunks in regions, and of the others.
  std::pair<size_t, size_t> bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {(created_ - spare_.size()) * chunk_size, spare_.size() * chunk_size};
  }

  // The bytes of the segments in all regions, which libtorch counts, whether or not there is memory behind them.
  std::atomic<size_t> segments{0};

 private:
  const int device_;
  std::mutex mutex_;
  std::vector<Chunk> spare_;
  size_t created_ = 0;
};

// Returns the stream on which weights are copied to a device, beside what it computes.
cudaStream_t copy_stream(int device) {
  static std::mutex mutex;
  static std::map<int, c10::cuda::CUDAStream> streams;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto index = static_cast<c10::DeviceIndex>(device);
  return streams.try_emplace(device, c10::cuda::getStreamFromPool(true, index)).first->second.stream();
}

void copy(void *to, const void *from, size_t size, cudaStream_t stream) {
  static const auto copy_async = cuda_function<cudaError_t(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t)>("cudaMemcpyAsync");
  check_cuda(copy_async(to, from, size, cudaMemcpyDefault, stream));
}

void wait_for(cudaStream_t stream) {
  static const auto synchronize = cuda_function<cudaError_t(cudaStream_t)>("cudaStreamSynchronize");
  check_cuda(synchronize(stream));
}

// Memory of the host that a device reads and writes by itself.
class PinnedMemory {
 public:
  explicit PinnedMemory(size_t size) {
    static const auto allocate = cuda_function<cudaError_t(void **, size_t, unsigned)>("cudaHostAlloc");
    void *memory = nullptr;
    check_cuda(allocate(&memory, size, cudaHostAllocDefault));
    bytes_.reset(static_cast<char *>(memory));
  }

  char *bytes() const { return bytes_.get(); }

 private:
  struct Free {
    void operator()(char *bytes) const {
      static const auto free_host = cuda_function<cudaError_t(void *)>("cudaFreeHost");
      free_host(bytes);
    }
  };

  std::unique_ptr<char, Free> bytes_;
};

// Has libtorch allocate what it keeps for products of matrices, for each thread and stream, for ever: it is not to lie in the region of the program
// that has the first one while it is loaded.
void prepare_products(const c10::Device &device) {
  try {
    const at::Tensor numbers = at::empty({16, 16}, at::TensorOptions(device));
    // The two ways in which they are computed.
    at::mm(numbers, numbers);
    at::addmm(numbers[0], numbers, numbers);
  } catch (const std::exception &) {
    // Where there is no memory for that, there is none for the program. libtorch would report the error after a call of its own.
    cuda_function<cudaError_t()>("cudaGetLastError")();
  }
}

// The memory of a program. libtorch asks for segments of it, in which it places what the loading thread allocates.
class DeviceRegion final : public packhorse_region {
 public:
  explicit DeviceRegion(int device) : device_(device), spare_(SpareChunks::of(device)) {
    // The runtime must have made the device's context.
    const c10::DeviceGuard guard(device_of(device));
    copy_stream(device);
    check_driver(Driver::get().reserve(&base_, most_bytes, chunk_size, 0, 0), "addresses for weights");
    namespace pluggable = torch::cuda::CUDAPluggableAllocator;
    const auto allocate = [this](size_t size, int, cudaStream_t) { return take_segment(size); };
    const auto free = [this](void *segment, size_t, int, cudaStream_t) { free_segment(segment); };
    pool_.emplace(pluggable::createCustomAllocator(allocate, free));
  }

  ~DeviceRegion() override {
    try {
      unmap({});
      check_driver(Driver::get().free_addresses(base_, most_bytes), "addresses of weights");
    } catch (const std::exception &) {
      // A device that has failed gives nothing back.
    }
  }

  void enter() override {
    const c10::DeviceGuard guard(device_of(device_));
    auto capture = std::make_unique<Capture>();
    prepare_products(device_of(device_));
    const auto loading = std::this_thread::get_id();
    const auto is_loading = [loading](cudaStream_t) { return std::this_thread::get_id() == loading; };
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(index(), pool_->id(), is_loading);
    capture_ = std::move(capture);
  }

  void leave() override {
    const c10::DeviceGuard guard(device_of(device_));
    const std::unique_ptr<Capture> ends = std::move(capture_);
    c10::cuda::CUDACachingAllocator::endAllocateToPool(index(), pool_->id());
    // The use of the pool that its beginning counted.
    c10::cuda::CUDACachingAllocator::releasePool(index(), pool_->id());
    // Also what a load began that has failed may still read what it has freed.
    at::accelerator::synchronizeDevice(index());
    unmap(chunks_of(live_ranges()));
  }

  size_t seal(const char *) override {
    const c10::DeviceGuard guard(device_of(device_));
    kept_ = live_ranges();
    needed_ = chunks_of(kept_);
    unmap(needed_);
    size_t bytes = 0;
    for (const auto &[from, size] : kept_) {
      bytes += size;
    }
    if (bytes == 0) {
      return 0;
    }
    image_.emplace(bytes);
    copy_to_host(image_->bytes());
    return needed_.size() * chunk_size;
  }

  bool park() override {
    unmap({});
    return true;
  }

  void restore() override {
    const c10::DeviceGuard guard(device_of(device_));
    try {
      map(needed_);
    } catch (const std::exception &) {
      // The memory that libtorch keeps for later.
      c10::cuda::CUDACachingAllocator::emptyCache();
      map(needed_);
    }
    const char *from_host = image_->bytes();
    const cudaStream_t stream = copy_stream(device_);
    for (const auto &[from, size] : kept_) {
      copy(at(from), from_host, size, stream);
      from_host += size;
    }
    wait_for(stream);
  }

  bool is_written() const override {
    size_t size = 0;
    const PinnedMemory now = copied_to_host(size);
    return std::memcmp(now.bytes(), image_->bytes(), size) != 0;
  }

  uint64_t digest() const override {
    size_t size = 0;
    const PinnedMemory now = copied_to_host(size);
    return digest_of(no_bytes, now.bytes(), size);
  }

  bool is_empty() override {
    const c10::DeviceGuard guard(device_of(device_));
    const auto alive = chunks_of(live_ranges());
    // Its end has libtorch free the segments in which nothing is alive.
    pool_.reset();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!segments_.empty()) {
      // Somebody has a tensor still. All else comes free.
      image_.reset();
      unmap_locked(alive);
    }
    return segments_.empty();
  }

 private:
  c10::DeviceIndex index() const { return static_cast<c10::DeviceIndex>(device_); }

  void *at(size_t offset) const { return reinterpret_cast<void *>(base_ + offset); }

  // Returns a range of addresses with memory; null if there is none. Called by libtorch.
  void *take_segment(size_t size) {
    size = (size + segment_unit - 1) / segment_unit * segment_unit;
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t from = 0;
    for (const auto &[used, length] : segments_) {
      if (used - from >= size) {
        break;
      }
      from = used + length;
    }
    if (from + size > most_bytes) {
      return nullptr;
    }
    try {
      map_locked(chunks_of({{from, size}}));
    } catch (const std::exception &) {
      return nullptr;
    }
    segments_[from] = size;
    spare_.segments += size;
    return at(from);
  }

  // The memory stays until the weights are sealed: what was in the segment may still be read.
  void free_segment(void *segment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = segments_.find(reinterpret_cast<CUdeviceptr>(segment) - base_);
    if (found == segments_.end()) {
      std::abort();
    }
    spare_.segments -= found->second;
    segments_.erase(found);
  }

  // Has memory be behind the addresses of these chunks. If there is not enough, nothing is changed.
  void map(const std::set<size_t> &chunks) {
    const std::lock_guard<std::mutex> lock(mutex_);
    map_locked(chunks);
  }

  void map_locked(const std::set<size_t> &chunks) {
    const Driver &driver = Driver::get();
    std::map<size_t, SpareChunks::Chunk> taken;
    std::vector<size_t> mapped;
    try {
      for (const size_t chunk : chunks) {
        if (chunks_.count(chunk) == 0) {
          taken[chunk] = spare_.take();
        }
      }
      for (const auto &[place, chunk] : taken) {
        check_driver(driver.map(base_ + place * chunk_size, chunk_size, 0, chunk, 0), "memory behind addresses");
        mapped.push_back(place);
      }
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device_;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      for_runs(taken, [&](CUdeviceptr from, size_t size) { check_driver(driver.set_access(from, size, &access, 1), "access to memory"); });
    } catch (const std::exception &) {
      for (const size_t place : mapped) {
        driver.unmap(base_ + place * chunk_size, chunk_size);
      }
      for (const auto &[place, chunk] : taken) {
        spare_.give_back(chunk);
      }
      throw;
    }
    chunks_.insert(taken.begin(), taken.end());
  }

  // Takes the memory from behind all addresses but those of these chunks. Nothing uses it.
  void unmap(const std::set<size_t> &except) {
    const std::lock_guard<std::mutex> lock(mutex_);
    unmap_locked(except);
  }

  void unmap_locked(const std::set<size_t> &except) {
    std::map<size_t, SpareChunks::Chunk> leaving;
    for (const auto &[place, chunk] : chunks_) {
      if (except.count(place) == 0) {
        leaving[place] = chunk;
      }
    }
    for_runs(leaving, [this](CUdeviceptr from, size_t size) {
      check_driver(Driver::get().unmap(from, size), "memory behind addresses");
      const size_t first = (from - base_) / chunk_size;
      for (size_t place = first; place < first + size / chunk_size; ++place) {
        spare_.give_back(chunks_.at(place));
        chunks_.erase(place);
      }
    });
  }

  // Calls a function with the addresses of each run of chunks without a gap.
  template <typename Call>
  void for_runs(const std::map<size_t, SpareChunks::Chunk> &chunks, Call call) const {
    for (auto first = chunks.begin(); first != chunks.end();) {
      size_t end = first->first + 1;
      auto next = std::next(first);
      for (; next != chunks.end() && next->first == end; ++next) {
        ++end;
      }
      call(base_ + first->first * chunk_size, (end - first->first) * chunk_size);
      first = next;
    }
  }

  static std::set<size_t> chunks_of(const std::vector<std::pair<size_t, size_t>> &ranges) {
    std::set<size_t> chunks;
    for (const auto &[from, size] : ranges) {
      for (size_t chunk = from / chunk_size; chunk * chunk_size < from + size; ++chunk) {
        chunks.insert(chunk);
      }
    }
    return chunks;
  }

  // Returns where anything is alive, as pairs of offset and length, neighbours joined. A segment of libtorch's has up to 20 MiB, of which
  // a small program uses little.
  std::vector<std::pair<size_t, size_t>> live_ranges() {
    std::map<size_t, size_t> live;
    for (const auto &segment : c10::cuda::CUDACachingAllocator::snapshot(pool_->id()).segments) {
      size_t from = static_cast<CUdeviceptr>(segment.address) - base_;
      for (const auto &block : segment.blocks) {
        if (block.allocated || block.active) {
          live[from] = block.size;
        }
        from += block.size;
      }
    }
    std::vector<std::pair<size_t, size_t>> ranges;
    for (const auto &[from, size] : live) {
      if (!ranges.empty() && ranges.back().first + ranges.back().second == from) {
        ranges.back().second += size;
      } else {
        ranges.emplace_back(from, size);
      }
    }
    return ranges;
  }

  PinnedMemory copied_to_host(size_t &size) const {
    const c10::DeviceGuard guard(device_of(device_));
    for (const auto &range : kept_) {
      size += range.second;
    }
    PinnedMemory memory(std::max<size_t>(size, 1));
    copy_to_host(memory.bytes());
    return memory;
  }

  void copy_to_host(char *to) const {
    const cudaStream_t stream = copy_stream(device_);
    for (const auto &[from, size] : kept_) {
      copy(to, at(from), size, stream);
      to += size;
    }
    wait_for(stream);
  }

  const int device_;
  SpareChunks &spare_;
  CUdeviceptr base_ = 0;
  std::optional<at::cuda::MemPool> pool_;
  // The capture of what is loaded into the region now.
  std::unique_ptr<Capture> capture_;
  mutable std::mutex mutex_;
  // Offsets and sizes.
  std::map<size_t, size_t> segments_;
  // The memory behind the addresses.
  std::map<size_t, SpareChunks::Chunk> chunks_;
  // The ranges of which the host has a copy, and their chunks.
  std::vector<std::pair<size_t, size_t>> kept_;
  std::set<size_t> needed_;
  std::optional<PinnedMemory> image_;
};

}  // namespace

std::unique_ptr<packhorse_region> new_device_region(int cuda_device) {
  const c10::Device device = device_of(cuda_device);
  if (!device.is_cuda() || !cuda_is_used) {
    throw std::runtime_error("libtorch has no CUDA");
  }
  at::globalContext().lazyInitDevice(c10::kCUDA);
  return std::make_unique<DeviceRegion>(cuda_device);
}

extern "C" int packhorse_cuda_memory(int cuda_device, uint64_t most, uint64_t *bytes, char **message) {
  return guarded(message, [&] {
    *bytes = 0;
    if (!c10::cuda::CUDACachingAllocator::get()->initialized()) {
      return PACKHORSE_OK;
    }
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(cuda_device));
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto reserved = static_cast<size_t>(stats.reserved_bytes[all].current);
    auto &chunks = SpareChunks::of(cuda_device);
    const auto [used, spare] = chunks.bytes();
    *bytes = reserved - std::min(reserved, chunks.segments.load()) + used;
    if (*bytes + spare > most) {
      chunks.release(*bytes + spare - most);
    }
    return PACKHORSE_OK;
  });
}

#else

std::unique_ptr<packhorse_region> new_device_region(int) {
  throw std::runtime_error("this worker was built without the headers of CUDA, so that weights stay on the device");
}

extern "C" int packhorse_cuda_memory(int, uint64_t, uint64_t *, char **message) {
  set_message(message, "this worker was built without the headers of CUDA");
  return PACKHORSE_THREW;
}

#endif

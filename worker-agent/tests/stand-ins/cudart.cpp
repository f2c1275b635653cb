// A stand-in for the CUDA runtime: libtorch's own allocator, streams, events, copies and graphs run on it without a GPU, and with them the
// worker's streams, buffers and graphs. It computes only the few kernels below and refuses all others.
//
// The device is one thread that executes the next operation of a random stream that is not waiting: work that the host has not ordered by
// an event sooner or later happens in the wrong order. The host cannot access the device's memory.
//
// CUDA_FAKE_SEED is the seed of the order, CUDA_FAKE_MEMORY_MIB the size of the device's memory, CUDA_FAKE_LOG a file to which every
// call that copies, launches, waits, allocates or frees is written, and CUDA_FAKE_FAULTS a folder: the device fails when the folder
// contains a file with the device's name in CUDA_VISIBLE_DEVICES, or 0. With CUDA_FAKE_REGISTERED_LIMIT no more than so many bytes of
// memory are registered at a time.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMultiprocessors = 132;
constexpr size_t kGranularity = 512;
// The pages of memory that is put behind addresses, and all such addresses.
constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kAddresses = size_t{8} << 40;

size_t number_from_environment(const char *name, size_t otherwise) {
  const char *value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

std::string fault_of_this_device() {
  const char *folder = std::getenv("CUDA_FAKE_FAULTS");
  const char *visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (folder == nullptr) {
    return "";
  }
  return std::string(folder) + "/" + (visible != nullptr ? visible : "0");
}

struct Event {
  bool timed;
  // The number of times it was recorded, and the number of these that the device has reached.
  uint64_t recorded = 0;
  uint64_t passed = 0;
  bool captured = false;
  Clock::time_point at;
};

struct Operation {
  std::function<void()> run;
  // The event that must have been reached before it runs, and the number of times.
  std::shared_ptr<Event> after;
  uint64_t passed = 0;
};

struct Stream {
  int id;
  std::deque<Operation> queue;
  bool busy = false;
  // The operations that are recorded instead of executed.
  std::optional<std::vector<Operation>> capture;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id capturing_thread;
};

struct EventHandle {
  std::shared_ptr<Event> event;
};

struct Graph {
  std::vector<Operation> operations;
};

using Compute = std::function<void()>;

class Device {
 public:
  Device()
      : size_(number_from_environment("CUDA_FAKE_MEMORY_MIB", 1024) << 20),
        random_(number_from_environment("CUDA_FAKE_SEED", 1)) {
    const int file = memfd_create("fake-device", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size_)) != 0) {
      std::perror("memory of the stand-in for CUDA");
      std::abort();
    }
    const auto map = [&](int protection) {
      return static_cast<char *>(mmap(nullptr, size_, protection, MAP_SHARED | MAP_NORESERVE, file, 0));
    };
    address_ = map(PROT_NONE);
    memory_ = map(PROT_READ | PROT_WRITE);
    file_ = file;
    const auto reserve = [] {
      const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
      return static_cast<char *>(mmap(nullptr, kAddresses, PROT_NONE, flags, -1, 0));
    };
    addresses_ = reserve();
    behind_ = reserve();
    if (const char *log = std::getenv("CUDA_FAKE_LOG")) {
      log_ = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    legacy_ = new_stream();
    std::thread([this] { work(); }).detach();
  }

  void log(const char *format, ...) __attribute__((format(printf, 2, 3))) {
    if (log_ < 0) {
      return;
    }
    char line[160];
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length] = '\n';
    if (write(log_, line, static_cast<size_t>(length) + 1) < 0) {
      std::perror("log of the stand-in for CUDA");
    }
  }

  // Returns success unless the device has failed.
  cudaError_t health() {
    static const std::string fault = fault_of_this_device();
    if (!fault.empty() && access(fault.c_str(), F_OK) == 0) {
      const std::lock_guard lock(mutex_);
      failed_ = true;
      changed_.notify_all();
    }
    return failed_ ? cudaErrorIllegalAddress : cudaSuccess;
  }

  Stream *new_stream() {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::make_unique<Stream>());
    streams_.back()->id = static_cast<int>(streams_.size()) - 1;
    return streams_.back().get();
  }

  Stream *stream(cudaStream_t handle) {
    const bool legacy = handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
    return legacy ? legacy_ : reinterpret_cast<Stream *>(handle);
  }

  void tell(Stream *stream, Operation operation) {
    const std::lock_guard lock(mutex_);
    if (stream->capture) {
      stream->capture->push_back(std::move(operation));
    } else {
      stream->queue.push_back(std::move(operation));
      changed_.notify_all();
    }
  }

  void tell(Stream *stream, Compute compute) { tell(stream, Operation{std::move(compute), nullptr, 0}); }

  // Waits for the device. Returns false if it fails.
  bool wait(const std::function<bool()> &done) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failed_ || done(); });
    return !failed_;
  }

  bool wait_for(Stream *stream) {
    return wait([&] { return stream->queue.empty() && !stream->busy; });
  }

  bool wait_for_all() {
    return wait([&] {
      return std::all_of(streams_.begin(), streams_.end(), [](auto &s) { return s->queue.empty() && !s->busy; });
    });
  }

  template <typename Result>
  Result locked(const std::function<Result()> &body) {
    const std::lock_guard lock(mutex_);
    return body();
  }

  void *allocate(size_t size, size_t granularity = kGranularity) {
    const std::lock_guard lock(mutex_);
    const auto round_up = [=](size_t number) { return (number + granularity - 1) / granularity * granularity; };
    size = std::max(granularity, round_up(size));
    size_t start = 0;
    for (const auto &[used, length] : blocks_) {
      if (used >= start + size) {
        break;
      }
      start = round_up(used + length);
    }
    if (start + size > size_) {
      return nullptr;
    }
    blocks_[start] = size;
    std::memset(memory_ + start, 0xA5, size);
    return address_ + start;
  }

  bool free(void *address) {
    const std::lock_guard lock(mutex_);
    return blocks_.erase(static_cast<size_t>(static_cast<char *>(address) - address_)) == 1;
  }

  size_t free_memory() {
    const std::lock_guard lock(mutex_);
    size_t used = 0;
    for (const auto &block : blocks_) {
      used += block.second;
    }
    return size_ - used;
  }

  size_t size() const { return size_; }

  // Returns addresses without memory. None are returned twice.
  char *reserve_addresses(size_t size) {
    const std::lock_guard lock(mutex_);
    if (reserved_ + size > kAddresses) {
      return nullptr;
    }
    reserved_ += size;
    return addresses_ + reserved_ - size;
  }

  // Has memory of the device, which allocate() has returned, be behind reserved addresses; null for none.
  bool put_behind(char *at, size_t size, const char *memory) {
    const std::lock_guard lock(mutex_);
    if (at < addresses_ || at + size > addresses_ + reserved_) {
      return false;
    }
    char *const to = behind_ + (at - addresses_);
    void *const mapped =
        memory == nullptr
            ? mmap(to, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0)
            : mmap(to, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, memory - address_);
    return mapped != MAP_FAILED;
  }

  bool is_on_device(const void *address) const { return is_in(address, address_, size_) || is_in(address, addresses_, kAddresses); }

  // Returns the memory behind an address of the device.
  template <typename T>
  T *inside(const T *address) const {
    const auto *at = reinterpret_cast<const char *>(address);
    if (is_in(at, addresses_, kAddresses)) {
      return reinterpret_cast<T *>(behind_ + (at - addresses_));
    }
    return reinterpret_cast<T *>(is_on_device(at) ? memory_ + (at - address_) : const_cast<char *>(at));
  }

  void *pin(size_t size) {
    void *memory = nullptr;
    if (posix_memalign(&memory, 4096, std::max<size_t>(size, 1)) != 0) {
      return nullptr;
    }
    std::memset(memory, 0xA5, size);
    const std::lock_guard lock(mutex_);
    pinned_[static_cast<char *>(memory)] = size;
    return memory;
  }

  bool unpin(void *memory) {
    const std::lock_guard lock(mutex_);
    if (pinned_.erase(static_cast<char *>(memory)) == 0) {
      return false;
    }
    std::free(memory);
    return true;
  }

  bool is_pinned(const void *address) {
    const std::lock_guard lock(mutex_);
    return contains(pinned_, address) || contains(registered_, address);
  }

  cudaError_t register_host(void *memory, size_t size) {
    static const size_t limit = number_from_environment("CUDA_FAKE_REGISTERED_LIMIT", SIZE_MAX);
    const std::lock_guard lock(mutex_);
    if (overlaps_registered(memory, size)) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
    size_t all = size;
    for (const auto &[start, length] : registered_) {
      all += length;
    }
    if (all > limit) {
      return cudaErrorMemoryAllocation;
    }
    registered_[static_cast<char *>(memory)] = size;
    return cudaSuccess;
  }

  // Returns the size of the registered memory, or 0 if it is not registered.
  size_t unregister_host(void *memory) {
    const std::lock_guard lock(mutex_);
    const auto found = registered_.find(static_cast<char *>(memory));
    if (found == registered_.end()) {
      return 0;
    }
    const size_t size = found->second;
    registered_.erase(found);
    return size;
  }

  bool is_registered(const void *address) {
    const std::lock_guard lock(mutex_);
    return contains(registered_, address);
  }

  // Returns false if a range of the host's memory is partly in a registration.
  bool keeps_to_registration(const void *memory, size_t size) {
    const std::lock_guard lock(mutex_);
    if (!overlaps_registered(memory, size)) {
      return true;
    }
    auto after = registered_.upper_bound(const_cast<char *>(static_cast<const char *>(memory)));
    if (after == registered_.begin()) {
      return false;
    }
    --after;
    return static_cast<const char *>(memory) + size <= after->first + after->second;
  }

  std::mutex &mutex() { return mutex_; }

 private:
  static bool is_in(const void *address, const char *begin, size_t size) {
    const auto *at = static_cast<const char *>(address);
    return at >= begin && at < begin + size;
  }

  static bool contains(const std::map<char *, size_t> &ranges, const void *address) {
    auto after = ranges.upper_bound(const_cast<char *>(static_cast<const char *>(address)));
    if (after == ranges.begin()) {
      return false;
    }
    --after;
    return static_cast<const char *>(address) < after->first + std::max<size_t>(after->second, 1);
  }

  bool overlaps_registered(const void *memory, size_t size) const {
    const auto *begin = static_cast<const char *>(memory);
    return std::any_of(registered_.begin(), registered_.end(), [&](const auto &range) {
      return begin < range.first + range.second && range.first < begin + size;
    });
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      std::vector<Stream *> ready;
      for (const auto &stream : streams_) {
        if (stream->queue.empty()) {
          continue;
        }
        const Operation &next = stream->queue.front();
        if (!next.after || next.after->passed >= next.passed) {
          ready.push_back(stream.get());
        }
      }
      if (ready.empty() || failed_) {
        changed_.wait(lock);
        continue;
      }
      Stream *stream = ready[random_() % ready.size()];
      const Operation operation = std::move(stream->queue.front());
      stream->queue.pop_front();
      stream->busy = true;
      const auto pause = std::chrono::microseconds(random_() % 4 == 0 ? random_() % 200 : 0);
      lock.unlock();
      std::this_thread::sleep_for(pause);
      operation.run();
      lock.lock();
      stream->busy = false;
      changed_.notify_all();
    }
  }

  size_t size_;
  std::mt19937_64 random_;
  int log_ = -1;
  int file_ = -1;
  char *address_ = nullptr;
  char *memory_ = nullptr;
  // Addresses for memory that comes and goes, and where this process has that memory.
  char *addresses_ = nullptr;
  char *behind_ = nullptr;
  size_t reserved_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool failed_ = false;
  std::vector<std::unique_ptr<Stream>> streams_;
  Stream *legacy_ = nullptr;
  std::map<size_t, size_t> blocks_;
  std::map<char *, size_t> pinned_;
  std::map<char *, size_t> registered_;
};

Device &device() {
  static auto *the = new Device();
  return *the;
}

// The kernels, by their functions on the host.
std::unordered_map<const void *, const char *> &kernels() {
  static auto *all = new std::unordered_map<const void *, const char *>();
  return *all;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) {
    last_error = error;
  }
  return error;
}

thread_local int captures_of_thread = 0;

// Returns success if the calling thread may execute an operation that is forbidden while it records, unless it has relaxed this rule.
cudaError_t unsafe_call() {
  const bool forbidden = captures_of_thread > 0 && thread_mode != cudaStreamCaptureModeRelaxed;
  return forbidden ? cudaErrorStreamCaptureUnsupported : device().health();
}

// The kernels that are computed, element by element.
Compute compute_of(const std::string &name, void **arguments) {
  const auto has = [&](const char *part) { return name.find(part) != std::string::npos; };
  if (!has("vectorized_elementwise_kernel")) {
    return nullptr;
  }
  const int count = *static_cast<const int *>(arguments[0]);
  char *const *data = static_cast<char *const *>(arguments[2]);
  if (has("FillFunctorIl")) {
    const auto value = *static_cast<const int64_t *>(arguments[1]);
    auto *out = reinterpret_cast<int64_t *>(data[0]);
    return [=] { std::fill_n(device().inside(out), count, value); };
  }
  if (has("BinaryFunctorIfff") && has("MulFunctorIf")) {
    auto *out = reinterpret_cast<float *>(data[0]);
    const auto *left = reinterpret_cast<const float *>(data[1]);
    const auto *right = reinterpret_cast<const float *>(data[2]);
    return [=] {
      const float *from = device().inside(left);
      std::transform(from, from + count, device().inside(right), device().inside(out), [](float a, float b) { return a * b; });
    };
  }
  const auto *constants = static_cast<const float *>(arguments[1]);
  if (has("FillFunctorIf")) {
    auto *out = reinterpret_cast<float *>(data[0]);
    return [=, value = constants[0]] { std::fill_n(device().inside(out), count, value); };
  }
  float factor = 1;
  float summand = 0;
  if (has("MulFunctorIf")) {
    // The arguments follow an empty functor.
    factor = constants[1];
  } else if (has("CUDAFunctorOnSelf_addIf")) {
    summand = constants[0] * constants[1];
  } else {
    return nullptr;
  }
  auto *out = reinterpret_cast<float *>(data[0]);
  const auto *in = reinterpret_cast<const float *>(data[1]);
  return [=] {
    const float *from = device().inside(in);
    std::transform(from, from + count, device().inside(out), [=](float x) { return x * factor + summand; });
  };
}

cudaError_t launch(const void *function, void **arguments, cudaStream_t handle) {
  if (const auto error = device().health()) {
    return answer(error);
  }
  const auto kernel = kernels().find(function);
  const std::string name = kernel == kernels().end() ? "unknown" : kernel->second;
  Stream *stream = device().stream(handle);
  Compute compute = compute_of(name, arguments);
  if (!compute) {
    std::fprintf(stderr, "the stand-in for CUDA does not compute %s\n", name.c_str());
    return answer(cudaErrorInvalidDeviceFunction);
  }
  device().log("compute %d", stream->id);
  device().tell(stream, std::move(compute));
  return cudaSuccess;
}

cudaError_t copy(void *to, const void *from, size_t size, Stream *stream, bool wait) {
  if (const auto error = device().health()) {
    return answer(error);
  }
  const bool in = !device().is_on_device(from);
  const bool out = !device().is_on_device(to);
  const bool pageable = (in && !device().is_pinned(from)) || (out && !device().is_pinned(to));
  if ((in && !device().keeps_to_registration(from, size)) || (out && !device().keeps_to_registration(to, size))) {
    return answer(cudaErrorInvalidValue);
  }
  const bool registered = in && device().is_registered(from);
  const char *kind = in && out ? "host" : in ? "in" : out ? "out" : "within";
  device().log("copy-%s%s %d %zu", kind, pageable ? "-pageable" : "", stream->id, size);
  if (pageable && in) {
    // The host may overwrite the source when the call returns.
    const auto *bytes = static_cast<const char *>(from);
    auto staged = std::make_shared<std::vector<char>>(bytes, bytes + size);
    device().tell(stream, [=] { std::memcpy(device().inside(static_cast<char *>(to)), staged->data(), size); });
  } else {
    device().tell(stream, [=] {
      if (registered && !device().is_registered(from)) {
        std::fprintf(stderr, "memory was unregistered before a copy from it\n");
        std::abort();
      }
      std::memmove(device().inside(static_cast<char *>(to)), device().inside(static_cast<const char *>(from)), size);
    });
  }
  if ((pageable && out) || wait) {
    return device().wait_for(stream) ? cudaSuccess : answer(device().health());
  }
  return cudaSuccess;
}

Event *event_of(cudaEvent_t handle) { return reinterpret_cast<EventHandle *>(handle)->event.get(); }

}  // namespace

extern "C" {

// Registration of kernels, called by the initialisers of the libraries that contain them.

void **__cudaRegisterFatBinary(void *) {
  static void *handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *, int *) {
  kernels()[host] = name;
}

// Launches.

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (configurations.empty()) {
    return answer(cudaErrorMissingConfiguration);
  }
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t *>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void *>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void **arguments, size_t, cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}

cudaError_t cudaLaunchKernel(const void *function, dim3, dim3, void **arguments, size_t, cudaStream_t stream) {
  return launch(function, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  return launch(function, arguments, config->stream);
}

// Devices.

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *index) {
  *index = 0;
  return answer(device().health());
}

cudaError_t cudaSetDevice(int index) { return answer(index == 0 ? device().health() : cudaErrorInvalidDevice); }

static int multiprocessors() {
  return static_cast<int>(kMultiprocessors * number_from_environment("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100) / 100);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Stand-in");
  properties->totalGlobalMem = device().size();
  properties->major = 9;
  properties->multiProcessorCount = multiprocessors();
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerMultiprocessor = 65536;
  properties->l2CacheSize = 50 << 20;
  for (int &limit : properties->maxThreadsDim) {
    limit = 1024;
  }
  for (int &limit : properties->maxGridSize) {
    limit = 65535;
  }
  return answer(device().health());
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) {
    return answer(cudaErrorNotSupported);
  }
  *value = multiprocessors();
  return answer(device().health());
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// Memory that comes and goes behind addresses that stay: functions of the driver, which the runtime finds.

static CUresult of_driver(cudaError_t error) {
  return error == cudaSuccess ? CUDA_SUCCESS : error == cudaErrorMemoryAllocation ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult reserve_addresses(CUdeviceptr *address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *address = reinterpret_cast<CUdeviceptr>(device().reserve_addresses(size));
  return *address != 0 ? of_driver(unsafe_call()) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult free_addresses(CUdeviceptr, size_t) { return of_driver(unsafe_call()); }

static CUresult create_memory(CUmemGenericAllocationHandle *memory, size_t size, const CUmemAllocationProp *, unsigned long long) {
  device().log("create %zu", size);
  if (const auto error = unsafe_call()) {
    return of_driver(error);
  }
  void *const allocated = size % kPage == 0 ? device().allocate(size, kPage) : nullptr;
  *memory = reinterpret_cast<CUmemGenericAllocationHandle>(allocated);
  return allocated != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release_memory(CUmemGenericAllocationHandle memory) {
  device().log("release");
  return device().free(reinterpret_cast<void *>(memory)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult map_memory(CUdeviceptr at, size_t size, size_t, CUmemGenericAllocationHandle memory, unsigned long long) {
  device().log("map %zu", size);
  if (const auto error = unsafe_call()) {
    return of_driver(error);
  }
  return device().put_behind(reinterpret_cast<char *>(at), size, reinterpret_cast<char *>(memory)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult unmap_memory(CUdeviceptr at, size_t size) {
  device().log("unmap %zu", size);
  return device().put_behind(reinterpret_cast<char *>(at), size, nullptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) { return of_driver(unsafe_call()); }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *status) {
  static const std::map<std::string, void *> functions = {
      {"cuMemAddressReserve", reinterpret_cast<void *>(reserve_addresses)},
      {"cuMemAddressFree", reinterpret_cast<void *>(free_addresses)},
      {"cuMemCreate", reinterpret_cast<void *>(create_memory)},
      {"cuMemRelease", reinterpret_cast<void *>(release_memory)},
      {"cuMemMap", reinterpret_cast<void *>(map_memory)},
      {"cuMemUnmap", reinterpret_cast<void *>(unmap_memory)},
      {"cuMemSetAccess", reinterpret_cast<void *>(set_access)},
  };
  const auto found = functions.find(name);
  const bool is_known = found != functions.end();
  *function = is_known ? found->second : nullptr;
  if (status != nullptr) {
    *status = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return is_known ? cudaSuccess : answer(cudaErrorSymbolNotFound);
}

cudaError_t cudaDeviceSynchronize() {
  device().log("device-synchronize");
  if (const auto error = unsafe_call()) {
    return answer(error);
  }
  return answer(device().wait_for_all() ? cudaSuccess : device().health());
}

// Errors.

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char *cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaError"; }

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "an error that the stand-in for CUDA has no words for";
  }
}

// Memory.

cudaError_t cudaMalloc(void **memory, size_t size) {
  device().log("allocate %zu", size);
  if (const auto error = unsafe_call()) {
    return answer(error);
  }
  *memory = device().allocate(size);
  return answer(*memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *memory) {
  device().log("free");
  if (const auto error = unsafe_call()) {
    return answer(error);
  }
  if (memory == nullptr) {
    return cudaSuccess;
  }
  if (!device().wait_for_all()) {
    return answer(device().health());
  }
  return answer(device().free(memory) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *free = device().free_memory();
  *total = device().size();
  return answer(device().health());
}

cudaError_t cudaHostAlloc(void **memory, size_t size, unsigned) {
  device().log("pin %zu", size);
  if (const auto error = unsafe_call()) {
    return answer(error);
  }
  *memory = device().pin(size);
  return answer(*memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *memory) {
  device().log("unpin");
  if (!device().wait_for_all()) {
    return answer(device().health());
  }
  return answer(device().unpin(memory) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *memory, size_t size, unsigned flags) {
  device().log("register %zu", size);
  if (const auto error = unsafe_call()) {
    return answer(error);
  }
  // All memory that the worker registers is mapped for reading only.
  return answer(flags == cudaHostRegisterReadOnly ? device().register_host(memory, size) : cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void *memory) {
  if (const auto error = unsafe_call()) {
    return answer(error);
  }
  const size_t size = device().unregister_host(memory);
  device().log("unregister %zu", size);
  return answer(size > 0 ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory) {
  *attributes = {};
  attributes->type = device().is_on_device(memory) ? cudaMemoryTypeDevice
                     : device().is_pinned(memory)  ? cudaMemoryTypeHost
                                                   : cudaMemoryTypeUnregistered;
  attributes->device = attributes->type == cudaMemoryTypeUnregistered ? -2 : 0;
  return answer(device().health());
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind) {
  device().log("synchronous-copy");
  if (const auto error = unsafe_call()) {
    return answer(error);
  }
  return copy(to, from, size, device().stream(nullptr), true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, size, device().stream(stream), false);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream) {
  device().tell(device().stream(stream), [=] { std::memset(device().inside(static_cast<char *>(memory)), value, size); });
  return answer(device().health());
}

// Streams.

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
  *stream = reinterpret_cast<cudaStream_t>(device().new_stream());
  return answer(device().health());
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Stream *stream = device().stream(handle);
  device().log("synchronize %d", stream->id);
  if (stream->capture) {
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  return answer(device().wait_for(stream) ? cudaSuccess : device().health());
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Stream *stream = device().stream(handle);
  if (const auto error = device().health()) {
    return answer(error);
  }
  const std::lock_guard lock(device().mutex());
  return answer(stream->queue.empty() && !stream->busy ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned) {
  const auto event = reinterpret_cast<EventHandle *>(awaited)->event;
  Stream *stream = device().stream(handle);
  if (stream->capture.has_value() != event->captured) {
    return answer(cudaErrorStreamCaptureIsolation);
  }
  device().tell(stream, Operation{[] {}, event, event->recorded});
  return answer(device().health());
}

// Events.

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  auto made = std::make_shared<Event>();
  made->timed = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(new EventHandle{made});
  return answer(device().health());
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<EventHandle *>(event);
  return answer(device().health());
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned) {
  const auto event = reinterpret_cast<EventHandle *>(handle)->event;
  Stream *stream = device().stream(stream_handle);
  uint64_t count = 0;
  {
    const std::lock_guard lock(device().mutex());
    count = ++event->recorded;
    event->captured = stream->capture.has_value();
  }
  device().tell(stream, [=] {
    const std::lock_guard lock(device().mutex());
    event->passed = std::max(event->passed, count);
    event->at = Clock::now();
  });
  return answer(device().health());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  if (const auto error = unsafe_call()) {
    return answer(error);
  }
  const std::lock_guard lock(device().mutex());
  const Event *event = event_of(handle);
  if (event->captured) {
    return answer(cudaErrorCapturedEvent);
  }
  return answer(event->passed == event->recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  device().log("synchronize-event");
  const auto event = reinterpret_cast<EventHandle *>(handle)->event;
  return answer(device().wait([&] { return event->passed == event->recorded; }) ? cudaSuccess : device().health());
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(device().mutex());
  const Event *first = event_of(begin);
  const Event *last = event_of(end);
  if (!first->timed || !last->timed || first->recorded == 0 || last->recorded == 0) {
    return answer(cudaErrorInvalidResourceHandle);
  }
  if (first->passed != first->recorded || last->passed != last->recorded) {
    return answer(cudaErrorNotReady);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(last->at - first->at).count();
  return cudaSuccess;
}

// Graphs.

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Stream *stream = device().stream(handle);
  if (stream == device().stream(nullptr) || stream->capture) {
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  device().log("capture %d", stream->id);
  stream->capture.emplace();
  stream->mode = mode;
  ++captures_of_thread;
  return answer(device().health());
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  Stream *stream = device().stream(handle);
  if (!stream->capture) {
    return answer(cudaErrorIllegalState);
  }
  *graph = reinterpret_cast<cudaGraph_t>(new Graph{std::move(*stream->capture)});
  stream->capture.reset();
  --captures_of_thread;
  return answer(device().health());
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status) {
  *status = device().stream(handle)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return answer(device().health());
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  if (id != nullptr) {
    *id = static_cast<unsigned long long>(device().stream(handle)->id);
  }
  if (graph != nullptr || dependencies != nullptr || edges != nullptr || count != nullptr) {
    return answer(cudaErrorNotSupported);
  }
  return cudaStreamIsCapturing(handle, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *count) {
  *count = reinterpret_cast<Graph *>(graph)->operations.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph *>(graph)));
  return answer(device().health());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  Stream *stream = device().stream(handle);
  device().log("replay %d", stream->id);
  for (const Operation &operation : reinterpret_cast<Graph *>(executable)->operations) {
    device().tell(stream, operation);
  }
  return answer(device().health());
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph *>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<Graph *>(executable);
  return cudaSuccess;
}

// Functions of the driver.

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  if (attribute != CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *value = multiprocessors();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

// Further functions that libtorch and its libraries reference, without which they do not load.

#define REFUSED(name)                                                                 \
  cudaError_t refused_##name() __asm__(#name);                                        \
  cudaError_t refused_##name() {                                                      \
    std::fprintf(stderr, "the stand-in for CUDA has no %s\n", #name);                 \
    return answer(cudaErrorNotSupported);                                             \
  }

REFUSED(cudaDeviceCanAccessPeer)
REFUSED(cudaDeviceEnablePeerAccess)
REFUSED(cudaDeviceGetDefaultMemPool)
REFUSED(cudaDeviceGetPCIBusId)
REFUSED(cudaFreeAsync)
REFUSED(cudaFuncGetAttributes)
REFUSED(cudaFuncSetAttribute)
REFUSED(cudaGetSymbolAddress)
REFUSED(cudaGraphDebugDotPrint)
REFUSED(cudaGraphNodeGetDependencies)
REFUSED(cudaIpcCloseMemHandle)
REFUSED(cudaIpcGetEventHandle)
REFUSED(cudaIpcGetMemHandle)
REFUSED(cudaIpcOpenEventHandle)
REFUSED(cudaIpcOpenMemHandle)
REFUSED(cudaLaunchCooperativeKernel)
REFUSED(cudaLaunchHostFunc)
REFUSED(cudaMallocAsync)
REFUSED(cudaMemPoolGetAttribute)
REFUSED(cudaMemPoolSetAccess)
REFUSED(cudaMemPoolSetAttribute)
REFUSED(cudaMemPoolTrimTo)
REFUSED(cudaMemcpy2DAsync)
REFUSED(cudaMemcpyPeerAsync)
REFUSED(cudaMemcpyToSymbol)
REFUSED(cudaMemset)
REFUSED(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
REFUSED(cudaProfilerStart)
REFUSED(cudaProfilerStop)
REFUSED(cudaStreamAddCallback)
REFUSED(cudaStreamCreate)
REFUSED(cudaStreamDestroy)
REFUSED(cudaStreamGetPriority)
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxSetCurrent)
REFUSED(cuDeviceGet)
REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuFuncGetAttribute)
REFUSED(cuFuncSetAttribute)
REFUSED(cuFuncSetCacheConfig)
REFUSED(cuGetErrorString)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLinkAddData_v2)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate_v2)
REFUSED(cuModuleGetFunction)
REFUSED(cuModuleLoad)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleLoadDataEx)
REFUSED(cuModuleUnload)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuPointerGetAttribute)
REFUSED(cuTensorMapEncodeTiled)

#undef REFUSED

}  // extern "C"

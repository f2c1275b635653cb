// Regions: what a program allocates on the CPU while it is loaded lies together in one range of addresses. The range can be written to a file
// once, and its memory be given back and brought back from there at the same addresses, so that the program stays as it is. A program that writes to its
// weights has pages of its own from then on, of which the kernel tells: its memory is not given back any more.

#include "region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <c10/core/CPUAllocator.h>

namespace {

constexpr size_t page = 4096;
constexpr size_t alignment = 64;
// The addresses of a region, and the number of regions. Addresses cost nothing: 16 of the 128 TiB of a process.
constexpr size_t slot_size = size_t{4} << 30;
constexpr size_t slot_count = 4096;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// The kernel's table of this process' pages. It is opened before the process hides its memory.
int &pagemap() {
  static int file = -1;
  return file;
}

[[noreturn]] void throw_errno(const char *what) { throw std::runtime_error(std::string(what) + ": " + std::strerror(errno)); }

// All regions lie in one reservation, so that a comparison tells whose memory a pointer is.
char *all_slots() {
  static char *const slots = [] {
    void *reserved = mmap(nullptr, slot_size * slot_count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) {
      throw_errno("no addresses can be reserved for the weights of programs");
    }
    return static_cast<char *>(reserved);
  }();
  return slots;
}

// The memory of a program. Only the thread that loads it allocates here; any thread may free.
class HostRegion final : public packhorse_region {
 public:
  HostRegion() : slot_(take_slot()), base_(all_slots() + slot_ * slot_size) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(base_, slot_size, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) {
      give_slot_back(slot_);
      throw_errno("no memory can be mapped for the weights of a program");
    }
    owners()[slot_].store(this);
  }

  ~HostRegion() override {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(base_, slot_size, PROT_NONE, flags, -1, 0) != MAP_FAILED) {
      owners()[slot_].store(nullptr);
      give_slot_back(slot_);
    }
    if (image_ >= 0) {
      close(image_);
    }
  }

  // Returns memory for this many bytes; null if the region is full. First fit: loading makes few allocations, of which most are large.
  void *allocate(size_t size) {
    size = round_up(size == 0 ? 1 : size, alignment);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto free = free_.begin(); free != free_.end(); ++free) {
      if (free->second >= size) {
        const auto [at, length] = *free;
        free_.erase(free);
        if (length > size) {
          free_[at + size] = length - size;
        }
        live_[at] = size;
        return base_ + at;
      }
    }
    if (end_ + size > slot_size) {
      return nullptr;
    }
    const size_t at = end_;
    end_ += size;
    live_[at] = size;
    return base_ + at;
  }

  void deallocate(void *memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto live = live_.find(static_cast<size_t>(static_cast<char *>(memory) - base_));
    if (live == live_.end()) {
      std::abort();
    }
    size_t from = live->first;
    size_t size = live->second;
    live_.erase(live);
    auto next = free_.upper_bound(from);
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == from) {
        from = before->first;
        size += before->second;
        free_.erase(before);
      }
    }
    if (next != free_.end() && from + size == next->first) {
      size += next->second;
      free_.erase(next);
    }
    if (from + size == end_) {
      end_ = from;
    } else {
      free_[from] = size;
    }
  }

  // Gives the memory of what was freed back, writes the rest to a file without a name in this folder, and maps the file in its place. Returns the
  // bytes that park() gives back.
  size_t seal(const char *folder) override {
    if (pagemap() < 0) {
      throw std::runtime_error("the kernel does not tell which pages of the weights are written");
    }
    try {
      return seal_to(folder);
    } catch (...) {
      if (image_ >= 0 && sealed_ == 0) {
        close(image_);
        image_ = -1;
      }
      throw;
    }
  }

  // Gives the memory back, unless the program has written to it. Whoever reads it meanwhile gets the same bytes, page by page and slowly.
  bool park() override {
    if (is_written()) {
      return false;
    }
    madvise(base_, sealed_, MADV_DONTNEED);
    return true;
  }

  // Returns true if a page is not that of the file any more, or that is not certain.
  bool is_written() const override {
    constexpr uint64_t present = uint64_t{1} << 63;
    constexpr uint64_t swapped = uint64_t{1} << 62;
    constexpr uint64_t of_a_file = uint64_t{1} << 61;
    std::vector<uint64_t> entries;
    for (const auto &[from, size] : kept_) {
      entries.resize(size / page);
      const auto bytes = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
      const auto at = reinterpret_cast<uintptr_t>(base_ + from) / page * sizeof(uint64_t);
      if (pread(pagemap(), entries.data(), static_cast<size_t>(bytes), static_cast<off_t>(at)) != bytes) {
        return true;
      }
      for (const uint64_t entry : entries) {
        if ((entry & swapped) != 0 || ((entry & present) != 0 && (entry & of_a_file) == 0)) {
          return true;
        }
      }
    }
    return false;
  }

  // Brings the memory back from the file, which the kernel keeps in memory while it can.
  void restore() override {
    for (const auto &[from, size] : kept_) {
      if (madvise(base_ + from, size, MADV_POPULATE_READ) != 0) {
        throw_errno("the weights cannot be read back");
      }
    }
  }

  uint64_t digest() const override {
    uint64_t hash = no_bytes;
    for (const auto &[from, size] : kept_) {
      hash = digest_of(hash, base_ + from, size);
    }
    return hash;
  }

  bool is_empty() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return live_.empty();
  }

  void enter() override { current() = this; }

  void leave() override { current() = nullptr; }

  static bool owns(const void *memory) {
    const auto *at = static_cast<const char *>(memory);
    return at >= all_slots() && at < all_slots() + slot_size * slot_count;
  }

  static HostRegion *of(const void *memory) {
    return owners()[static_cast<size_t>(static_cast<const char *>(memory) - all_slots()) / slot_size].load();
  }

  // The region into which this thread loads a program.
  static HostRegion *&current() {
    thread_local HostRegion *region = nullptr;
    return region;
  }

 private:
  using Owners = std::array<std::atomic<HostRegion *>, slot_count>;

  static Owners &owners() {
    static Owners owners{};
    return owners;
  }

  static std::mutex &slots_mutex() {
    static std::mutex mutex;
    return mutex;
  }

  static std::set<size_t> &free_slots() {
    static std::set<size_t> free;
    return free;
  }

  static size_t take_slot() {
    static size_t next = 0;
    const std::lock_guard<std::mutex> lock(slots_mutex());
    if (auto &free = free_slots(); !free.empty()) {
      return free.extract(free.begin()).value();
    }
    if (next == slot_count) {
      throw std::runtime_error("this process has as many programs as it can");
    }
    return next++;
  }

  static void give_slot_back(size_t slot) {
    const std::lock_guard<std::mutex> lock(slots_mutex());
    free_slots().insert(slot);
  }

  // Returns the pages with live bytes as pairs of offset and length, neighbours joined.
  std::vector<std::pair<size_t, size_t>> live_pages() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::pair<size_t, size_t>> pages;
    for (const auto &[at, size] : live_) {
      const size_t from = at / page * page;
      const size_t to = round_up(at + size, page);
      if (!pages.empty() && from <= pages.back().first + pages.back().second) {
        pages.back().second = std::max(pages.back().second, to - pages.back().first);
      } else {
        pages.emplace_back(from, to - from);
      }
    }
    return pages;
  }

  size_t seal_to(const char *folder) {
    kept_ = live_pages();
    size_t at = 0;
    for (const auto &[from, size] : kept_) {
      madvise(base_ + at, from - at, MADV_DONTNEED);
      at = from + size;
    }
    madvise(base_ + at, slot_size - at, MADV_DONTNEED);
    if (kept_.empty()) {
      return 0;
    }
    image_ = open_nameless(folder);
    if (image_ < 0 || ftruncate(image_, static_cast<off_t>(at)) != 0) {
      throw_errno("no file can be written for the weights");
    }
    size_t bytes = 0;
    for (const auto &[from, size] : kept_) {
      // Room that is taken now cannot be missing when the pages are read.
      const int failed = posix_fallocate(image_, static_cast<off_t>(from), static_cast<off_t>(size));
      if (failed != 0) {
        errno = failed;
        throw_errno("there is no room for a file with the weights");
      }
      write_all(from, size);
      bytes += size;
    }
    if (mmap(base_, at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, image_, 0) == MAP_FAILED) {
      throw_errno("the file with the weights cannot be mapped");
    }
    sealed_ = at;
    restore();
    return bytes;
  }

  static int open_nameless(const char *folder) {
    const int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || errno != EOPNOTSUPP) {
      return file;
    }
    std::string name = std::string(folder) + "/weights-XXXXXX";
    const int named = mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) {
      unlink(name.c_str());
    }
    return named;
  }

  void write_all(size_t from, size_t size) {
    for (size_t done = 0; done < size;) {
      const auto written = pwrite(image_, base_ + from + done, size - done, static_cast<off_t>(from + done));
      if (written <= 0) {
        throw_errno("the weights cannot be written to a file");
      }
      done += static_cast<size_t>(written);
    }
  }

  const size_t slot_;
  char *const base_;
  mutable std::mutex mutex_;
  // Offsets and sizes.
  std::map<size_t, size_t> live_;
  std::map<size_t, size_t> free_;
  size_t end_ = 0;
  // The pages that a parked program needs back.
  std::vector<std::pair<size_t, size_t>> kept_;
  size_t sealed_ = 0;
  int image_ = -1;
};

// The allocator of CPU tensors: libtorch's own, except on a thread that loads into a region. oneDNN allocates with whichever allocator is
// registered at the time and frees with the one that is registered then, so both must tell by the address.
class RegionAllocator final : public c10::Allocator {
 public:
  static void install() {
    static RegionAllocator allocator;
    static std::once_flag installed;
    std::call_once(installed, [] { c10::SetCPUAllocator(&allocator, 1); });
  }

  c10::DataPtr allocate(size_t size) override {
    HostRegion *region = HostRegion::current();
    void *memory = region != nullptr && size > 0 ? region->allocate(size) : nullptr;
    if (memory == nullptr) {
      // What a full region does not hold stays in memory.
      memory = libtorchs()->allocate(size).release_context();
    }
    return {memory, memory, &deallocate, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }

  void copy_data(void *to, const void *from, size_t size) const override { default_copy_data(to, from, size); }

 private:
  static c10::Allocator *libtorchs() {
    static c10::Allocator *const allocator = c10::GetDefaultCPUAllocator();
    return allocator;
  }

  static void deallocate(void *memory) {
    if (memory == nullptr) {
      return;
    }
    if (!HostRegion::owns(memory)) {
      libtorchs()->raw_deleter()(memory);
    } else if (HostRegion *region = HostRegion::of(memory)) {
      region->deallocate(memory);
    }
  }
};

}  // namespace

namespace {

std::mutex capturing;
std::mutex ending;
std::vector<packhorse_region *> ended;

// Destroys the regions that have ended, unless a capture is under way, whose end does.
void destroy_ended() {
  const std::unique_lock<std::mutex> lock(capturing, std::try_to_lock);
  if (!lock.owns_lock()) {
    return;
  }
  std::vector<packhorse_region *> regions;
  {
    const std::lock_guard<std::mutex> guard(ending);
    regions.swap(ended);
  }
  for (packhorse_region *region : regions) {
    char *message = nullptr;
    const int code = guarded(&message, [&] {
      // What is still alive may be read, and is freed here, by whoever has it.
      if (region->is_empty()) {
        delete region;
      }
      return PACKHORSE_OK;
    });
    if (code != PACKHORSE_OK) {
      // A device that has failed gives nothing back.
      packhorse_message_free(message);
    }
  }
}

}  // namespace

Capture::Capture() { capturing.lock(); }

Capture::~Capture() {
  capturing.unlock();
  destroy_ended();
}

void end_region(packhorse_region *region) {
  {
    const std::lock_guard<std::mutex> guard(ending);
    ended.push_back(region);
  }
  destroy_ended();
}

extern "C" {

void packhorse_region_prepare(void) { pagemap() = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC); }

int packhorse_region_new(int cuda_device, packhorse_region **region, char **message) {
  return guarded(message, [&] {
    if (cuda_device >= 0) {
      *region = new_device_region(cuda_device).release();
    } else {
      *region = new HostRegion;
      RegionAllocator::install();
    }
    return PACKHORSE_OK;
  });
}

int packhorse_region_enter(packhorse_region *region, char **message) {
  return guarded(message, [&] {
    region->enter();
    return PACKHORSE_OK;
  });
}

int packhorse_region_leave(packhorse_region *region, char **message) {
  return guarded(message, [&] {
    region->leave();
    return PACKHORSE_OK;
  });
}

int packhorse_region_seal(packhorse_region *region, const char *folder, uint64_t *bytes, char **message) {
  return guarded(message, [&] {
    *bytes = region->seal(folder);
    return PACKHORSE_OK;
  });
}

int packhorse_region_park(packhorse_region *region, int *parked, char **message) {
  return guarded(message, [&] {
    *parked = region->park() ? 1 : 0;
    return PACKHORSE_OK;
  });
}

int packhorse_region_is_written(const packhorse_region *region, int *written, char **message) {
  return guarded(message, [&] {
    *written = region->is_written() ? 1 : 0;
    return PACKHORSE_OK;
  });
}

int packhorse_region_restore(packhorse_region *region, char **message) {
  return guarded(message, [&] {
    region->restore();
    return PACKHORSE_OK;
  });
}

int packhorse_region_digest(const packhorse_region *region, uint64_t *digest, char **message) {
  return guarded(message, [&] {
    *digest = region->digest();
    return PACKHORSE_OK;
  });
}

void packhorse_region_free(packhorse_region *region) { end_region(region); }

void packhorse_release_free_memory(void) { release_free_memory(); }

}  // extern "C"

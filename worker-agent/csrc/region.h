// The memory of what a program allocates while it is loaded: on the CPU (region.cpp), or on a CUDA device (device_region.cpp).

#pragma once

#include "call.h"

#include <memory>
#include <mutex>
#include <vector>

struct packhorse_region {
  packhorse_region() = default;
  packhorse_region(const packhorse_region &) = delete;
  packhorse_region &operator=(const packhorse_region &) = delete;
  virtual ~packhorse_region() = default;

  // Has what this thread allocates from now on lie in the region, until leave().
  virtual void enter() = 0;
  virtual void leave() = 0;

  // Keeps the bytes elsewhere, in a file without a name in this folder or in the host's memory. Returns the bytes that park() gives back.
  virtual size_t seal(const char *folder) = 0;

  // Gives the memory back, unless it is known that the program has written to it. Nothing runs that may use it.
  virtual bool park() = 0;

  // Brings the memory back.
  virtual void restore() = 0;

  // Returns true if the bytes are not those that were sealed any more, or that is not certain.
  virtual bool is_written() const = 0;

  // Returns a number that the bytes determine.
  virtual uint64_t digest() const = 0;

  // Returns true if nothing in it is alive, so that it can be destroyed.
  virtual bool is_empty() = 0;

 protected:
  // Continues a digest with bytes, whose number is a multiple of eight.
  static uint64_t digest_of(uint64_t hash, const char *bytes, size_t size) {
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, bytes + at, sizeof(word));
      hash = (hash ^ word) * 1099511628211ULL;
    }
    return hash;
  }

  static constexpr uint64_t no_bytes = 1469598103934665603ULL;
};

// Begins what libtorch counts as the capture of a device's allocations: loading into a region, or recording a graph. While one is under way no pool of
// memory may end, or the process ends. So one is at a time, and what was to end meanwhile ends after it.
struct Capture {
  Capture();
  Capture(const Capture &) = delete;
  Capture &operator=(const Capture &) = delete;
  ~Capture();
};

// Destroys a region, or has it be destroyed once no capture is under way.
void end_region(packhorse_region *region);

// Creates a region of a CUDA device.
std::unique_ptr<packhorse_region> new_device_region(int cuda_device);

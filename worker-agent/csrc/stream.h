// The types of streams and events.

#pragma once

#include "call.h"

#include <optional>

#include <c10/core/StreamGuard.h>

struct packhorse_stream {
  c10::Device device;
  // Empty on the CPU, whose work is done when the call returns.
  std::optional<c10::Stream> cuda;
};

struct packhorse_event {
  c10::Event cuda;
};

namespace {

// Makes a stream the current one of this thread until the end of the scope.
class CurrentStream {
 public:
  explicit CurrentStream(const packhorse_stream &stream) {
    if (stream.cuda) {
      guard_.emplace(*stream.cuda);
    }
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace

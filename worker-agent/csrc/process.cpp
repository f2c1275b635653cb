// The end of the process, in order and after an exception that cannot be caught.

#include "call.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace {

struct {
  void (*report)(int kind, const char *message) = nullptr;
  int code = 1;
  std::atomic<bool> reported{false};
} termination;

// Several threads may call this; the first one reports, and the others wait for the end of the process. The report itself may call it
// again.
[[noreturn]] void terminate() {
  thread_local bool reporting = false;
  if (!reporting && termination.reported.exchange(true)) {
    std::this_thread::sleep_for(std::chrono::seconds(10));
  } else if (!reporting) {
    reporting = true;
    char *message = nullptr;
    const int kind = guarded(&message, []() -> int {
      if (const auto exception = std::current_exception()) {
        std::rethrow_exception(exception);
      }
      throw std::runtime_error("the process was terminated without an exception");
    });
    termination.report(kind, message);
  }
  std::_Exit(termination.code);
}

}  // namespace

extern "C" {

void packhorse_exit_now(int code) { std::_Exit(code); }

void packhorse_on_terminate(void (*report)(int kind, const char *message), int code) {
  termination.report = report;
  termination.code = code;
  std::set_terminate(terminate);
}

}  // extern "C"

// Streams, events and the copies in them, through libtorch's device-independent interface, which needs no header of CUDA.

#include "stream.h"

#include <algorithm>
#include <chrono>
#include <memory>

extern "C" {

int packhorse_stream_new(int cuda_device, packhorse_stream **stream, char **message) {
  return guarded(message, [&] {
    const c10::Device device = device_of(cuda_device);
    std::optional<c10::Stream> cuda;
    if (!device.is_cpu()) {
      cuda = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
    }
    *stream = new packhorse_stream{device, cuda};
    return PACKHORSE_OK;
  });
}

void packhorse_stream_free(packhorse_stream *stream) { delete stream; }

int packhorse_stream_record_event(const packhorse_stream *stream, packhorse_event **event, char **message) {
  return guarded(message, [&] {
    // The default flag keeps the time.
    std::unique_ptr<packhorse_event> made(new packhorse_event{c10::Event(stream->device.type(), c10::EventFlag::BACKEND_DEFAULT)});
    made->cuda.record(stream->cuda.value());
    *event = made.release();
    return PACKHORSE_OK;
  });
}

int packhorse_stream_wait_event(const packhorse_stream *stream, const packhorse_event *event, char **message) {
  return guarded(message, [&] {
    event->cuda.block(stream->cuda.value());
    return PACKHORSE_OK;
  });
}

int packhorse_event_query(const packhorse_event *event, int *complete, char **message) {
  return guarded(message, [&] {
    *complete = event->cuda.query() ? 1 : 0;
    return PACKHORSE_OK;
  });
}

int packhorse_event_elapsed(const packhorse_event *start, const packhorse_event *end, uint64_t *nanoseconds, char **message) {
  return guarded(message, [&] {
    const std::chrono::duration<double, std::milli> elapsed(start->cuda.elapsedTime(end->cuda));
    *nanoseconds = static_cast<uint64_t>(std::max(0.0, std::chrono::duration<double, std::nano>(elapsed).count()));
    return PACKHORSE_OK;
  });
}

void packhorse_event_free(packhorse_event *event) { delete event; }

int packhorse_stream_to_device(const packhorse_stream *stream, const packhorse_tensor *source, packhorse_tensor **tensor,
                               char **message) {
  return guarded(message, [&] {
    const CurrentStream current(*stream);
    *tensor = wrap(unwrap(source)->to(stream->device, /*non_blocking=*/true));
    return PACKHORSE_OK;
  });
}

int packhorse_stream_contiguous(const packhorse_stream *stream, const packhorse_tensor *source, packhorse_tensor **tensor,
                                char **message) {
  return guarded(message, [&] {
    const CurrentStream current(*stream);
    *tensor = wrap(unwrap(source)->contiguous().resolve_neg());
    return PACKHORSE_OK;
  });
}

int packhorse_stream_copy(const packhorse_stream *stream, packhorse_tensor *destination, const packhorse_tensor *source,
                          char **message) {
  return guarded(message, [&] {
    const CurrentStream current(*stream);
    unwrap(destination)->copy_(*unwrap(source), /*non_blocking=*/true);
    return PACKHORSE_OK;
  });
}

}  // extern "C"

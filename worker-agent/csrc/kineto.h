// Recording what runs on a device through libtorch's profiler (Kineto). As in shim.h, no exception leaves a function.

#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Sets the profiler up, for kernels where `cuda` is not 0, for operators else: part of that waits for the first work that is done.
int packhorse_recording_prepare(int cuda, char **message);

// Begins to record what this thread runs, as it was prepared. One recording at a time, ended by packhorse_recording_end on the same
// thread.
int packhorse_recording_begin(int cuda, char **message);

// Ends it. Writes what was recorded to a file, in Chrome's trace format, unless `path` is null.
int packhorse_recording_end(const char *path, char **message);

// Where a profiler around this process that waits for it is to begin and to end, ncu say. Does nothing where there is no CUDA.
void packhorse_profiler_range(int begin);

#ifdef __cplusplus
}
#endif

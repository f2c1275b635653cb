// The only translation unit of the shim. libtorch's headers take nearly all of the compile time and are read once this way.

#include "detection.cpp"
#include "memory.cpp"
#include "process.cpp"
#include "registered_memory.cpp"
#include "rewriting.cpp"
#include "stream.cpp"
// The following use streams.
#include "program.cpp"
#include "device_region.cpp"
#include "region.cpp"
// Uses programs.
#include "backbone.cpp"
#include "graph.cpp"
#include "operators.cpp"
#include "profiler.cpp"

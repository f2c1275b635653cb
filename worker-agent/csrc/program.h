// The type of a loaded program.

#pragma once

#include "stream.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/script.h>

using Package = torch::inductor::AOTIModelContainerRunner;

struct packhorse_module {
  // The method `forward` of a TorchScript program, with the program.
  std::optional<torch::jit::Method> forward;
  // If not null, the program was compiled ahead of time.
  std::unique_ptr<Package> package;
  // True if a run may leave something behind that the next one reads.
  bool has_state = false;
  // True if no run writes to an input, or keeps one.
  bool only_reads_inputs = false;
  // True if tensors are arguments of the right type, as many of them as the program declares, so that no call need check them.
  bool takes_tensors = false;
  // True if the program runs parts of itself as tasks of their own.
  bool forks = false;
  // The operators that were rewritten to oneDNN's, or would have been.
  std::vector<std::string> rewritten;
};

namespace {

// Runs a program. Throws if its result is neither a tensor nor a tuple or list of tensors.
std::vector<at::Tensor> run_program(packhorse_module &module, std::vector<at::Tensor> inputs);

}  // namespace

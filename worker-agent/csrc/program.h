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

// The names of a program's outputs, which are the keys where it answers a dict.
struct Outputs {
  // The declared ones; none of a program that is tried.
  std::vector<std::string> declared;
  // Those of the last dict that was answered while none was declared.
  std::vector<std::string> answered;
};

struct packhorse_module {
  // The method `forward` of a TorchScript program, with the program.
  std::optional<torch::jit::Method> forward;
  // If not null, the program was compiled ahead of time.
  std::unique_ptr<Package> package;
  // True if a run may leave something behind that the next one reads.
  bool has_state = false;
  // True if no run writes to an input, or keeps one.
  bool only_reads_inputs = false;
  // True if no run writes to the program's constants.
  bool only_reads_weights = false;
  // True if tensors are arguments of the right type, as many of them as the program declares, so that no call need check them.
  bool takes_tensors = false;
  // True if the program runs parts of itself as tasks of their own.
  bool forks = false;
  // The operators that were rewritten to oneDNN's, or would have been.
  std::vector<std::string> rewritten;
  Outputs outputs;
};

namespace {

// Runs a program. Throws if its result is not made of tensors.
std::vector<at::Tensor> run_program(packhorse_module &module, std::vector<at::Tensor> inputs);

}  // namespace

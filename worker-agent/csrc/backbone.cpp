// Programs with a shared backbone: several TorchScript programs that begin with the same operators on the same weights. The weights are held
// once, and a batch with rows for several programs runs the shared operators once, on all of them.
//
// An operator is shared if all programs have one of its kind whose operands are the same constants, or the same results of shared operators.
// What follows in a program is its head. Sources: prefix batching, Nexus (Shen et al., SOSP 2019, section 5.3); the graph merger of Usher
// (Shubha et al., OSDI 2024, section 3.4), which also merges weights that are merely alike and so changes answers, which this does not.

#include "program.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/passes/frozen_graph_optimizations.h>
#include <torch/csrc/jit/passes/remove_mutation.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

namespace {

using Digest = uint64_t;

Digest mix(Digest digest, uint64_t word) {
  // The finalizer of SplitMix64, of which each step is invertible.
  uint64_t z = digest * 0x9e3779b97f4a7c15 + word + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

Digest digest_of(const void *bytes, size_t size) {
  Digest digest = mix(0, size);
  const auto *next = static_cast<const unsigned char *>(bytes);
  for (; size >= sizeof(uint64_t); size -= sizeof(uint64_t), next += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, next, sizeof(word));
    digest = mix(digest, word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, next, size);
  return mix(digest, rest);
}

Digest digest_of(const std::string &text) { return digest_of(text.data(), text.size()); }

Digest digest_of(const at::Tensor &tensor) {
  const at::Tensor plain = tensor.cpu().contiguous();
  Digest digest = mix(digest_of(plain.data_ptr(), plain.nbytes()), static_cast<uint64_t>(plain.scalar_type()));
  for (const int64_t size : tensor.sizes()) {
    digest = mix(digest, static_cast<uint64_t>(size));
  }
  return digest;
}

// A loaded and frozen program.
struct FrozenProgram {
  std::shared_ptr<torch::jit::Graph> graph;
  // The digests of the values that another program may have, too: an equal digest means equal content for equal inputs.
  std::unordered_map<const torch::jit::Value *, Digest> digests;
};

bool is_tensor_constant(const torch::jit::Node *node) {
  return node->kind() == c10::prim::Constant && node->hasAttribute(c10::attr::value) &&
         node->kindOf(c10::attr::value) == torch::jit::AttributeKind::t;
}

// Returns the digest of a constant; nothing if it has a type for which there is none.
std::optional<Digest> digest_of_constant(const torch::jit::Value *value) {
  const auto constant = torch::jit::toIValue(value);
  if (!constant) {
    return std::nullopt;
  }
  if (constant->isTensor() && constant->toTensor().defined()) {
    const at::Tensor &tensor = constant->toTensor();
    if (tensor.layout() != c10::kStrided || tensor.is_quantized()) {
      return std::nullopt;
    }
    return digest_of(tensor);
  }
  if (constant->isDouble()) {
    const double number = constant->toDouble();
    return mix(digest_of(&number, sizeof(number)), 'd');
  }
  if (constant->isDoubleList()) {
    const auto numbers = constant->toDoubleVector();
    return mix(digest_of(numbers.data(), numbers.size() * sizeof(double)), 'D');
  }
  if (constant->isNone() || constant->isInt() || constant->isBool() || constant->isString() || constant->isDevice() ||
      constant->isIntList() || constant->isBoolList()) {
    std::ostringstream text;
    text << constant->tagKind() << ' ' << *constant;
    return digest_of(text.str());
  }
  return std::nullopt;
}

// Returns true for operators whose results another program may use: those without effects, chance, and inner blocks.
bool may_be_shared(const torch::jit::Node *node, const torch::jit::AliasDb &aliases) {
  return node->blocks().empty() && !node->hasAttributes() && !node->hasSideEffects() && !node->isNondeterministic() &&
         !aliases.hasWriters(node);
}

FrozenProgram frozen_program(const char *path, c10::Device device) {
  torch::jit::Module loaded = torch::jit::load(path, device);
  loaded.eval();
  FrozenProgram program;
  // Without the folding of normalizations into weights, which would copy them: the parts are optimised when they are divided.
  program.graph = torch::jit::freeze_module(loaded).get_method("forward").graph()->copy();
  if (program.graph->inputs().empty() || program.graph->inputs()[0]->hasUses()) {
    throw std::runtime_error("the program keeps attributes, which cannot be shared");
  }
  torch::jit::RemoveTensorMutation(program.graph);
  const torch::jit::AliasDb aliases(program.graph);
  for (size_t i = 1; i < program.graph->inputs().size(); ++i) {
    program.digests[program.graph->inputs()[i]] = mix('i', i);
  }
  for (const torch::jit::Node *node : program.graph->nodes()) {
    if (node->kind() == c10::prim::Constant) {
      if (const auto digest = digest_of_constant(node->output())) {
        program.digests[node->output()] = *digest;
      }
      continue;
    }
    Digest digest = digest_of(node->kind().toQualString());
    bool known = may_be_shared(node, aliases);
    for (const torch::jit::Value *input : node->inputs()) {
      const auto found = program.digests.find(input);
      known = known && found != program.digests.end();
      digest = mix(digest, known ? found->second : 0);
    }
    for (size_t i = 0; known && i < node->outputs().size(); ++i) {
      program.digests[node->outputs()[i]] = mix(digest, i);
    }
  }
  return program;
}

// Visits the values that a node uses, also within its blocks.
template <typename Visit>
void visit_used(torch::jit::Node *node, const Visit &visit) {
  for (torch::jit::Value *input : node->inputs()) {
    visit(input);
  }
  for (torch::jit::Block *block : node->blocks()) {
    for (torch::jit::Node *inner : block->nodes()) {
      visit_used(inner, visit);
    }
    for (torch::jit::Value *output : block->outputs()) {
      visit(output);
    }
  }
}

bool is_tensor(const torch::jit::Value *value) { return value->type()->kind() == c10::TypeKind::TensorType; }

// A program in two parts. Both get the inputs of the program; the head gets what it needs of the shared part after them.
class Division {
 public:
  // `shared` are the digests that all programs have.
  Division(const FrozenProgram &program, const std::unordered_set<Digest> &shared) : program_(program), shared_(shared) {
    visit_used(program.graph->return_node(), [&](torch::jit::Value *value) { need(value); });
    // What has an effect is needed although nothing uses its result.
    for (torch::jit::Node *node : program.graph->nodes()) {
      if (!is_shared(node) && node->kind() != c10::prim::Constant) {
        need(node);
      }
    }
  }

  // Returns the digests of the tensors that the head takes from the shared part.
  const std::vector<Digest> &crossing() const { return crossing_; }

  // Returns the head. `all` are the digests of the tensors that it gets after the inputs.
  std::shared_ptr<torch::jit::Graph> head(const std::vector<Digest> &all) const {
    const auto made = std::make_shared<torch::jit::Graph>();
    auto values = add_inputs(*made);
    std::unordered_map<Digest, torch::jit::Value *> by_digest;
    for (const Digest digest : all) {
      by_digest[digest] = made->addInput();
    }
    for (torch::jit::Value *value : crossing_values_) {
      values[value] = by_digest.at(program_.digests.at(value));
    }
    copy_nodes(*made, needed_, values);
    for (const torch::jit::Value *output : program_.graph->outputs()) {
      made->registerOutput(values.at(output));
    }
    return made;
  }

  // Returns the shared part, whose outputs have these digests.
  std::shared_ptr<torch::jit::Graph> shared_part(const std::vector<Digest> &all) const {
    const auto made = std::make_shared<torch::jit::Graph>();
    auto values = add_inputs(*made);
    std::unordered_map<Digest, torch::jit::Value *> by_digest;
    for (torch::jit::Node *node : program_.graph->nodes()) {
      for (torch::jit::Value *output : node->outputs()) {
        const auto found = program_.digests.find(output);
        if (found != program_.digests.end()) {
          by_digest.try_emplace(found->second, output);
        }
      }
    }
    std::unordered_set<torch::jit::Node *> needed;
    std::vector<torch::jit::Node *> to_visit;
    for (const Digest digest : all) {
      to_visit.push_back(by_digest.at(digest)->node());
    }
    while (!to_visit.empty()) {
      torch::jit::Node *node = to_visit.back();
      to_visit.pop_back();
      if (node->kind() == c10::prim::Param || !needed.insert(node).second) {
        continue;
      }
      for (torch::jit::Value *input : node->inputs()) {
        to_visit.push_back(input->node());
      }
    }
    copy_nodes(*made, needed, values);
    for (const Digest digest : all) {
      made->registerOutput(values.at(by_digest.at(digest)));
    }
    return made;
  }

 private:
  using Values = std::unordered_map<const torch::jit::Value *, torch::jit::Value *>;

  bool is_shared(const torch::jit::Node *node) const {
    return !node->outputs().empty() && std::all_of(node->outputs().begin(), node->outputs().end(), [&](const auto *output) {
      const auto found = program_.digests.find(output);
      return found != program_.digests.end() && shared_.count(found->second) != 0;
    });
  }

  void need(torch::jit::Value *value) {
    torch::jit::Node *node = value->node();
    // The values within blocks come with their node.
    if (node->kind() == c10::prim::Param || node->owningBlock() != program_.graph->block()) {
      return;
    }
    // Sizes and lists are computed again from the rows of the head alone.
    const bool crosses = node->kind() != c10::prim::Constant && is_tensor(value) && is_shared(node);
    if (!crosses) {
      need(node);
    } else if (crossing_seen_.insert(value).second) {
      crossing_values_.push_back(value);
      const Digest digest = program_.digests.at(value);
      if (std::find(crossing_.begin(), crossing_.end(), digest) == crossing_.end()) {
        crossing_.push_back(digest);
      }
    }
  }

  void need(torch::jit::Node *node) {
    if (needed_.insert(node).second) {
      visit_used(node, [&](torch::jit::Value *value) { need(value); });
    }
  }

  Values add_inputs(torch::jit::Graph &made) const {
    Values values;
    // Without the module itself, which nothing uses.
    for (size_t i = 1; i < program_.graph->inputs().size(); ++i) {
      const torch::jit::Value *input = program_.graph->inputs()[i];
      values[input] = made.addInput()->copyMetadata(const_cast<torch::jit::Value *>(input));
    }
    return values;
  }

  void copy_nodes(torch::jit::Graph &made, const std::unordered_set<torch::jit::Node *> &needed, Values &values) const {
    for (torch::jit::Node *node : program_.graph->nodes()) {
      if (needed.count(node) == 0) {
        continue;
      }
      torch::jit::Node *copy = made.createClone(node, [&](torch::jit::Value *value) { return values.at(value); });
      made.insertNode(copy);
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        values[node->outputs()[i]] = copy->outputs()[i];
      }
    }
  }

  const FrozenProgram &program_;
  const std::unordered_set<Digest> &shared_;
  std::unordered_set<torch::jit::Node *> needed_;
  std::unordered_set<torch::jit::Value *> crossing_seen_;
  std::vector<torch::jit::Value *> crossing_values_;
  std::vector<Digest> crossing_;
};

// Lets equal constants of several programs be one tensor.
class Constants {
 public:
  void unite(FrozenProgram &program) {
    for (torch::jit::Node *node : program.graph->nodes()) {
      const auto digest = program.digests.find(node->kind() == c10::prim::Constant ? node->output() : nullptr);
      if (!is_tensor_constant(node) || digest == program.digests.end()) {
        continue;
      }
      const at::Tensor tensor = node->t(c10::attr::value);
      const auto [known, is_new] = known_.try_emplace(digest->second, tensor);
      if (is_new) {
        continue;
      }
      if (known->second.dtype() != tensor.dtype() || !at::equal(known->second, tensor)) {
        throw std::runtime_error("two weights have the same digest");
      }
      node->t_(c10::attr::value, known->second);
    }
  }

 private:
  std::unordered_map<Digest, at::Tensor> known_;
};

std::unique_ptr<torch::jit::GraphExecutor> executor_of(std::shared_ptr<torch::jit::Graph> graph, const char *name) {
  fold_frozen(graph);
  rewrite_frozen(graph);
  return std::make_unique<torch::jit::GraphExecutor>(std::move(graph), name);
}

// Returns the bytes of the tensors that an operator reads as constants.
int64_t weight_bytes(const torch::jit::Node *node) {
  int64_t bytes = 0;
  for (const torch::jit::Value *input : node->inputs()) {
    if (is_tensor_constant(input->node())) {
      bytes += static_cast<int64_t>(input->node()->t(c10::attr::value).nbytes());
    }
  }
  return bytes;
}

}  // namespace

struct packhorse_backbone {
  // The shared part; null if the programs share nothing from their inputs on.
  std::unique_ptr<torch::jit::GraphExecutor> shared;
  std::vector<std::unique_ptr<torch::jit::GraphExecutor>> heads;
};

namespace {

std::vector<at::Tensor> run_shared(packhorse_backbone &backbone, const std::vector<at::Tensor> &inputs) {
  if (!backbone.shared) {
    return {};
  }
  torch::jit::Stack stack(inputs.begin(), inputs.end());
  backbone.shared->run(stack);
  std::vector<at::Tensor> tensors;
  for (torch::jit::IValue &value : stack) {
    tensors.push_back(std::move(value).toTensor());
  }
  return tensors;
}

bool keeps_rows(const at::Tensor &tensor, int64_t rows) { return tensor.dim() > 0 && tensor.size(0) == rows; }

// Joins the rows of several batches, in this order.
std::vector<at::Tensor> join_rows(const std::vector<std::vector<at::Tensor>> &batches, const std::vector<size_t> &order) {
  if (order.size() == 1) {
    return batches[order[0]];
  }
  std::vector<at::Tensor> joined;
  for (size_t input = 0; input < batches[order[0]].size(); ++input) {
    std::vector<at::Tensor> parts;
    for (const size_t batch : order) {
      parts.push_back(batches[batch][input]);
    }
    joined.push_back(at::cat(parts));
  }
  return joined;
}

// Returns some rows of all tensors; the tensors themselves if that is all of them.
std::vector<at::Tensor> some_rows(const std::vector<at::Tensor> &tensors, int64_t from, int64_t rows, bool all) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor &tensor : tensors) {
    parts.push_back(all ? tensor : tensor.narrow(0, from, rows));
  }
  return parts;
}

}  // namespace

extern "C" {

int packhorse_backbone_load(const char *const *paths, size_t count, int cuda_device, packhorse_backbone **backbone,
                            char **message) {
  return guarded(message, [&] {
    torch::jit::overrideCanFuseOnGPU(false);
    Constants constants;
    std::vector<FrozenProgram> programs;
    std::unordered_set<Digest> shared;
    for (size_t i = 0; i < count; ++i) {
      FrozenProgram program = frozen_program(paths[i], device_of(cuda_device));
      constants.unite(program);
      std::unordered_set<Digest> digests;
      for (const auto &[value, digest] : program.digests) {
        if (i == 0 || shared.count(digest) != 0) {
          digests.insert(digest);
        }
      }
      shared = std::move(digests);
      programs.push_back(std::move(program));
    }
    std::vector<Division> divisions;
    std::vector<Digest> crossing;
    for (const FrozenProgram &program : programs) {
      divisions.emplace_back(program, shared);
      for (const Digest digest : divisions.back().crossing()) {
        if (std::find(crossing.begin(), crossing.end(), digest) == crossing.end()) {
          crossing.push_back(digest);
        }
      }
    }
    std::shared_ptr<torch::jit::Graph> shared_part;
    if (!crossing.empty()) {
      shared_part = divisions[0].shared_part(crossing);
    }
    std::vector<std::shared_ptr<torch::jit::Graph>> heads;
    for (const Division &division : divisions) {
      heads.push_back(division.head(crossing));
    }
    // Optimising copies weights, and those of the programs are needed no more.
    divisions.clear();
    programs.clear();
    constants = Constants();
    auto made = std::make_unique<packhorse_backbone>();
    if (shared_part) {
      made->shared = executor_of(std::move(shared_part), "shared");
    }
    for (auto &head : heads) {
      made->heads.push_back(executor_of(std::move(head), "head"));
    }
    *backbone = made.release();
    if (cuda_device >= 0) {
      at::accelerator::synchronizeDevice(static_cast<c10::DeviceIndex>(cuda_device));
    }
    release_free_memory();
    return PACKHORSE_OK;
  });
}

int packhorse_backbone_keeps_rows(packhorse_backbone *backbone, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                                  size_t input_count, int *keeps, char **message) {
  return guarded(message, [&] {
    const CurrentStream current(*stream);
    const std::vector<at::Tensor> whole = arguments_of(inputs, input_count);
    const std::vector<at::Tensor> tensors = run_shared(*backbone, whole);
    const int64_t rows = whole.empty() ? 0 : whole[0].size(0);
    *keeps = !tensors.empty() &&
             std::all_of(tensors.begin(), tensors.end(), [&](const auto &tensor) { return keeps_rows(tensor, rows); });
    return PACKHORSE_OK;
  });
}

int packhorse_backbone_forward(packhorse_backbone *backbone, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                               size_t input_count, const size_t *programs, size_t batch_count, packhorse_tensor **outputs,
                               size_t capacity, size_t *output_counts, char **message) {
  return guarded(message, [&]() -> int {
    const CurrentStream current(*stream);
    std::vector<std::vector<at::Tensor>> batches;
    std::vector<size_t> order;
    for (size_t batch = 0; batch < batch_count; ++batch) {
      batches.push_back(arguments_of(inputs + batch * input_count, input_count));
      order.push_back(batch);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return programs[a] < programs[b]; });
    const auto rows_of = [&](size_t batch) { return batches[batch].empty() ? 0 : batches[batch][0].size(0); };
    std::vector<at::Tensor> all = join_rows(batches, order);
    for (at::Tensor &tensor : run_shared(*backbone, all)) {
      all.push_back(std::move(tensor));
    }
    // The results of a head, of which each batch of its program gets some rows.
    std::vector<std::vector<at::Tensor>> results(batch_count);
    int64_t from = 0;
    for (auto next = order.begin(); next != order.end();) {
      const size_t program = programs[*next];
      const auto end = std::find_if(next, order.end(), [&](size_t batch) { return programs[batch] != program; });
      int64_t rows = 0;
      std::for_each(next, end, [&](size_t batch) { rows += rows_of(batch); });
      const bool is_alone = next == order.begin() && end == order.end();
      torch::jit::Stack stack;
      for (at::Tensor &tensor : some_rows(all, from, rows, is_alone)) {
        stack.emplace_back(std::move(tensor));
      }
      from += rows;
      backbone->heads.at(program)->run(stack);
      if (stack.at(0).isGenericDict()) {
        // Its outputs are known by their names, and a head knows none.
        throw NoTensors("a dict, which a head of a shared backbone may not");
      }
      Outputs unnamed;
      const std::vector<at::Tensor> tensors = tensors_of(stack.at(0), unnamed);
      int64_t within = 0;
      const bool is_single = end - next == 1;
      for (; next != end; ++next) {
        results[*next] = some_rows(tensors, within, rows_of(*next), is_single);
        within += rows_of(*next);
      }
    }
    all.clear();
    batches.clear();
    std::vector<at::Tensor> flat;
    for (size_t batch = 0; batch < batch_count; ++batch) {
      output_counts[batch] = results[batch].size();
      std::move(results[batch].begin(), results[batch].end(), std::back_inserter(flat));
    }
    return hand_out(std::move(flat), outputs, capacity, message);
  });
}

int packhorse_backbone_weights(const char *path, char **text, char **message) {
  return guarded(message, [&] {
    const FrozenProgram program = frozen_program(path, c10::kCPU);
    std::ostringstream out;
    for (const torch::jit::Node *node : program.graph->nodes()) {
      const int64_t bytes = weight_bytes(node);
      const auto digest = program.digests.find(node->outputs().empty() ? nullptr : node->outputs()[0]);
      if (bytes > 0) {
        out << (digest == program.digests.end() ? 0 : digest->second) << ',' << bytes << '\n';
      }
    }
    *text = strdup(out.str().c_str());
    return PACKHORSE_OK;
  });
}

void packhorse_backbone_free(packhorse_backbone *backbone) { delete backbone; }

}  // extern "C"

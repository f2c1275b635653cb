// The rewriting of programs to faster operators, without the steps of libtorch's passes that are known to answer wrong numbers or to fail. Each
// was found by comparing generated networks (tests/worker/networks.py) with the program as it is in its file, at libtorch 2.11; what is not
// known is found by the same comparison when a program is loaded.

#include "call.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/frozen_conv_add_relu_fusion.h>
#include <torch/csrc/jit/passes/frozen_graph_optimizations.h>
#include <torch/csrc/jit/passes/frozen_ops_to_mkldnn.h>

namespace {

// The operators that libtorch's pass rewrites to oneDNN's, those first that are most likely to be wrong.
constexpr const char *rewritten_operators[] = {
    "aten::avg_pool2d", "aten::avg_pool3d", "aten::adaptive_avg_pool2d", "aten::max_pool2d", "aten::max_pool3d",   "aten::add",
    "aten::mul",        "aten::batch_norm", "aten::layer_norm",          "aten::prelu",      "aten::gelu",         "aten::clamp",
    "aten::hardtanh",   "aten::relu6",      "aten::hardsigmoid",         "aten::hardswish",  "aten::sigmoid",      "aten::tanh",
    "aten::relu",       "aten::dropout",    "aten::linear",              "aten::conv3d",     "aten::conv2d",
};

template <typename Visit>
void visit_nodes(torch::jit::Block *block, const Visit &visit) {
  for (auto next = block->nodes().begin(); next != block->nodes().end();) {
    torch::jit::Node *node = *next;
    // The visitor may remove the node.
    ++next;
    for (torch::jit::Block *inner : node->blocks()) {
      visit_nodes(inner, visit);
    }
    visit(node);
  }
}

// Returns the operator of a node, whether it works in place or not.
std::string operator_name(const torch::jit::Node *node) {
  std::string name = node->kind().toQualString();
  if (!name.empty() && name.back() == '_') {
    name.pop_back();
  }
  return name;
}

// Hides a tensor that a node reads: the passes look at the operators that made an operator's inputs, and know nothing of `aten::alias`.
void hide_input(torch::jit::Node *node, size_t index) {
  torch::jit::Value *input = node->input(index);
  torch::jit::Node *alias = node->owningGraph()->create(c10::Symbol::fromQualString("aten::alias"), {input});
  alias->insertBefore(node);
  alias->output()->setType(input->type());
  node->replaceInput(index, alias->output());
}

// Hides all tensors that a node reads.
void hide_inputs(torch::jit::Node *node) {
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    if (node->input(i)->type()->cast<c10::TensorType>()) {
      hide_input(node, i);
    }
  }
}

// Undoes hide_input in a whole graph. An `aten::alias` of the program's own does not change a value either.
void show_inputs(torch::jit::Block *block) {
  static const c10::Symbol alias = c10::Symbol::fromQualString("aten::alias");
  visit_nodes(block, [](torch::jit::Node *node) {
    if (node->kind() == alias) {
      node->output()->replaceAllUsesWith(node->input());
      node->destroy();
    }
  });
}

// Returns the value of a node's argument; nothing if it is not constant or the operator has none of that name.
std::optional<at::IValue> constant_argument(const torch::jit::Node *node, const char *name) {
  const auto *schema = node->maybeSchema();
  const auto index = schema != nullptr ? schema->argumentIndexWithName(name) : std::nullopt;
  return index ? torch::jit::toIValue(node->input(static_cast<size_t>(*index))) : std::nullopt;
}

bool is_false(const std::optional<at::IValue> &value) { return value && value->isBool() && !value->toBool(); }

bool is_none(const std::optional<at::IValue> &value) { return value && value->isNone(); }

bool is_ones(const std::optional<at::IValue> &value) {
  if (!value || !value->isIntList()) {
    return false;
  }
  const auto list = value->toIntVector();
  return std::all_of(list.begin(), list.end(), [](int64_t element) { return element == 1; });
}

bool is_one(const std::optional<at::IValue> &value) {
  return value && ((value->isInt() && value->toInt() == 1) || (value->isDouble() && value->toDouble() == 1.0));
}

// Returns true if oneDNN's operator for this one is known to answer something else, or to fail.
bool is_wrong_in_onednn(const torch::jit::Node *node) {
  const std::string name = operator_name(node);
  if (name == "aten::avg_pool2d" || name == "aten::avg_pool3d") {
    // The last window, which reaches beyond the input, is divided by its whole size. Another divisor is refused.
    return !is_false(constant_argument(node, "ceil_mode")) || !is_none(constant_argument(node, "divisor_override"));
  }
  if (name == "aten::adaptive_avg_pool2d") {
    // Sizes that the output does not divide are refused, and a program does not tell the sizes that it will get. One divides all.
    return !is_ones(constant_argument(node, "output_size"));
  }
  if (name == "aten::add") {
    // The operands are swapped where the first is read again and the second is not, and then the wrong one is multiplied.
    return !is_one(constant_argument(node, "alpha"));
  }
  if (name == "aten::max_pool2d" || name == "aten::max_pool3d") {
    // Refused.
    return !is_ones(constant_argument(node, "dilation"));
  }
  if (name == "aten::batch_norm") {
    // Refused without a weight, and with the statistics of the batch.
    return node->inputs().size() > 2 && (is_none(torch::jit::toIValue(node->input(1))) || is_none(torch::jit::toIValue(node->input(2))) ||
                                         !is_false(constant_argument(node, "training")));
  }
  if (name == "aten::gelu") {
    // The approximation by tanh is refused.
    const auto approximate = constant_argument(node, "approximate");
    return !approximate || !approximate->isString() || approximate->toStringRef() != "none";
  }
  if (name == "aten::conv2d" || name == "aten::conv3d") {
    // The pass itself fails at the padding `same` or `valid`.
    const auto padding = constant_argument(node, "padding");
    return !padding || !padding->isIntList();
  }
  return false;
}

// Returns true if something writes to the input of a convolution between the operator that made it and the convolution.
bool input_is_written_before(const torch::jit::Node *convolution, const torch::jit::AliasDb &aliases) {
  const torch::jit::Value *input = convolution->input(0);
  if (!aliases.hasWriters(input)) {
    return false;
  }
  const torch::jit::Node *maker = input->node();
  if (maker->owningBlock() != convolution->owningBlock() || maker->kind() == c10::prim::Param) {
    return true;
  }
  for (torch::jit::Node *node = const_cast<torch::jit::Node *>(maker)->next(); node != convolution; node = node->next()) {
    if (!node->blocks().empty() || aliases.writesToAlias(node, torch::jit::ValueSet{input})) {
      return true;
    }
  }
  return false;
}

// Returns true if libtorch's passes would move a convolution before what is written to its input: they replace those of traced programs by others,
// which they place behind the operator that made the input.
bool moves_convolutions(const std::shared_ptr<torch::jit::Graph> &graph) {
  const torch::jit::AliasDb aliases(graph);
  bool moves = false;
  visit_nodes(graph->block(), [&](torch::jit::Node *node) {
    const std::string name = operator_name(node);
    const bool is_replaced = name == "aten::_convolution" || name == "aten::convolution";
    moves = moves || (is_replaced && input_is_written_before(node, aliases));
  });
  return moves;
}

// Folds constants into the weights of a frozen program's layers. A normalization behind a linear layer is not folded: it normalizes the second
// dimension, and the fold is that of the last, which is another one for inputs of more than two dimensions.
void fold_frozen(std::shared_ptr<torch::jit::Graph> &graph, bool guarded = true) {
  visit_nodes(graph->block(), [&](torch::jit::Node *node) {
    const bool normalizes = node->kind() == c10::Symbol::fromQualString("aten::batch_norm");
    if (guarded && normalizes && node->input(0)->node()->kind() == c10::Symbol::fromQualString("aten::linear")) {
      hide_inputs(node);
    }
  });
  torch::jit::OptimizeFrozenGraph(graph, true);
  show_inputs(graph->block());
}

// Returns the operators of a frozen program that rewrite_frozen may rewrite to oneDNN's, without those that it avoids anyway.
std::vector<std::string> rewritable(torch::jit::Block *block, bool guarded = true) {
  std::set<std::string> present;
  visit_nodes(block, [&](torch::jit::Node *node) {
    if (!guarded || !is_wrong_in_onednn(node)) {
      present.insert(operator_name(node));
    }
  });
  std::vector<std::string> names;
  for (const char *name : rewritten_operators) {
    if (present.count(name) != 0) {
      names.emplace_back(name);
    }
  }
  return names;
}

// Rewrites a frozen program to the operators that are fastest on the device of its weights: on a GPU convolutions with what follows them to
// those of cuDNN, on the CPU as many operators as possible to those of oneDNN, whose layout the activations then keep. The former does
// nothing on the CPU, the latter nothing on a GPU. The operators in `kept` are not rewritten to oneDNN's.
//
// torch::jit::optimize_for_inference runs a third pass, FrozenLinearTranspose, on every device. It keeps the weights of linear layers twice
// and adds their bias by an operator of its own, which is no faster on the CPU and a kernel more on a GPU.
void rewrite_frozen(std::shared_ptr<torch::jit::Graph> &graph, const std::set<std::string> &kept = {}, bool guarded = true) {
  if (guarded && moves_convolutions(graph)) {
    return;
  }
  torch::jit::FuseFrozenConvAddRelu(graph);
  visit_nodes(graph->block(), [&](torch::jit::Node *node) {
    if ((guarded && is_wrong_in_onednn(node)) || kept.count(operator_name(node)) != 0) {
      hide_inputs(node);
    }
  });
  torch::jit::ConvertFrozenOpsToMKLDNN(graph);
  show_inputs(graph->block());
  // The weights in their old layout are constants that nothing uses.
  torch::jit::EliminateDeadCode(graph);
}

}  // namespace

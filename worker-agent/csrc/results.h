// The results of programs: their tensors in one order, or what came in their place, for people.

#pragma once

#include "call.h"

#include <algorithm>
#include <string>
#include <vector>

#include <torch/script.h>

namespace {

// The rule, as it ends the description of what came instead.
constexpr const char *RULE = "; a program returns tensors, numbers, and tuples, lists and dicts of them with texts as keys";
// The most keys of a dictionary that are named.
constexpr size_t MAX_KEYS = 8;

// A tensor of a result, and the way to it: the keys and places, with dots between them.
struct Leaf {
  std::string path;
  at::Tensor tensor;
};

// Describes a value that cannot be an output.
std::string described(const torch::jit::IValue &value) {
  if (value.isNone()) {
    return "None";
  }
  if (value.isObject()) {
    const auto name = value.toObjectRef().type()->name();
    return "an object" + (name ? " of the class " + name->name() : "");
  }
  if (value.isString()) {
    return "a text";
  }
  return "a value of the kind " + value.tagKind();
}

[[noreturn]] void throw_no_tensor(const torch::jit::IValue &value, const std::string &path) {
  throw NoTensors(described(value) + (path.empty() ? "" : " at " + path) + RULE);
}

// Adds the tensors of a value, depth first: elements in their order, the values of a dict in the order in which its keys were added, a number as a
// tensor without dimensions. Throws if something else is there.
void flatten(const torch::jit::IValue &value, const std::string &path, std::vector<Leaf> &leaves) {
  const auto within = [&](const std::string &step) { return path.empty() ? step : path + "." + step; };
  const auto elements = [&](c10::ArrayRef<torch::jit::IValue> elements) {
    for (size_t i = 0; i < elements.size(); ++i) {
      flatten(elements[i], within(std::to_string(i)), leaves);
    }
  };
  if (value.isTensor()) {
    leaves.push_back({path, value.toTensor()});
  } else if (value.isTuple()) {
    elements(value.toTupleRef().elements());
  } else if (value.isList()) {
    elements(value.toListRef());
  } else if (value.isGenericDict()) {
    for (const auto &entry : value.toGenericDict()) {
      if (!entry.key().isString()) {
        throw NoTensors("a dict whose keys are no texts" + (path.empty() ? "" : " at " + path) + RULE);
      }
      flatten(entry.value(), within(entry.key().toStringRef()), leaves);
    }
  } else if (value.isInt()) {
    leaves.push_back({path, at::scalar_tensor(value.toInt(), at::kLong)});
  } else if (value.isDouble()) {
    leaves.push_back({path, at::scalar_tensor(value.toDouble(), at::kDouble)});
  } else if (value.isBool()) {
    leaves.push_back({path, at::scalar_tensor(value.toBool(), at::kBool)});
  } else {
    throw_no_tensor(value, path);
  }
}

// Returns the tensors of a dict that have these names. Throws if one has none.
std::vector<at::Tensor> named(const std::vector<Leaf> &leaves, const std::vector<std::string> &names) {
  std::vector<at::Tensor> tensors;
  for (const auto &name : names) {
    const auto found = std::find_if(leaves.begin(), leaves.end(), [&](const Leaf &leaf) { return leaf.path == name; });
    if (found == leaves.end()) {
      std::string text = "a dict with the keys ";
      for (size_t i = 0; i < leaves.size() && i <= MAX_KEYS; ++i) {
        text += (i == 0 ? "" : ", ") + (i == MAX_KEYS ? "..." : leaves[i].path);
      }
      throw NoTensors(text + "; the output \"" + name + "\" is none of them");
    }
    tensors.push_back(found->tensor);
  }
  return tensors;
}

}  // namespace

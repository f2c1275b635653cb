// The results of programs: tensors, or what came in their place, for people.

#pragma once

#include "call.h"

#include <string>

#include <torch/script.h>

namespace {

// The most keys of a dictionary that are named.
constexpr size_t MAX_KEYS = 5;
// The rule, as it ends the description of what came instead.
constexpr const char *RULE =
    "; a program returns a tensor, or a tuple or list of tensors in the order of the declared outputs: wrap the module in one whose "
    "forward does";

std::string described(const torch::jit::IValue &value);

std::string described_dict(const torch::jit::IValue &value) {
  std::string text = "a dict";
  size_t count = 0;
  for (const auto &entry : value.toGenericDict()) {
    if (count == MAX_KEYS) {
      return text + ", ...";
    }
    text += count++ == 0 ? " with the keys " : ", ";
    text += entry.key().isString() ? entry.key().toStringRef() : entry.key().tagKind();
  }
  return text;
}

// Describes the first element that is no tensor.
std::string described_elements(const char *kind, c10::ArrayRef<torch::jit::IValue> elements) {
  for (size_t i = 0; i < elements.size(); ++i) {
    if (!elements[i].isTensor()) {
      return std::string(kind) + " whose element " + std::to_string(i) + " is " + described(elements[i]);
    }
  }
  return kind;
}

std::string described(const torch::jit::IValue &value) {
  if (value.isNone()) {
    return "None";
  }
  if (value.isTuple()) {
    return described_elements("a tuple", value.toTupleRef().elements());
  }
  if (value.isList()) {
    return described_elements("a list", value.toListRef());
  }
  if (value.isGenericDict()) {
    return described_dict(value);
  }
  if (value.isObject()) {
    const auto name = value.toObjectRef().type()->name();
    return "an object" + (name ? " of the class " + name->name() : "");
  }
  return "a value of the kind " + value.tagKind();
}

// Throws the description of a result that is not made of tensors.
[[noreturn]] void throw_no_tensors(const torch::jit::IValue &value) { throw NoTensors(described(value) + RULE); }

}  // namespace

// The operators of a TorchScript program, found without computing anything: the program runs on tensors that have a shape and no data
// (libtorch's meta device), and each operator that a device would have to run is recorded.

#include "program.h"

#include <algorithm>
#include <list>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ExpandUtils.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/library.h>

namespace {

// Shapes of the operators for which libtorch knows them only in Python.

// The element of a list that has one element for all dimensions, or one for each.
int64_t at_dim(at::IntArrayRef list, int64_t dim) { return list.size() == 1 ? list[0] : list[static_cast<size_t>(dim)]; }

at::Tensor meta_convolution(const at::Tensor &input, const at::Tensor &weight, const std::optional<at::Tensor> &,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups) {
  std::vector<int64_t> sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t i = 0; i + 2 < weight.dim(); ++i) {
    const int64_t in = input.size(i + 2);
    const int64_t reach = at_dim(dilation, i) * (weight.size(i + 2) - 1);
    const int64_t step = at_dim(stride, i);
    const int64_t border = 2 * at_dim(padding, i);
    sizes.push_back(transposed ? (in - 1) * step - border + reach + at_dim(output_padding, i) + 1
                               : (in + border - reach - 1) / step + 1);
  }
  return at::empty(sizes, input.options());
}

// The form in which a traced program calls it.
at::Tensor meta_traced_convolution(const at::Tensor &input, const at::Tensor &weight, const std::optional<at::Tensor> &bias,
                                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                                   at::IntArrayRef output_padding, int64_t groups, bool, bool, bool, bool) {
  return meta_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

using Normalized = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The statistics beside the result are small.
Normalized meta_normalized(const at::Tensor &input) {
  return {at::empty_like(input), at::empty({0}, input.options()), at::empty({0}, input.options())};
}

Normalized meta_batch_norm(const at::Tensor &input, const std::optional<at::Tensor> &, const std::optional<at::Tensor> &,
                           const std::optional<at::Tensor> &, const std::optional<at::Tensor> &, bool, double, double) {
  return meta_normalized(input);
}

Normalized meta_layer_norm(const at::Tensor &input, at::IntArrayRef, const std::optional<at::Tensor> &,
                           const std::optional<at::Tensor> &, double) {
  return meta_normalized(input);
}

Normalized meta_group_norm(const at::Tensor &input, const std::optional<at::Tensor> &, const std::optional<at::Tensor> &, int64_t,
                           int64_t, int64_t, int64_t, double) {
  return meta_normalized(input);
}

at::Tensor meta_adaptive_average(const at::Tensor &input, at::IntArrayRef size) {
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[sizes.size() - 2] = at_dim(size, 0);
  sizes[sizes.size() - 1] = at_dim(size, 1);
  return at::empty(sizes, input.options());
}

at::Tensor meta_embedding(const at::Tensor &weight, const at::Tensor &indices, int64_t, bool, bool) {
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  return at::empty(sizes, weight.options());
}

at::Tensor meta_index_select(const at::Tensor &self, int64_t dim, const at::Tensor &index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.at(static_cast<size_t>(dim < 0 ? dim + self.dim() : dim)) = index.numel();
  return at::empty(sizes, self.options());
}

// One kernel on a GPU, which keeps no scores in memory and leaves the heads of a token beside each other.
at::Tensor meta_attention(const at::Tensor &query, const at::Tensor &, const at::Tensor &value, const std::optional<at::Tensor> &, double, bool,
                          std::optional<double>, bool) {
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = value.size(-1);
  if (sizes.size() != 4) {
    return at::empty(sizes, query.options());
  }
  const int64_t token = sizes[1] * sizes[3];
  return at::empty_strided(sizes, {sizes[2] * token, sizes[3], token, 1}, query.options());
}

// Runs an operator on tensors without data that has no other function for it: one that works element by element, on operands that are
// extended to the same shape.
void meta_pointwise(const c10::OperatorHandle &operation, torch::jit::Stack *stack) {
  const c10::FunctionSchema &schema = operation.schema();
  if (schema.returns().size() != 1) {
    throw std::runtime_error("the shape of the result of " + schema.name() + " is not known");
  }
  std::vector<int64_t> sizes;
  std::vector<at::Tensor> operands;
  at::Tensor result;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const at::IValue &argument = torch::jit::peek(*stack, i, schema.arguments().size());
    if (!argument.isTensor() || !argument.toTensor().defined()) {
      continue;
    }
    const c10::AliasInfo *alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      result = argument.toTensor();
    }
    if (!schema.arguments()[i].is_out()) {
      operands.push_back(argument.toTensor());
      sizes = at::infer_size(sizes, argument.toTensor().sizes());
    }
  }
  if (!result.defined()) {
    const c10::ScalarType type = operands.empty() ? c10::kFloat : at::result_type(operands.front(), operands.back());
    result = at::empty(sizes, at::TensorOptions().device(c10::kMeta).dtype(type));
  } else if (result.sizes() != sizes) {
    result.resize_(sizes);
  }
  torch::jit::drop(*stack, schema.arguments().size());
  torch::jit::push(*stack, result);
}

// Registers the functions above, once in a process that inspects.
void register_shapes() {
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    made->impl("convolution", meta_convolution);
    made->impl("_convolution", meta_traced_convolution);
    made->impl("native_batch_norm", meta_batch_norm);
    made->impl("native_layer_norm", meta_layer_norm);
    made->impl("native_group_norm", meta_group_norm);
    made->impl("_adaptive_avg_pool2d", meta_adaptive_average);
    made->impl("embedding", meta_embedding);
    made->impl("index_select", meta_index_select);
    made->impl("scaled_dot_product_attention", meta_attention);
    for (const c10::OperatorName &name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto operation = c10::Dispatcher::singleton().findSchema(name);
      const auto has = [&](c10::DispatchKey key) { return operation->hasKernelForDispatchKey(key); };
      if (!operation || name.getNamespace() != "aten" || !operation->hasTag(at::Tag::pointwise) || has(c10::DispatchKey::Meta) ||
          has(c10::DispatchKey::CompositeImplicitAutograd) || has(c10::DispatchKey::CompositeExplicitAutograd) ||
          has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
        continue;
      }
      const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
      made->impl((name.name.substr(std::strlen("aten::")) + overload).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&meta_pointwise>());
    }
    return made;
  }();
}

using Storage = const c10::StorageImpl *;

Storage storage_of(const at::Tensor &tensor) { return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr; }

int64_t bytes_of(const at::Tensor &tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

// A tensor that an operator reads.
struct Operand {
  std::vector<int64_t> sizes;
  int64_t bytes;
  Storage storage;
};

// An operator that runs.
struct Call : at::ObserverContext {
  std::vector<at::IValue> arguments;
  std::vector<Operand> operands;
  // The bytes of intermediate results before it, with those that it is the last to read.
  int64_t live_bytes = 0;
  // Another operator does its work.
  bool has_inner = false;
  Call *outer = nullptr;
};

// The record of one run.
struct Recording {
  std::unordered_set<Storage> parameters;
  std::ostringstream rows;
  // The memory of intermediate results that has not been released.
  std::list<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, int64_t>> live;
  std::unordered_set<Storage> counted;
  int64_t peak = 0;
  Call *innermost = nullptr;
};

thread_local Recording *recording = nullptr;

template <typename Visit>
void visit_tensors(const at::IValue &value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (value.isList()) {
    for (const at::IValue &element : value.toListRef()) {
      visit_tensors(element, visit);
    }
  } else if (value.isTuple()) {
    for (const at::IValue &element : value.toTupleRef().elements()) {
      visit_tensors(element, visit);
    }
  }
}

// Returns the kind of an operator and the number of its floating-point operations. A sum of `n` products counts as 2 n operations, and the
// other operators as one per element.
std::pair<std::string, int64_t> kind_and_operations(const std::string &name, const Call &call, int64_t elements) {
  const auto &operands = call.operands;
  if ((name == "convolution" || name == "_convolution") && operands.size() >= 2 && call.arguments.size() >= 9) {
    const std::vector<int64_t> &weight = operands[1].sizes;
    int64_t window = 1;
    for (size_t i = 2; i < weight.size(); ++i) {
      window *= weight[i];
    }
    // A transposed convolution adds every input element to a window.
    const bool transposed = call.arguments[6].toBool();
    const int64_t sums = transposed ? c10::multiply_integers(operands[0].sizes) : elements;
    const int64_t operations = 2 * sums * weight[1] * window;
    if (call.arguments[8].toInt() > 1) {
      return {weight[1] == 1 ? "depthwise_convolution" : "grouped_convolution", operations};
    }
    const bool dense = call.arguments[3].toIntVector()[0] == 1 && call.arguments[5].toIntVector()[0] == 1 && !transposed;
    const bool square = weight.size() == 4 && weight[2] == weight[3];
    if (square && window == 1) {
      return {"convolution_1x1", operations};
    }
    return {square && window == 9 && dense ? "convolution_3x3" : "convolution", operations};
  }
  if ((name == "mm" || name == "bmm") && operands.size() == 2) {
    return {name, 2 * elements * operands[0].sizes.back()};
  }
  if ((name == "addmm" || name == "baddbmm") && operands.size() == 3) {
    return {name, 2 * elements * operands[1].sizes.back()};
  }
  if (name == "scaled_dot_product_attention" && operands.size() >= 3) {
    const std::vector<int64_t> &key = operands[1].sizes;
    const int64_t value_width = operands[2].sizes.back();
    // A product of every query with every key, and the values weighted by it.
    return {name, 2 * elements / value_width * key.at(key.size() - 2) * (key.back() + value_width)};
  }
  return {name, elements};
}

// Returns true for operators that only allocate memory.
bool allocates(const at::RecordFunction &function) {
  const std::string name = function.name();
  return name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0 || name.rfind("aten::resize", 0) == 0;
}

// Returns the bytes of intermediate results, and forgets what has been released.
int64_t live_bytes() {
  int64_t bytes = 0;
  for (auto entry = recording->live.begin(); entry != recording->live.end();) {
    if (entry->first.expired()) {
      recording->counted.erase(entry->first._unsafe_get_target());
      entry = recording->live.erase(entry);
    } else {
      bytes += entry->second;
      ++entry;
    }
  }
  return bytes;
}

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction &function) {
  auto call = std::make_unique<Call>();
  call->outer = recording->innermost;
  if (call->outer != nullptr && !allocates(function)) {
    call->outer->has_inner = true;
  }
  recording->innermost = call.get();
  call->live_bytes = live_bytes();
  // Below the arguments are other values of the interpreter's stack.
  const auto inputs = function.inputs();
  const auto schema = function.operator_schema();
  const size_t count = schema ? std::min(inputs.size(), schema->arguments().size()) : inputs.size();
  for (const at::IValue &input : inputs.slice(inputs.size() - count)) {
    visit_tensors(input, [&](const at::Tensor &tensor) {
      call->operands.push_back({tensor.sizes().vec(), bytes_of(tensor), storage_of(tensor)});
    });
    // An argument that holds a tensor would keep its memory alive.
    call->arguments.push_back(input.isTensor() || input.isTensorList() ? at::IValue() : input);
  }
  return call;
}

// Notes the memory of a result, and returns its bytes if it is new.
int64_t remember(const at::Tensor &tensor) {
  if (recording->parameters.count(storage_of(tensor)) != 0 || !recording->counted.insert(storage_of(tensor)).second) {
    return 0;
  }
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  recording->live.emplace_back(tensor.storage().getWeakStorageImpl(), bytes);
  return bytes;
}

void end_operator(const at::RecordFunction &function, at::ObserverContext *context) {
  const auto &call = *static_cast<Call *>(context);
  recording->innermost = call.outer;
  const std::string full_name = function.name();
  const std::string name = full_name.substr(full_name.rfind(':') + 1);
  if (call.has_inner || allocates(function)) {
    return;
  }
  const bool in_place = !name.empty() && name.back() == '_';
  int64_t written = 0;
  int64_t elements = 0;
  int64_t allocated = 0;
  const auto schema = function.operator_schema();
  const auto &outputs = function.outputs();
  const size_t count = schema ? std::min(outputs.size(), schema->returns().size()) : outputs.size();
  for (const at::IValue &output : at::ArrayRef<at::IValue>(outputs).slice(outputs.size() - count)) {
    visit_tensors(output, [&](const at::Tensor &tensor) {
      if (!tensor.is_meta() || !tensor.has_storage()) {
        return;
      }
      allocated += remember(tensor);
      const bool is_view = std::any_of(call.operands.begin(), call.operands.end(),
                                       [&](const Operand &operand) { return operand.storage == storage_of(tensor); });
      if (!is_view || in_place) {
        written += bytes_of(tensor);
        elements = std::max(elements, tensor.numel());
      }
    });
  }
  // What an operator reads is there until it has ended, even if nobody reads it later.
  recording->peak = std::max(recording->peak, call.live_bytes + allocated);
  if (elements == 0) {
    return;
  }
  const bool looks_up = name == "embedding" || name == "index_select" || name == "gather" || name == "index";
  int64_t parameters = 0;
  int64_t read = 0;
  for (const Operand &operand : call.operands) {
    // A table is read where it is looked up.
    const int64_t bytes = looks_up ? std::min(operand.bytes, written) : operand.bytes;
    (recording->parameters.count(operand.storage) != 0 ? parameters : read) += bytes;
  }
  const auto [kind, operations] = kind_and_operations(name, call, elements);
  recording->rows << kind << ',' << operations << ',' << parameters << ',' << read << ',' << written << ',' << elements << '\n';
}

at::Tensor without_data(const at::Tensor &tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

// Replaces the parameters and buffers of a program by tensors without data. Single numbers stay, since shapes may be computed from them.
void drop_data(const torch::jit::Module &module) {
  std::unordered_map<const c10::TensorImpl *, at::Tensor> replaced;
  for (const torch::jit::Module &part : module.modules()) {
    const auto object = part._ivalue();
    for (size_t slot = 0; slot < object->slots().size(); ++slot) {
      const at::IValue value = object->getSlot(slot);
      if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().dim() == 0 || value.toTensor().is_meta()) {
        continue;
      }
      const auto [entry, is_new] = replaced.try_emplace(value.toTensor().unsafeGetTensorImpl());
      if (is_new) {
        entry->second = without_data(value.toTensor());
      }
      object->setSlot(slot, entry->second);
    }
  }
}

// Lets an operator that makes a tensor make one without data.
void redirect(torch::jit::Node *node) {
  const c10::FunctionSchema *schema = node->maybeSchema();
  // The others make single numbers, from which shapes may be computed.
  if (schema == nullptr || node->kind() == c10::aten::tensor || node->kind() == c10::aten::scalar_tensor) {
    return;
  }
  const auto device = schema->argumentIndexWithName("device");
  if (!device || node->input(static_cast<size_t>(*device))->node()->kind() != c10::prim::Constant) {
    return;
  }
  const torch::jit::WithInsertPoint here(node);
  node->replaceInput(static_cast<size_t>(*device), node->owningGraph()->insertConstant(c10::Device(c10::kMeta)));
}

// Drops the data of a graph's constants, and lets its operators make tensors without data.
void drop_data(torch::jit::Block *block, std::unordered_set<Storage> &parameters) {
  for (torch::jit::Node *node : block->nodes()) {
    for (torch::jit::Block *inner : node->blocks()) {
      drop_data(inner, parameters);
    }
    if (node->kind() == c10::prim::fork) {
      drop_data(node->g(c10::attr::Subgraph)->block(), parameters);
    }
    redirect(node);
    if (node->kind() == c10::prim::Constant && node->hasAttribute(c10::attr::value) &&
        node->kindOf(c10::attr::value) == torch::jit::AttributeKind::t && node->t(c10::attr::value).dim() > 0) {
      if (!node->t(c10::attr::value).is_meta()) {
        node->t_(c10::attr::value, without_data(node->t(c10::attr::value)));
      }
      parameters.insert(storage_of(node->t(c10::attr::value)));
    }
  }
}

class Observing {
 public:
  explicit Observing(Recording &made) {
    recording = &made;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin_operator, end_operator)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  Observing(const Observing &) = delete;
  Observing &operator=(const Observing &) = delete;
  ~Observing() {
    at::removeCallback(handle_);
    recording = nullptr;
  }

 private:
  at::CallbackHandle handle_;
};

}  // namespace

extern "C" {

int packhorse_operators(const char *path, const int64_t *batches, size_t batch_count, const int *scalar_types, const int64_t *dims,
                        const size_t *ranks, size_t input_count, char **text, char **message) {
  return guarded(message, [&] {
    register_shapes();
    torch::jit::Module module = torch::jit::load(path, c10::kCPU);
    module.eval();
    drop_data(module);
    std::unordered_set<Storage> parameters;
    const auto &graph_function = torch::jit::toGraphFunction(module.get_method("forward").function());
    torch::jit::Inline(*graph_function.graph());
    drop_data(graph_function.graph()->block(), parameters);
    int64_t count = 0;
    int64_t bytes = 0;
    for (const torch::jit::Module &part : module.modules()) {
      for (const at::IValue &value : part._ivalue()->slots()) {
        if (value.isTensor() && value.toTensor().is_meta() && parameters.insert(storage_of(value.toTensor())).second) {
          count += value.toTensor().numel();
          bytes += bytes_of(value.toTensor());
        }
      }
    }
    // Optimising takes longer than the run.
    const torch::jit::GraphOptimizerEnabledGuard as_is(false);
    std::ostringstream out;
    out << "parameters," << count << ',' << bytes << '\n';
    for (size_t batch = 0; batch < batch_count; ++batch) {
      std::vector<at::IValue> inputs;
      const int64_t *next = dims;
      for (size_t i = 0; i < input_count; ++i) {
        std::vector<int64_t> sizes(next, next + ranks[i]);
        next += ranks[i];
        // The batch is -1 among the dimensions.
        std::replace(sizes.begin(), sizes.end(), int64_t{-1}, batches[batch]);
        const auto type = static_cast<c10::ScalarType>(scalar_types[i]);
        inputs.emplace_back(at::empty(sizes, at::TensorOptions().device(c10::kMeta).dtype(type)));
      }
      Recording made;
      made.parameters = parameters;
      {
        const Observing observing(made);
        // The recording is this thread's.
        module.get_method("forward").run_async(std::move(inputs), {}, launch_here)->waitAndThrow();
      }
      out << "batch," << batches[batch] << ',' << made.peak << '\n' << made.rows.str();
    }
    *text = strdup(out.str().c_str());
    return PACKHORSE_OK;
  });
}

}  // extern "C"

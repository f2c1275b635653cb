// Programs: TorchScript and packages that were compiled ahead of time.

#include "program.h"
#include "results.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/codegen/fuser/interface.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/passes/inliner.h>

namespace {

// Returns the tensors of a program's result: those of a dict that have the names of the declared outputs, else all in their order. Notes the
// names of a dict's tensors if no output is declared. Throws if there is something else.
std::vector<at::Tensor> tensors_of(const torch::jit::IValue &value, Outputs &outputs) {
  if (value.isTensor()) {
    return std::vector<at::Tensor>{value.toTensor()};
  }
  if (value.isTensorList()) {
    return value.toTensorVector();
  }
  std::vector<Leaf> leaves;
  flatten(value, "", leaves);
  if (value.isGenericDict()) {
    if (!outputs.declared.empty()) {
      return named(leaves, outputs.declared);
    }
    outputs.answered.clear();
    for (const auto &leaf : leaves) {
      outputs.answered.push_back(leaf.path);
    }
  }
  std::vector<at::Tensor> tensors;
  for (auto &leaf : leaves) {
    tensors.push_back(std::move(leaf.tensor));
  }
  return tensors;
}

// Returns the value of `key` in a JSON object of strings.
std::string member_of(const std::string &json, const std::string &key) {
  const auto at = json.find("\"" + key + "\":");
  const auto begin = at == std::string::npos ? at : json.find('"', at + key.size() + 3);
  const auto end = begin == std::string::npos ? begin : json.find('"', begin + 1);
  return end == std::string::npos ? "" : json.substr(begin + 1, end - begin - 1);
}

// Creates a folder in the environment's folder for temporary files.
std::string temporary_folder() {
  const char *parent = std::getenv("TMPDIR");
  std::string folder = std::string(parent != nullptr ? parent : "/tmp") + "/package-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    throw std::runtime_error(std::string("no folder can be created to unpack the package into: ") + std::strerror(errno));
  }
  return folder;
}

// Loads a program of a package. libtorch's own loader unpacks into /tmp, whatever the environment says, and leaves the files there if the
// process is killed.
std::unique_ptr<Package> load_package(const char *path, const std::string &program, int cuda_device) {
  caffe2::serialize::PyTorchStreamReader archive{std::string(path)};
  const std::string folder = temporary_folder();
  const std::string members = "data/aotinductor/" + program + "/";
  std::string library;
  std::string compiled;
  for (const auto &name : archive.getAllRecords()) {
    const std::string file = name.substr(name.rfind('/') + 1);
    if (name.rfind(members, 0) != 0 || file.empty() || file == "." || file == "..") {
      continue;
    }
    const auto [bytes, size] = archive.getRecord(name);
    const auto *begin = static_cast<const char *>(bytes.get());
    std::ofstream out(folder + "/" + file, std::ios::binary);
    if (!out.write(begin, static_cast<std::streamsize>(size)).flush()) {
      throw std::runtime_error(std::string("the package cannot be unpacked: ") + std::strerror(errno));
    }
    if (file.size() > 3 && file.compare(file.size() - 3, 3, ".so") == 0) {
      library = folder + "/" + file;
    } else if (file.find("wrapper_metadata.json") != std::string::npos) {
      compiled = member_of(std::string(begin, size), "AOTI_DEVICE_KEY");
    }
  }
  const std::string device = cuda_device < 0 ? "cpu" : "cuda";
  if (library.empty()) {
    throw std::runtime_error("the package contains no compiled program");
  }
  if (compiled != device) {
    throw std::runtime_error("the package was compiled for " + compiled + ", not for " + device);
  }
  const auto &runners = torch::inductor::getAOTIModelRunnerRegistry();
  const auto runner = runners.find(device);
  if (runner == runners.end()) {
    throw std::runtime_error("this libtorch cannot run packages on " + device);
  }
  const std::string index = cuda_device < 0 ? "" : ":" + std::to_string(cuda_device);
  // One instance without locks, because batches run one after the other.
  return runner->second(library, 1, device + index, folder, true);
}

// Returns the number of a package's tensor arguments: the leaves of the tree that it stores as JSON.
size_t argument_count(Package &package) {
  const auto spec = package.get_call_spec();
  const std::string leaf = "\"type\": null";
  size_t count = 0;
  if (!spec.empty()) {
    for (size_t at = spec[0].find(leaf); at != std::string::npos; at = spec[0].find(leaf, at + leaf.size())) {
      ++count;
    }
  }
  return count;
}

// Returns true if a program runs parts of itself as tasks of their own.
bool forks(const std::shared_ptr<torch::jit::Graph> &graph) {
  bool found = false;
  visit_nodes(graph->block(), [&](const torch::jit::Node *node) { found = found || node->kind() == c10::prim::fork; });
  return found;
}

// Runs a task where it is launched. Another thread would have neither the stream nor the observers of this one.
void launch_here(const std::function<void()> &task) { task(); }

// Returns the words of a text, which are separated by spaces.
std::set<std::string> words_of(const char *text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

// Returns true unless it is certain that a run leaves nothing behind: where a frozen program uses its module, it has state that could not be
// frozen.
bool has_state(const std::shared_ptr<torch::jit::Graph> &graph) { return graph->inputs().front()->hasUses(); }

// Returns true if it is certain that a run of a program without state writes to none of its inputs.
bool only_reads_inputs(const std::shared_ptr<torch::jit::Graph> &graph) {
  const auto values = graph->inputs();
  const torch::jit::AliasDb aliases(graph);
  return std::none_of(values.begin() + 1, values.end(), [&](const torch::jit::Value *input) { return aliases.hasWriters(input); });
}

// The constants of a graph that are tensors or contain some, and the values that are written to.
struct Writes {
  std::vector<torch::jit::Value *> constants;
  std::vector<torch::jit::Value *> written;
  // True if a constant is a list or a dict: the analysis does not follow what lies in it.
  bool contained = false;
};

bool has_tensors(const c10::TypePtr &type) {
  const auto contained = type->containedTypes();
  return type->isSubtypeOf(*c10::TensorType::get()) || std::any_of(contained.begin(), contained.end(), has_tensors);
}

void find_writes(torch::jit::Block *block, Writes &found) {
  for (torch::jit::Node *node : block->nodes()) {
    if (node->kind() == torch::jit::prim::Constant && has_tensors(node->output()->type())) {
      found.constants.push_back(node->output());
      found.contained = found.contained || !node->output()->type()->isSubtypeOf(*c10::TensorType::get());
    }
    if (const auto *schema = node->maybeSchema(); schema != nullptr && schema->is_mutable()) {
      for (size_t i = 0; i < node->inputs().size(); ++i) {
        const auto *alias = schema->arguments().at(std::min(i, schema->arguments().size() - 1)).alias_info();
        if (alias != nullptr && alias->isWrite()) {
          found.written.push_back(node->inputs()[i]);
        }
      }
    }
    for (torch::jit::Block *inner : node->blocks()) {
      find_writes(inner, found);
    }
  }
}

// Returns true if it is certain that a run of a program without state writes to none of its constants.
bool only_reads_weights(const std::shared_ptr<torch::jit::Graph> &graph) {
  if (forks(graph)) {
    return false;
  }
  Writes found;
  find_writes(graph->block(), found);
  const torch::jit::AliasDb aliases(graph);
  // Some operators write without saying so, such as those that count means; the analysis knows them.
  const auto is_written = [&](const torch::jit::Value *constant) { return aliases.hasWriters(constant); };
  if (std::any_of(found.constants.begin(), found.constants.end(), is_written)) {
    return false;
  }
  return found.written.empty() || (!found.contained && !aliases.mayContainAlias(found.written, found.constants));
}

std::vector<at::Tensor> run_program(packhorse_module &module, std::vector<at::Tensor> inputs) {
  if (module.package) {
    return module.package->boxed_run(std::move(inputs));
  }
  torch::jit::Method &forward = *module.forward;
  if (!module.takes_tensors || inputs.size() != forward.num_inputs() - 1) {
    std::vector<torch::jit::IValue> arguments(inputs.begin(), inputs.end());
    inputs.clear();
    if (module.forks) {
      const auto future = forward.run_async(std::move(arguments), {}, launch_here);
      future->waitAndThrow();
      return tensors_of(future->value(), module.outputs);
    }
    return tensors_of(forward(std::move(arguments)), module.outputs);
  }
  torch::jit::Stack stack;
  stack.reserve(1 + inputs.size());
  stack.emplace_back(forward.raw_owner());
  for (auto &input : inputs) {
    stack.emplace_back(std::move(input));
  }
  if (module.forks) {
    const auto future = forward.function().runAsync(stack, launch_here);
    future->waitAndThrow();
    return tensors_of(future->value(), module.outputs);
  }
  forward.function().run(stack);
  return tensors_of(stack.front(), module.outputs);
}

// Returns the memory to the system that loading and optimising took and no longer need. A worker's environment keeps all memory that is freed, and
// what these leave are pieces between which a batch's activations do not fit.
void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

std::vector<at::Tensor> arguments_of(packhorse_tensor *const *inputs, size_t count) {
  std::vector<at::Tensor> arguments;
  for (size_t i = 0; i < count; ++i) {
    arguments.push_back(*unwrap(inputs[i]));
  }
  return arguments;
}

// Writes the results of a run, which then belong to the caller alone; none if there are more than `capacity`. Returns a code.
int hand_out(std::vector<at::Tensor> results, packhorse_tensor **outputs, size_t capacity, char **message) {
  if (results.size() > capacity) {
    return PACKHORSE_OK;
  }
  for (auto &output : results) {
    if (output.layout() != c10::kStrided) {
      set_message(message, "a sparse tensor");
      return PACKHORSE_NO_TENSORS;
    }
    // A program may return an input, or a buffer that its next run overwrites, and that run may begin before this output is copied out.
    if (output.use_count() > 1 || output.storage().use_count() > 1) {
      output = output.clone(at::MemoryFormat::Contiguous);
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    outputs[i] = wrap(std::move(results[i]));
  }
  return PACKHORSE_OK;
}

}  // namespace

extern "C" {

int packhorse_module_load(const char *path, const char *program, int cuda_device, int optimization, const char *kept,
                          packhorse_module **module, char **message) {
  return guarded(message, [&] {
    if (optimization == PACKHORSE_COMPILED) {
      *module = new packhorse_module{std::nullopt, load_package(path, program, cuda_device)};
      return PACKHORSE_OK;
    }
    // The interpreter's own compiler generates kernels when it first sees a shape, which happens while the worker serves. Fused kernels
    // need a package, which is compiled ahead of time.
    torch::jit::overrideCanFuseOnGPU(false);
    torch::jit::Module loaded = torch::jit::load(path, device_of(cuda_device));
    loaded.eval();
    if (optimization >= PACKHORSE_FROZEN) {
      // What torch::jit::freeze does, but for the fold that is wrong.
      loaded = torch::jit::freeze_module(loaded);
      auto graph = loaded.get_method("forward").graph();
      fold_frozen(graph, optimization != PACKHORSE_UNGUARDED);
    }
    // Before it is rewritten to operators of which the analysis knows less.
    const bool stateful = has_state(loaded.get_method("forward").graph());
    const bool only_reads = !stateful && only_reads_inputs(loaded.get_method("forward").graph());
    const bool only_reads_constants = !stateful && only_reads_weights(loaded.get_method("forward").graph());
    std::vector<std::string> rewritten;
    if (optimization >= PACKHORSE_OPTIMIZED) {
      auto graph = loaded.get_method("forward").graph();
      if (cuda_device < 0) {
        rewritten = rewritable(graph->block(), optimization != PACKHORSE_UNGUARDED);
      }
      rewrite_frozen(graph, words_of(kept), optimization != PACKHORSE_UNGUARDED);
    }
    const auto &arguments = loaded.get_method("forward").function().getSchema().arguments();
    const bool takes_tensors = std::all_of(arguments.begin() + 1, arguments.end(), [](const c10::Argument &argument) {
      return !argument.default_value() && c10::TensorType::get()->isSubtypeOf(*argument.type());
    });
    auto inlined = loaded.get_method("forward").graph()->copy();
    torch::jit::Inline(*inlined);
    *module = new packhorse_module{loaded.get_method("forward"), nullptr, stateful, only_reads, only_reads_constants, takes_tensors, forks(inlined), std::move(rewritten)};
    if (cuda_device >= 0) {
      // The parameters were copied in the default stream, for which the worker's streams do not wait.
      at::accelerator::synchronizeDevice(static_cast<c10::DeviceIndex>(cuda_device));
    }
    release_free_memory();
    return PACKHORSE_OK;
  });
}

int packhorse_module_arity(const packhorse_module *module, size_t *required, size_t *accepted, char **message) {
  return guarded(message, [&] {
    if (module->package) {
      *required = *accepted = argument_count(*module->package);
      return PACKHORSE_OK;
    }
    const auto &arguments = module->forward.value().function().getSchema().arguments();
    *required = 0;
    *accepted = arguments.size() - 1;  // without `self`
    for (size_t i = 1; i < arguments.size(); ++i) {
      *required += arguments[i].default_value().has_value() ? 0 : 1;
    }
    return PACKHORSE_OK;
  });
}

int packhorse_module_rewritten(const packhorse_module *module, char **text, char **message) {
  return guarded(message, [&] {
    std::string words;
    for (const std::string &name : module->rewritten) {
      words += (words.empty() ? "" : " ") + name;
    }
    *text = strdup(words.c_str());
    return PACKHORSE_OK;
  });
}

int packhorse_module_declare(packhorse_module *module, const char *const *names, size_t count, char **message) {
  return guarded(message, [&] {
    module->outputs.declared.assign(names, names + count);
    return PACKHORSE_OK;
  });
}

int packhorse_module_answered(const packhorse_module *module, char **text, char **message) {
  return guarded(message, [&] {
    std::string lines;
    for (const std::string &name : module->outputs.answered) {
      lines += name + "\n";
    }
    *text = strdup(lines.c_str());
    return PACKHORSE_OK;
  });
}

int packhorse_module_has_state(const packhorse_module *module) { return module->package || module->has_state ? 1 : 0; }

int packhorse_module_only_reads_weights(const packhorse_module *module) { return module->only_reads_weights ? 1 : 0; }

int packhorse_module_only_reads_inputs(const packhorse_module *module) { return module->only_reads_inputs ? 1 : 0; }

int packhorse_module_forward(packhorse_module *module, const packhorse_stream *stream, packhorse_tensor *const *inputs,
                             size_t input_count, packhorse_tensor **outputs, size_t capacity, size_t *output_count,
                             char **message) {
  return guarded(message, [&]() -> int {
    const CurrentStream current(*stream);
    std::vector<at::Tensor> tensors = run_program(*module, arguments_of(inputs, input_count));
    *output_count = tensors.size();
    return hand_out(std::move(tensors), outputs, capacity, message);
  });
}

void packhorse_module_free(packhorse_module *module) { delete module; }

}  // extern "C"

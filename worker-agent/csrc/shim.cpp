#include "shim.h"

#include "internal.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/csrc/jit/codegen/fuser/interface.h>
#include <torch/script.h>

using Package = torch::inductor::AOTIModelContainerRunner;

struct packhorse_module {
  torch::jit::Module module;
  // In its place, of a program that was compiled ahead of time.
  std::unique_ptr<Package> package;
};

namespace {

// The tensors of a program's result; none if it is anything else.
std::optional<std::vector<at::Tensor>> tensors_of(const torch::jit::IValue &value) {
  if (value.isTensor()) {
    return std::vector<at::Tensor>{value.toTensor()};
  }
  if (value.isTensorList()) {
    return value.toTensorVector();
  }
  std::vector<torch::jit::IValue> elements;
  if (value.isTuple()) {
    elements = value.toTupleRef().elements().vec();
  } else if (value.isList()) {
    elements = value.toListRef().vec();
  } else {
    return std::nullopt;
  }
  std::vector<at::Tensor> tensors;
  for (const auto &element : elements) {
    if (!element.isTensor()) {
      return std::nullopt;
    }
    tensors.push_back(element.toTensor());
  }
  return tensors;
}

struct {
  void (*last_words)(int kind, const char *message) = nullptr;
  int code = 1;
  std::atomic<bool> told{false};
} terminated;

// Other threads may come here as well, and wait for the end; this one may come here again.
[[noreturn]] void terminate() {
  thread_local bool telling = false;
  if (!telling && terminated.told.exchange(true)) {
    std::this_thread::sleep_for(std::chrono::seconds(10));
  } else if (!telling) {
    telling = true;
    char *message = nullptr;
    const int kind = guarded(&message, []() -> int {
      if (const auto exception = std::current_exception()) {
        std::rethrow_exception(exception);
      }
      throw std::runtime_error("ended without an exception");
    });
    terminated.last_words(kind, message);
  }
  std::_Exit(terminated.code);
}

// What follows `key` in a JSON object of strings.
std::string member_of(const std::string &json, const std::string &key) {
  const auto at = json.find("\"" + key + "\":");
  const auto begin = at == std::string::npos ? at : json.find('"', at + key.size() + 3);
  const auto end = begin == std::string::npos ? begin : json.find('"', begin + 1);
  return end == std::string::npos ? "" : json.substr(begin + 1, end - begin - 1);
}

// A new folder where the environment wants temporary files.
std::string temporary_folder() {
  const char *parent = std::getenv("TMPDIR");
  std::string folder = std::string(parent != nullptr ? parent : "/tmp") + "/package-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    throw std::runtime_error("there is no folder to unpack it into");
  }
  return folder;
}

// Libtorch's own loader unpacks into /tmp, whatever the environment says, and leaves there what it has unpacked if the process is
// killed.
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
      throw std::runtime_error("it cannot be unpacked");
    }
    if (file.size() > 3 && file.compare(file.size() - 3, 3, ".so") == 0) {
      library = folder + "/" + file;
    } else if (file.find("wrapper_metadata.json") != std::string::npos) {
      compiled = member_of(std::string(begin, size), "AOTI_DEVICE_KEY");
    }
  }
  const std::string device = cuda_device < 0 ? "cpu" : "cuda";
  if (library.empty()) {
    throw std::runtime_error("it has no compiled program");
  }
  if (compiled != device) {
    throw std::runtime_error("it was compiled for " + compiled + ", not for " + device);
  }
  const auto &runners = torch::inductor::getAOTIModelRunnerRegistry();
  const auto runner = runners.find(device);
  if (runner == runners.end()) {
    throw std::runtime_error("this libtorch runs no packages on " + device);
  }
  const std::string index = cuda_device < 0 ? "" : ":" + std::to_string(cuda_device);
  // One instance without locks: batches run one after the other.
  return runner->second(library, 1, device + index, folder, true);
}

// The tensors among a package's arguments: the leaves of the tree that it keeps as JSON.
size_t arguments_of(Package &package) {
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

}  // namespace

std::optional<std::vector<at::Tensor>> run_program(packhorse_module &module, std::vector<at::Tensor> inputs) {
  if (module.package) {
    return module.package->boxed_run(std::move(inputs));
  }
  std::vector<torch::jit::IValue> arguments(inputs.begin(), inputs.end());
  inputs.clear();
  return tensors_of(module.module.forward(std::move(arguments)));
}

extern "C" {

void packhorse_message_free(char *message) { std::free(message); }

int packhorse_module_load(const char *path, const char *program, int cuda_device, int treatment, packhorse_module **module,
                          char **message) {
  return guarded(message, [&] {
    if (treatment == PACKHORSE_COMPILED) {
      *module = new packhorse_module{{}, load_package(path, program, cuda_device)};
      return PACKHORSE_OK;
    }
    // The interpreter's own compiler writes kernels when it first sees a shape, which is in the middle of serving. Who wants kernels
    // made of several operators has them compiled beforehand, into a package.
    torch::jit::overrideCanFuseOnGPU(false);
    torch::jit::Module loaded = torch::jit::load(path, device_of(cuda_device));
    loaded.eval();
    if (treatment >= PACKHORSE_FROZEN) {
      loaded = torch::jit::freeze(loaded);
    }
    if (treatment >= PACKHORSE_OPTIMIZED) {
      loaded = torch::jit::optimize_for_inference(loaded);
    }
    *module = new packhorse_module{std::move(loaded), nullptr};
    if (cuda_device >= 0) {
      // The parameters came by the default stream, which the lanes do not wait for.
      at::accelerator::synchronizeDevice(static_cast<c10::DeviceIndex>(cuda_device));
    }
    return PACKHORSE_OK;
  });
}

int packhorse_module_arity(const packhorse_module *module, size_t *required, size_t *accepted, char **message) {
  return guarded(message, [&] {
    if (module->package) {
      *required = *accepted = arguments_of(*module->package);
      return PACKHORSE_OK;
    }
    const auto &arguments = module->module.get_method("forward").function().getSchema().arguments();
    *required = 0;
    *accepted = arguments.size() - 1;  // without `self`
    for (size_t i = 1; i < arguments.size(); ++i) {
      *required += arguments[i].default_value().has_value() ? 0 : 1;
    }
    return PACKHORSE_OK;
  });
}

int packhorse_module_forward(packhorse_module *module, const packhorse_lane *lane, packhorse_tensor *const *inputs,
                             size_t input_count, packhorse_tensor **outputs, size_t capacity, size_t *output_count,
                             char **message) {
  return guarded(message, [&]() -> int {
    const OnLane on(*lane);
    std::vector<at::Tensor> arguments;
    for (size_t i = 0; i < input_count; ++i) {
      arguments.push_back(*unwrap(inputs[i]));
    }
    std::optional<std::vector<at::Tensor>> tensors = run_program(*module, std::move(arguments));
    if (!tensors) {
      return PACKHORSE_NO_TENSORS;
    }
    *output_count = tensors->size();
    if (tensors->size() > capacity) {
      return PACKHORSE_OK;
    }
    for (auto &output : *tensors) {
      if (output.layout() != c10::kStrided) {
        say(message, "a sparse tensor");
        return PACKHORSE_NO_TENSORS;
      }
      // A program may answer an input, or a buffer that its next run writes to, and that run may begin before this output is
      // copied out.
      if (output.use_count() > 1 || output.storage().use_count() > 1) {
        output = output.clone(at::MemoryFormat::Contiguous);
      }
    }
    for (size_t i = 0; i < tensors->size(); ++i) {
      outputs[i] = wrap(std::move((*tensors)[i]));
    }
    return PACKHORSE_OK;
  });
}

void packhorse_module_free(packhorse_module *module) { delete module; }

int packhorse_tensor_scalar_type(const packhorse_tensor *tensor) {
  return static_cast<int>(unwrap(tensor)->scalar_type());
}

void packhorse_exit_now(int code) { std::_Exit(code); }

void packhorse_on_terminate(void (*last_words)(int kind, const char *message), int code) {
  terminated.last_words = last_words;
  terminated.code = code;
  std::set_terminate(terminate);
}

}  // extern "C"

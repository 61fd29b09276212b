#include "meshwright/parallel/activation_checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>

#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "sdk/planning/checkpoint_scope.h"
#include "weight_gradients.h"

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::variable_list;

struct Generators {
  Tensor cpu, device;
};

std::optional<at::Generator> device_generator(const std::vector<Tensor>& inputs) {
  for (const Tensor& t : inputs)
    if (t.defined() && t.is_cuda()) return at::globalContext().defaultGenerator(t.device());
  return std::nullopt;
}

Tensor state_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
void set_state(at::Generator generator, const Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

Generators save_generators(const std::vector<Tensor>& inputs) {
  Generators out;
  out.cpu = state_of(at::detail::getDefaultCPUGenerator());
  if (auto generator = device_generator(inputs)) out.device = state_of(*generator);
  return out;
}
void restore_generators(const Generators& saved, const std::vector<Tensor>& inputs) {
  set_state(at::detail::getDefaultCPUGenerator(), saved.cpu);
  if (auto generator = device_generator(inputs); generator && saved.device.defined())
    set_state(*generator, saved.device);
}

// Autocast of the devices this library runs on.
struct Autocast {
  bool enabled[2], cache;
  at::ScalarType type[2];
  static constexpr at::DeviceType kDevices[2] = {at::kCPU, at::kCUDA};
  static Autocast current() {
    Autocast a;
    for (int i = 0; i < 2; ++i) {
      a.enabled[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      a.type[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
    a.cache = at::autocast::is_autocast_cache_enabled();
    return a;
  }
  void set() const {
    for (int i = 0; i < 2; ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], enabled[i]);
      at::autocast::set_autocast_dtype(kDevices[i], type[i]);
    }
    at::autocast::set_autocast_cache_enabled(cache);
  }
};

// The autocast of the first run around the second one. It counts as a scope of its own: with the
// last one the cache of cast weights is emptied, or the next forward would compute with the weights
// as they were before the optimizer's step.
class AutocastAgain {
 public:
  explicit AutocastAgain(const Autocast& then) : outside_(Autocast::current()) {
    then.set();
    at::autocast::increment_nesting();
  }
  ~AutocastAgain() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    outside_.set();
  }
  AutocastAgain(const AutocastAgain&) = delete;
  AutocastAgain& operator=(const AutocastAgain&) = delete;

 private:
  Autocast outside_;
};

// What once_under_recompute() has made in the first run of a module, in order. A module inside
// another that recomputes has one of its own, filled from the outer one's.
struct Kept {
  std::vector<std::vector<Tensor>> made;
  size_t next = 0;
  bool again = false;
};
struct KeptScope {
  Kept* kept;
  KeptScope* outer;
};
thread_local KeptScope* kept_scope = nullptr;

std::vector<Tensor> make_once(KeptScope* scope, const std::function<std::vector<Tensor>()>& make) {
  if (scope == nullptr) return make();
  Kept& kept = *scope->kept;
  if (kept.again) return kept.made.at(kept.next++);
  return kept.made.emplace_back(make_once(scope->outer, make));
}

class InKeptScope {
 public:
  InKeptScope(Kept& kept, bool again) : scope_{&kept, kept_scope} {
    kept.next = 0;
    kept.again = again;
    kept_scope = &scope_;
  }
  ~InKeptScope() { kept_scope = scope_.outer; }
  InKeptScope(const InKeptScope&) = delete;
  InKeptScope& operator=(const InKeptScope&) = delete;

 private:
  KeptScope scope_;
};

struct Recompute : torch::autograd::Node {
  std::function<std::vector<Tensor>(const std::vector<Tensor>&)> run;
  std::vector<torch::autograd::SavedVariable> saved;
  std::vector<size_t> differentiable;  // the outputs that have history here, by place in the result
  Generators generators;
  Autocast autocast;
  std::shared_ptr<const Sequence> sequence;
  // Where the second run's weights put off their gradients: on a device it runs in another thread.
  std::shared_ptr<detail::WeightGradients> weights;
  Kept kept;

  std::string name() const override { return "Recompute"; }
  void release_variables() override {
    saved.clear();
    kept.made.clear();
    weights.reset();
    run = nullptr;
  }
  variable_list apply(variable_list&& grads) override {
    if (!run)
      throw Error(ErrorCode::bad_module,
                  "backward ran twice through a module under activation checkpointing")
          .help("run the forward again before the second backward");
    std::vector<Tensor> inputs;
    for (auto& s : saved) {
      Tensor t = s.unpack();
      if (t.defined()) t = t.detach().set_requires_grad(t.requires_grad());
      inputs.push_back(t);
    }
    Generators now = save_generators(inputs);
    std::vector<Tensor> outputs;
    {
      c10::AutoGradMode grad(true);
      restore_generators(generators, inputs);
      AutocastAgain scope(autocast);
      SequenceScope tokens(sequence);
      detail::WeightGradientScope queue(weights);
      InKeptScope again(kept, /*again=*/true);
      outputs = run(inputs);
      restore_generators(now, inputs);
    }
    variable_list roots, root_grads;
    for (size_t i = 0; i < differentiable.size(); ++i) {
      const Tensor& out = outputs.at(differentiable[i]);
      if (!grads[i].defined() || !out.requires_grad()) continue;
      roots.push_back(out);
      root_grads.push_back(grads[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    variable_list result;
    for (const Tensor& t : inputs)
      if (t.defined() && t.requires_grad())
        result.push_back(t.grad());
      else
        result.emplace_back();
    return result;
  }
};

std::vector<Tensor> recomputed(ForwardCall call) {
  if (!c10::GradMode::is_enabled()) return call.run(call.inputs);
  auto node = std::shared_ptr<Recompute>(new Recompute(), torch::autograd::deleteNode);
  node->generators = save_generators(call.inputs);
  node->autocast = Autocast::current();
  node->sequence = current_sequence();
  node->weights = detail::current_weight_gradients();
  std::vector<Tensor> outputs;
  {
    // With gradients on, as in the second run: some operators take another path without them, whose
    // last bits differ. What this run saves is let go with its outputs.
    std::vector<Tensor> inputs;
    for (const Tensor& t : call.inputs)
      inputs.push_back(t.defined() ? t.detach().set_requires_grad(t.requires_grad()) : t);
    InKeptScope first(node->kept, /*again=*/false);
    outputs = call.run(inputs);
  }
  // Nothing here or before it trains: no backward will come.
  if (std::none_of(outputs.begin(), outputs.end(),
                   [](const Tensor& t) { return t.defined() && t.requires_grad(); }))
    return outputs;
  node->set_next_edges(torch::autograd::collect_next_edges(call.inputs));
  for (const Tensor& t : call.inputs) node->saved.emplace_back(t, /*is_output=*/false);
  node->run = std::move(call.run);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !torch::autograd::isDifferentiableType(outputs[i].scalar_type()))
      continue;
    outputs[i] = outputs[i].detach();  // it may be one of the inputs
    torch::autograd::set_history(outputs[i], node);
    node->differentiable.push_back(i);
  }
  return outputs;
}

torch::nn::Module* child(torch::nn::Module& module, std::initializer_list<const char*> names) {
  auto children = module.named_children();
  for (const char* name : names)
    if (children.contains(name)) return children[name].get();
  return nullptr;
}

}  // namespace

std::vector<Tensor> once_under_recompute(const std::function<std::vector<Tensor>()>& make) {
  return make_once(kept_scope, make);
}

void checkpoint_activations(torch::nn::Module& module) {
  HookHost* host = HookHost::of(module);
  if (host == nullptr)
    throw Error(ErrorCode::bad_module,
                "activation checkpointing cannot run " + module.name() + " again: it has no hooks")
        .key("distributed.activation_checkpointing")
        .help("declare the module with MESHWRIGHT_MODULE(...) in place of TORCH_MODULE(...)")
        .help("set distributed.activation_checkpointing = \"none\"");
  host->around = recomputed;
}

std::vector<std::string> checkpoint_layers(torch::nn::Module& model,
                                           std::span<const std::string> layers,
                                           ActivationCheckpointing mode, bool whole_layers) {
  std::vector<std::string> out;
  if (mode == ActivationCheckpointing::none) return out;
  auto modules = model.named_modules("", /*include_self=*/false);
  for (const std::string& name : layers) {
    if (!modules.contains(name))
      throw Error(ErrorCode::internal, "the model has no module " + name);
    torch::nn::Module& layer = *modules[name];
    std::vector<torch::nn::Module*> parts;
    if (mode == ActivationCheckpointing::selective || !whole_layers) {
      using namespace checkpoint_scope;
      parts = {child(layer, kMlps), child(layer, kFirstNorms), child(layer, kSecondNorms)};
      if (mode == ActivationCheckpointing::full) parts.push_back(child(layer, kAttentions));
    }
    std::erase(parts, nullptr);
    if (parts.empty()) parts.push_back(&layer);
    for (torch::nn::Module* part : parts) {
      checkpoint_activations(*part);
      std::string part_name = name;
      for (const auto& item : layer.named_children())
        if (item.value().get() == part) part_name += "." + item.key();
      out.push_back(part_name);
    }
  }
  return out;
}

}  // namespace meshwright

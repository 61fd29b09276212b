#include "engine/models/running/layer_graphs.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "engine/models/running/decoder.h"
#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/moe.h"
#include "sdk/base/device_graphs.h"

namespace meshwright::modules {

namespace {

using at::Tensor;
using torch::autograd::variable_list;

constexpr const char* kGraphsKey = "dist_env.cuda_graphs";

Error without_graphs(ErrorCode code, const std::string& what) {
  return Error(code, what).key(kGraphsKey).help("set dist_env.cuda_graphs = false");
}

}  // namespace

// What the graphs read and write lies at the same places for as long as they are launched.
struct LayerGraphs::Captured {
  Tensor x, y, grad;     // grad: of y
  RotaryTable rotary;    // read
  RotaryTable copied;    // whose numbers these are
  variable_list leaves;  // parameters that train
  variable_list grads;   // of x, and of them; undefined: none is wanted
  std::vector<Tensor> parameters;
  std::vector<const void*> places;
  // What the layer's modules multiply by, where they have it.
  struct Handle {
    const Tensor* of_module;
    const c10::TensorImpl* was;
  };
  std::vector<Handle> handles;
  std::vector<std::shared_ptr<torch::nn::Module>> parts;  // that have them, below the layer
  std::unique_ptr<DeviceGraph> forward, backward;
  std::atomic<bool> waits = false;  // for its backward

  void check_places() const {
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].const_data_ptr() != places[i])
        throw without_graphs(
            ErrorCode::bad_module,
            "a layer's parameters moved, which its CUDA graph reads where they were");
  }
  // While the layer is there.
  void check_handles() const {
    for (const Handle& handle : handles)
      if (handle.of_module->unsafeGetTensorImpl() != handle.was)
        throw without_graphs(
            ErrorCode::bad_module,
            "a layer's parameters are others than those that its CUDA graph reads");
  }
};

namespace {

using Captured = LayerGraphs::Captured;

// Of a forward: launched, or operator by operator. The second asks for the same gradients as the
// first, and not for what a unit would have written to its place (weight_gradients.h), so that
// numbers do not depend on which of them came when.
struct LayerBackward : torch::autograd::Node {
  std::shared_ptr<Captured> captured;  // null: not launched
  Tensor y;                            // then: with its history
  variable_list inputs;                // and what it is made of: x, parameters that train

  ~LayerBackward() override { let_go(); }
  std::string name() const override { return "MeshwrightLayerGraph"; }
  void release_variables() override { let_go(); }
  variable_list apply(variable_list&& grads) override {
    if (!captured && !y.defined())
      throw Error(ErrorCode::bad_module, "backward ran twice through a layer of CUDA graphs")
          .key(kGraphsKey)
          .help("run the forward again before the second backward");
    if (c10::GradMode::is_enabled())
      throw without_graphs(ErrorCode::bad_module,
                           "a layer of CUDA graphs has no second derivatives");
    variable_list out = captured ? launch(grads[0]) : run(grads[0]);
    let_go();
    return out;
  }

 private:
  variable_list launch(const Tensor& grad) const {
    captured->check_places();
    Tensor into = captured->grad;
    if (grad.defined())
      into.copy_(grad);
    else
      into.zero_();
    captured->backward->launch();
    // Copies of the handles: who adds up gradients must not take them for its own.
    variable_list out = captured->grads;
    // Who asks for gradients keeps them, and the next launch is theirs.
    const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
    if (wanted != nullptr && !wanted->empty())
      for (Tensor& one : out)
        if (one.defined()) one = one.clone();
    return out;
  }
  variable_list run(const Tensor& grad) const {
    const bool to_x = inputs[0].requires_grad();
    variable_list out = torch::autograd::grad(
        {y}, to_x ? inputs : variable_list(inputs.begin() + 1, inputs.end()),
        {grad.defined() ? grad : at::zeros_like(y)}, /*retain_graph=*/std::nullopt,
        /*create_graph=*/false, /*allow_unused=*/true);
    if (!to_x) out.insert(out.begin(), Tensor());
    return out;
  }
  void let_go() {
    if (captured) captured->waits = false;
    captured.reset();
    y.reset();
    inputs.clear();
  }
};

// What a layer's graphs are made for, in numbers.
std::vector<int64_t> shape_of(const Tensor& x, const RotaryTable& rotary,
                              const std::vector<Tensor>& parameters) {
  std::vector<int64_t> out;
  for (const Tensor& t : {x, rotary.cos, rotary.sin}) {
    out.push_back(static_cast<int64_t>(t.scalar_type()));
    out.insert(out.end(), t.sizes().begin(), t.sizes().end());
    out.insert(out.end(), t.strides().begin(), t.strides().end());
  }
  out.push_back(x.requires_grad() ? 1 : 0);
  for (const Tensor& parameter : parameters) out.push_back(parameter.requires_grad() ? 1 : 0);
  return out;
}

// Whether a backward comes through the layer.
bool trains(const Tensor& x, const std::vector<Tensor>& parameters) {
  return x.requires_grad() || std::any_of(parameters.begin(), parameters.end(),
                                          [](const Tensor& one) { return one.requires_grad(); });
}

// Whether a graph of autograd is there that has one of them. What adds up its gradients belongs to
// the stream of that forward, for which no captured backward can wait.
bool in_use(const std::vector<Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const Tensor& one) {
    return one.requires_grad() && torch::autograd::impl::try_get_grad_accumulator(one) != nullptr;
  });
}

bool may_launch(const Tensor& x) {
  if (!x.is_cuda() || !c10::GradMode::is_enabled() || device_graphs() == nullptr ||
      at::autocast::is_autocast_enabled(at::kCUDA))
    return false;
  const std::shared_ptr<const Sequence> sequence = current_sequence();
  return sequence == nullptr || (!sequence->documents.defined() && !sequence->positions.defined());
}

void add_handles(const torch::nn::Module& module, std::vector<Captured::Handle>& handles) {
  auto add = [&](const Tensor& one) { handles.push_back({&one, one.unsafeGetTensorImpl()}); };
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module))
    add(linear->weight), add(linear->bias);
  if (const auto* norm = dynamic_cast<const RMSNormImpl*>(&module)) add(norm->weight);
  if (const auto* norm = dynamic_cast<const LayerNormImpl*>(&module))
    add(norm->weight), add(norm->bias);
}

std::shared_ptr<Captured> capture(const Tensor& x, const RotaryTable& rotary,
                                  const std::vector<Tensor>& parameters,
                                  const torch::nn::Module& module,
                                  const LayerGraphs::Layer& layer) {
  auto out = std::make_shared<Captured>();
  out->parameters = parameters;
  out->parts = module.modules(/*include_self=*/false);
  add_handles(module, out->handles);
  for (const auto& part : out->parts) add_handles(*part, out->handles);
  for (const Tensor& parameter : out->parameters) {
    out->places.push_back(parameter.const_data_ptr());
    if (parameter.requires_grad()) out->leaves.push_back(parameter);
  }
  {
    const c10::NoGradGuard no_grad;
    out->x = at::empty_like(x);
    out->rotary = {at::empty_like(rotary.cos), at::empty_like(rotary.sin)};
  }
  out->x.set_requires_grad(x.requires_grad());
  variable_list inputs;
  if (x.requires_grad()) inputs.push_back(out->x);
  inputs.insert(inputs.end(), out->leaves.begin(), out->leaves.end());
  const auto device = static_cast<int>(x.device().index());
  out->forward = device_graphs()->make(device, nullptr);
  out->backward = device_graphs()->make(device, out->forward.get());
  Tensor y;
  out->forward->capture([&] { y = layer(out->x, out->rotary); });
  out->y = y.detach();
  out->grad = at::empty_like(out->y);
  out->backward->capture([&] {
    out->grads = torch::autograd::grad({y}, inputs, {out->grad}, /*retain_graph=*/std::nullopt,
                                       /*create_graph=*/false, /*allow_unused=*/true);
  });
  if (!x.requires_grad()) out->grads.insert(out->grads.begin(), Tensor());
  return out;
}

// y as what the layer made of x.
template <class Fill>
Tensor joined(const Tensor& y, const Tensor& x, const variable_list& leaves, const Fill& fill) {
  auto node = std::shared_ptr<LayerBackward>(new LayerBackward(), torch::autograd::deleteNode);
  variable_list inputs{x};
  inputs.insert(inputs.end(), leaves.begin(), leaves.end());
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  fill(*node);
  Tensor out = y.detach();
  torch::autograd::set_history(out, node);
  return out;
}

Tensor launch(const std::shared_ptr<Captured>& captured, const Tensor& x,
              const RotaryTable& rotary) {
  captured->check_places();
  captured->check_handles();
  {
    const c10::NoGradGuard no_grad;
    captured->x.copy_(x);
    // The same tables serve many forwards, and are held: no others can have their place.
    RotaryTable& copied = captured->copied;
    if (!copied.cos.defined() || copied.cos.const_data_ptr() != rotary.cos.const_data_ptr() ||
        copied.sin.const_data_ptr() != rotary.sin.const_data_ptr()) {
      captured->rotary.cos.copy_(rotary.cos);
      captured->rotary.sin.copy_(rotary.sin);
      copied = rotary;
    }
  }
  captured->forward->launch();
  captured->waits = true;
  return joined(captured->y, x, captured->leaves,
                [&](LayerBackward& node) { node.captured = captured; });
}

// As ever, but for the way of its backward.
Tensor run(const Tensor& x, const RotaryTable& rotary, const std::vector<Tensor>& parameters,
           const LayerGraphs::Layer& layer) {
  const Tensor in = x.detach().set_requires_grad(x.requires_grad());
  const Tensor y = layer(in, rotary);
  if (!y.requires_grad()) return y;
  variable_list leaves;
  for (const Tensor& parameter : parameters)
    if (parameter.requires_grad()) leaves.push_back(parameter);
  return joined(y, x, leaves, [&](LayerBackward& node) {
    node.y = y;
    node.inputs = leaves;
    node.inputs.insert(node.inputs.begin(), in);
  });
}

}  // namespace

Tensor LayerGraphs::forward(const Tensor& x, const RotaryTable& rotary,
                            const torch::nn::Module& module, const Layer& layer) {
  if (!may_launch(x)) return layer(x, rotary);
  const std::vector<Tensor> now = captured_ ? std::vector<Tensor>() : module.parameters();
  const std::vector<Tensor>& parameters = captured_ ? captured_->parameters : now;
  if (!trains(x, parameters)) return layer(x, rotary);
  std::vector<int64_t> shape = shape_of(x, rotary, parameters);
  if (!captured_) {
    // The first forward makes what is made at first.
    if (std::exchange(seen_, shape) != shape || in_use(parameters))
      return run(x, rotary, parameters, layer);
    try {
      captured_ = capture(x, rotary, parameters, module, layer);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      throw without_graphs(ErrorCode::bad_module,
                           std::string("a layer cannot be captured as CUDA graphs: ") +
                               error.what_without_backtrace());
    }
  } else if (shape != seen_ || captured_->waits) {
    return run(x, rotary, parameters, layer);
  }
  return launch(captured_, x, rotary);
}

void graph_layers(torch::nn::Module& model, c10::Device device) {
  if (!device.is_cuda() || device_graphs() == nullptr)
    throw without_graphs(ErrorCode::device_unavailable,
                         std::string(kGraphsKey) +
                             " = true needs a CUDA device, and this rank computes on " +
                             device.str())
        .help("set dist_env.device = \"cuda\" on a machine with a device");
  auto refuse = [](const std::string& what) {
    return without_graphs(ErrorCode::not_in_release, std::string(kGraphsKey) + ": " + what);
  };
  int64_t layers = 0;
  for (const auto& module : model.modules()) {
    auto* layer = dynamic_cast<DecoderLayerImpl*>(module.get());
    if (layer == nullptr) continue;
    for (const auto& part : layer->modules()) {
      if (dynamic_cast<MoeImpl*>(part.get()) != nullptr)
        throw refuse("experts take another number of tokens in each forward");
      const auto* core = dynamic_cast<AttentionCoreImpl*>(part.get());
      if (core != nullptr && core->options().window > 0)
        throw refuse("windows of attention may need masks, which are not kept for graphs");
      if (core != nullptr && core->options().dropout > 0)
        throw refuse("dropout has other random numbers in each forward");
    }
    layer->graphs = std::make_shared<LayerGraphs>();
    ++layers;
  }
  if (layers == 0) throw refuse("this model has no layers whose work can be captured");
}

}  // namespace meshwright::modules

#include "sdk/kit/conformance/training/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>

#include "meshwright/nn/layers.h"
#include "meshwright/nn/loss.h"
#include "meshwright/nn/stage.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {

using at::Tensor;

namespace {

// What it adds depends on the tokens before, which lie on other ranks where ranks share samples.
// Tensor parallelism cuts its heads; the norms of queries and keys stay whole and see this rank's.
struct AttentionImpl : torch::nn::Module {
  AttentionImpl() {
    auto projection = [&](const char* name) {
      return register_module(name, Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    };
    q = projection("q_proj"), k = projection("k_proj"), v = projection("v_proj");
    q_norm = register_module("q_norm", RMSNorm(kWidth / kHeads, 1e-6));
    k_norm = register_module("k_norm", RMSNorm(kWidth / kHeads, 1e-6));
    o = projection("o_proj");
    core = register_module("core", AttentionCore(AttentionOptions{.scale = 0.5}));
  }
  Tensor forward(const Tensor& x) {
    auto heads = [&](const Tensor& of) {
      return of.view({x.size(0), x.size(1), -1, kWidth / kHeads});
    };
    return o(core(q_norm(heads(q(x))), k_norm(heads(k(x))), heads(v(x))).flatten(2));
  }
  Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  RMSNorm q_norm{nullptr}, k_norm{nullptr};
  AttentionCore core{nullptr};
};
MESHWRIGHT_MODULE(Attention);

// What tensor parallelism cuts.
struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    up = register_module("up_proj", Linear(torch::nn::LinearOptions(kWidth, kInner)));
    down = register_module("down_proj", Linear(torch::nn::LinearOptions(kInner, kWidth)));
  }
  Tensor forward(const Tensor& x) {
    ++runs;
    return down(up(x).tanh());
  }
  Linear up{nullptr}, down{nullptr};
  int64_t runs = 0;
};
MESHWRIGHT_MODULE(Mlp);

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    norm = register_module("input_layernorm", RMSNorm(kWidth, 1e-6));
    attention = register_module("self_attn", Attention());
    mlp = register_module("mlp", Mlp());
  }
  Tensor forward(const Tensor& x) {
    Tensor h = norm(x);
    return x + attention(h) + mlp(h);
  }
  RMSNorm norm{nullptr};
  Attention attention{nullptr};
  Mlp mlp{nullptr};
};
MESHWRIGHT_MODULE(Layer);

}  // namespace

NetImpl::NetImpl() {
  embed = register_module("embed_tokens", Embedding(kVocabulary, kWidth));
  register_module("layers", layers);
  for (int64_t i = 0; i < kLayers; ++i) layers->push_back(Layer());
  head =
      register_module("lm_head", Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
}

Tensor NetImpl::forward(const Tensor& x) {
  const StagePart part = current_stage();
  Tensor h = part.first ? embed(x) : x;
  for (int64_t i = part.begin; i < part.end_of(kLayers); ++i)
    h = layers[static_cast<size_t>(i)]->as<Layer>()->forward(h);
  return part.last ? head(h) : h;
}

int64_t NetImpl::mlp_runs() const {
  int64_t out = 0;
  for (const auto& layer : *layers)
    if (const auto* mine = layer->as<Layer>()) out += mine->mlp->runs;
  return out;
}

Net make_net() {
  Net net;
  c10::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const Tensor& p : net->parameters())
    p.copy_(at::randn(p.sizes(), at::detail::createCPUGenerator(seed++)) * 0.3);
  return net;
}

Tensor samples(int64_t step, std::span<const int64_t> rows) {
  std::vector<Tensor> out;
  for (int64_t row : rows)
    out.push_back(at::randint(
        0, kVocabulary, {1, kLength + 1},
        at::detail::createCPUGenerator(static_cast<uint64_t>(step * kRows + row + 1)), at::kLong));
  return at::cat(out);
}

Tensor loss_sum_of(Net& net, const Tensor& ids, const ContextParallel* context) {
  Tensor input = ids.narrow(1, 0, kLength), targets = ids.narrow(1, 1, kLength);
  if (context == nullptr) return cross_entropy_sum(net(input), targets);
  SequenceScope scope = context->scope(kLength, ids.size(0));
  return cross_entropy_sum(net(context->shard(input, 1, 0)), context->shard(targets, 1, -100));
}

Tensor stage_output(Net& net, const Tensor& ids, const Tensor& hidden, bool last) {
  Tensor out = net(hidden.defined() ? hidden : ids.narrow(1, 0, kLength));
  return last ? cross_entropy_sum(out, ids.narrow(1, 1, kLength)) : out;
}

namespace {

Tensors cloned(const Tensors& tensors) {
  Tensors out;
  for (const auto& [name, tensor] : tensors) out[name] = tensor.detach().clone();
  return out;
}

// Scales and clips (semantics 8.3); returns the norm before clipping.
double clip(Tensors& gradients, const Clipping& how) {
  double squares = 0;
  for (auto& [name, gradient] : gradients)
    squares += gradient.mul_(how.scale).to(at::kDouble).square().sum().item<double>();
  const double norm = std::sqrt(squares);
  if (how.max_norm > 0)
    for (auto& [name, gradient] : gradients)
      gradient.mul_(std::min(1.0, how.max_norm / (norm + 1e-6)));
  return norm;
}

double backward(Net& net, int64_t step, std::span<const int64_t> rows) {
  Tensor loss =
      loss_sum_of(net, samples(step, rows)) / static_cast<double>(std::ssize(rows) * kLength);
  loss.backward();
  return loss.item<double>();
}

Tensors take_gradients(Net& net) {
  Tensors out;
  for (auto& item : net->named_parameters()) {
    out[item.key()] = item.value().grad();
    item.value().mutable_grad() = Tensor();
  }
  return out;
}

}  // namespace

double clipped_by(const Clipping& how, double norm) {
  return how.scale * (how.max_norm > 0 ? std::min(1.0, how.max_norm / (norm + 1e-6)) : 1.0);
}

TrainingState first_state() {
  TrainingState out;
  for (const auto& item : make_net()->named_parameters()) {
    out.parameters[item.key()] = item.value().detach();
    out.momenta[item.key()] = at::zeros_like(out.parameters[item.key()]);
  }
  return out;
}

void advance(Reference& reference, double loss, Tensors gradients) {
  c10::NoGradGuard no_grad;
  const TrainingState& before = reference.states.back();
  TrainingState now{cloned(before.parameters), cloned(before.momenta)};
  reference.losses.push_back(loss);
  reference.norms.push_back(
      clip(gradients, clipping_of(static_cast<int64_t>(reference.states.size()) - 1)));
  for (auto& [name, gradient] : gradients) {
    now.momenta[name].mul_(kMomentum).add_(gradient);
    now.parameters[name].sub_(now.momenta[name], kRate);
  }
  reference.gradients.push_back(std::move(gradients));
  reference.states.push_back(std::move(now));
}

Reference plain_loop() {
  Reference out;
  out.states.push_back(first_state());
  std::vector<int64_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t step = 0; step < kSteps; ++step) {
    LossAndGradients of = backward_at(out.states.back().parameters, step, rows);
    advance(out, of.loss, std::move(of.gradients));
  }
  return out;
}

LossAndGradients backward_at(const Tensors& parameters, int64_t step,
                             std::span<const int64_t> rows) {
  Net net = make_net();
  {
    c10::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) item.value().copy_(parameters.at(item.key()));
  }
  const double loss = backward(net, step, rows);
  return {loss, take_gradients(net)};
}

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return one_line(error);
  } catch (const std::exception& error) {
    // The first line: LibTorch's exceptions go on with a backtrace.
    const std::string text = error.what();
    return "it throws: " + text.substr(0, text.find('\n'));
  } catch (...) {
    return "it throws what is no std::exception";
  }
  return "";
}

int64_t ModelBatch::count() const { return targets.ne(-100).sum().item<int64_t>(); }

ModelUnderTest::ModelUnderTest(const ModelFamily& family, const ModelRequest& request,
                               const detail::PluginCode* code)
    : family_(family), request_(request), code_(code), outline_(family.outline(request)) {
  first_ = detail::call_plugin(code_, "make", [&] { return family.make(request); });
  if (first_ == nullptr) throw std::runtime_error("make() returned nothing");
  if (first_->module() == nullptr) throw std::runtime_error("module() returned nothing");
  first_ = detail::guarded_running(code_, std::move(first_), outline_.vocab_size);
  length_ = std::min<int64_t>(16, first_->max_positions());
  if (outline_.max_positions > 0) length_ = std::min(length_, outline_.max_positions);
  if (length_ > 1) length_ -= length_ % 2;
}

std::unique_ptr<RunningModel> ModelUnderTest::make() const {
  std::unique_ptr<RunningModel> out =
      detail::call_plugin(code_, "make", [&] { return family_.make(request_); });
  if (out == nullptr || out->module() == nullptr)
    throw std::runtime_error("make() gave a model the first time, and none the second");
  out = detail::guarded_running(code_, std::move(out), outline_.vocab_size);
  fill_values(*out->module(), family_, request_, outline_);
  return out;
}

ModelBatch ModelUnderTest::batch(const RunningModel& model, int64_t step, int64_t begin,
                                 int64_t end) const {
  std::vector<Tensor> rows;
  for (int64_t row = begin; row < end; ++row)
    rows.push_back(at::randint(
        0, outline_.vocab_size, {1, length_ + 1},
        at::detail::createCPUGenerator(static_cast<uint64_t>(step * kModelRows + row + 1)),
        at::kLong));
  const Tensor ids = at::cat(rows);
  ModelBatch out{ids.narrow(1, 0, length_).clone(), ids.narrow(1, 1, length_).clone()};
  if (!model.changes_batches()) return out;
  HostBatch host;
  host.tokens = out.tokens, host.targets = out.targets;
  host.seed = 7, host.step = step, host.sample = step * kModelRows + begin;
  model.change_batch(host);
  return {host.tokens, host.targets};
}

std::vector<std::pair<std::string, Tensor>> parameters_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, Tensor>> out;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      out.emplace_back(item.key(), item.value());
  return out;
}

void fill_values(torch::nn::Module& module, const ModelFamily& family, const ModelRequest& request,
                 const ModelOutline& outline) {
  c10::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const auto& [name, parameter] : parameters_of(module)) {
    reallocate(parameter, parameter.sizes(), at::TensorOptions().dtype(at::kFloat));
    const Tensor noise =
        at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++), at::kFloat);
    const ParameterOutline* known = outline.find_parameter(name);
    const InitialValue value =
        known != nullptr ? family.initial_value(request, outline, *known) : InitialValue{};
    Tensor out = parameter.detach();
    switch (value.kind) {
      case InitialValue::Kind::constant:
        out.copy_(noise * 0.1 + value.value);
        break;
      case InitialValue::Kind::normal:
        out.copy_(noise * value.value);
        break;
      case InitialValue::Kind::uniform:
        out.copy_(noise.clamp(-1, 1) * value.value);
        break;
    }
    if (value.zero_row) out[*value.zero_row].zero_();
  }
}

Curve plain_curve(const ModelUnderTest& model) {
  Curve out;
  const std::unique_ptr<RunningModel> running = model.make();
  const auto parameters = parameters_of(*running->module());
  for (int64_t step = 0; step < kModelSteps; ++step) {
    const ModelBatch batch = model.batch(*running, step, 0, kModelRows);
    Tensor loss = running->loss_sum(running->forward(batch.tokens), batch.targets, {}, nullptr) /
                  static_cast<double>(batch.count());
    loss.backward();
    out.losses.push_back(loss.item<double>());
    c10::NoGradGuard no_grad;
    double squares = 0;
    for (const auto& [name, p] : parameters)
      if (p.grad().defined()) squares += p.grad().to(at::kDouble).square().sum().item<double>();
    out.norms.push_back(std::sqrt(squares));
    const double scale = std::min(1.0, kModelNorm / (out.norms.back() + 1e-6));
    for (const auto& [name, p] : parameters)
      if (p.grad().defined()) {
        p.detach().sub_(p.grad() * scale, kModelRate);
        p.mutable_grad() = Tensor();
      }
  }
  for (const auto& [name, p] : parameters) out.parameters[name] = p.detach().clone();
  return out;
}

}  // namespace meshwright::conformance

// One case of a model, by its name. Says what it found through the two functions.
extern "C" MESHWRIGHT_API void meshwright_check_model(
    const char* which, const meshwright::ModelFamily* family,
    const meshwright::ModelRequest* request, const meshwright::detail::PluginCode* code,
    void* context, meshwright::conformance::Say fail, meshwright::conformance::Say note) {
  using namespace meshwright::conformance;
  at::set_num_threads(1);
  std::vector<std::string> problems;
  std::string said;
  const std::string failure = failure_of([&] {
    ModelUnderTest model(*family, *request, code);
    const std::string name = which;
    said = name == "module"    ? check_module(model, problems)
           : name == "forward" ? check_forward(model, problems)
                               : check_layouts(model, problems);
  });
  // What was found before is mostly why.
  if (!failure.empty() && problems.empty()) problems.push_back(failure);
  for (const std::string& problem : problems) fail(context, problem.c_str());
  if (problems.empty()) note(context, said.c_str());
}

// The case of a strategy that trains: a small net on one, two and three ranks (threads) against a
// plain loop. A library of its own, which the kit loads when it is needed, because planning needs
// no LibTorch.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>

#include "meshwright/nn/layers.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/testing.h"
#include "sdk/conformance/probe.h"

namespace meshwright::conformance {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 10, kVocabulary = 13, kRows = 6, kLength = 5, kSteps = 4;
constexpr double kRate = 0.2, kTolerance = 1e-5;

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    norm = register_module("input_layernorm", RMSNorm(kWidth, 1e-6));
    mlp = register_module("mlp", Linear(torch::nn::LinearOptions(kWidth, kWidth)));
  }
  Tensor forward(const Tensor& x) { return x + mlp(norm(x)).tanh(); }
  RMSNorm norm{nullptr};
  Linear mlp{nullptr};
};
MESHWRIGHT_MODULE(Layer);

// Sizes that divide by no number of ranks.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed_tokens", Embedding(kVocabulary, kWidth));
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(Layer());
    head = register_module("lm_head",
                           Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = embed(ids);
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
  Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Net);

Net make_net() {
  Net net;
  c10::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const Tensor& p : net->parameters())
    p.copy_(at::randn(p.sizes(), at::detail::createCPUGenerator(seed++)) * 0.3);
  return net;
}

// Sample `row` of step `step`.
Tensor sample(int64_t step, int64_t row) {
  return at::randint(0, kVocabulary, {1, kLength + 1},
                     at::detail::createCPUGenerator(static_cast<uint64_t>(step * kRows + row + 1)),
                     at::kLong);
}

Tensor loss_of(Net& net, const Tensor& ids) {
  return at::cross_entropy_loss(net(ids.narrow(1, 0, kLength)).flatten(0, 1),
                                ids.narrow(1, 1, kLength).flatten());
}

struct Curve {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> parameters;
};

Curve plain_loop() {
  Curve out;
  Net net = make_net();
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<Tensor> rows;
    for (int64_t r = 0; r < kRows; ++r) rows.push_back(sample(step, r));
    Tensor loss = loss_of(net, at::cat(rows));
    loss.backward();
    c10::NoGradGuard no_grad;
    double squares = 0;
    for (const Tensor& p : net->parameters())
      squares += p.grad().to(at::kDouble).square().sum().item<double>();
    for (Tensor& p : net->parameters()) {
      p.sub_(p.grad(), kRate);
      p.mutable_grad() = Tensor();
    }
    out.losses.push_back(loss.item<double>());
    out.norms.push_back(std::sqrt(squares));
  }
  for (const auto& item : net->named_parameters())
    out.parameters[item.key()] = item.value().detach();
  return out;
}

// One rank's run, in two micro-batches; throws std::runtime_error with what is wrong.
Curve parallel_loop(const Subject& subject, const MeshRequest& mesh_request,
                    const std::shared_ptr<World>& world) {
  Instance strategy(subject);
  Curve out;
  Net net = make_net();
  ModelOutline outline = outline_of(*net);
  MeshPlan mesh = strategy->plan_mesh(mesh_request);
  const SharedOptions& shared = mesh_request.config.shared;
  TpPlan tp = strategy->translate_tp_plan(
      outline, {shared.sizes.tp, shared.sequence_parallel, shared.tp_plan});
  ParallelizeRequest request{net.ptr(), outline, mesh, tp, mesh_request.config, world};
  std::unique_ptr<ParallelModel> model = strategy->parallelize(request);
  if (!model) throw std::runtime_error("parallelize returned nothing");
  int64_t share = kRows / world->size();
  for (int64_t step = 0; step < kSteps; ++step) {
    model->begin_step();
    double loss_sum = 0;
    for (int64_t micro = 0; micro < 2; ++micro) {
      // Two micro-batches of unequal size: what counts is each one's weight.
      int64_t half = std::max<int64_t>(share / 2, 1), begin = micro == 0 ? 0 : half,
              end = micro == 0 ? half : share;
      model->begin_micro_batch(micro == 1 ? GradientSync::reduce : GradientSync::accumulate);
      std::vector<Tensor> rows;
      for (int64_t r = begin; r < end; ++r) rows.push_back(sample(step, world->rank() * share + r));
      Tensor loss = loss_of(net, at::cat(rows)) *
                    (static_cast<double>(end - begin) / static_cast<double>(share));
      loss.backward();
      loss_sum += loss.item<double>();
    }
    model->end_step();
    Tensor sum =
        at::scalar_tensor(loss_sum / static_cast<double>(world->size()), at::kDouble).view({1});
    model->data_group()->all_reduce(sum, ReduceOp::sum, /*control=*/true).wait();
    out.losses.push_back(sum.item<double>());
    out.norms.push_back(model->clip_grad_norm(0));
    c10::NoGradGuard no_grad;
    for (const FlatParameterGroup& group : model->update_groups()) {
      if (!group.grads.defined() || group.grads.numel() != group.values.numel())
        throw std::runtime_error(
            "an update group has " + std::to_string(group.values.numel()) + " values and " +
            std::to_string(group.grads.defined() ? group.grads.numel() : 0) + " gradients");
      group.values.sub_(group.grads, kRate);
    }
    model->after_optimizer_step();
  }
  std::set<std::string> named;
  for (const ParallelParameter& p : model->parameters()) {
    named.insert(p.name);
    const ParameterOutline* known = outline.find_parameter(p.name);
    if (known == nullptr)
      throw std::runtime_error("it lists a parameter " + p.name + ", which the model lacks");
    if (p.global_shape != known->shape)
      throw std::runtime_error("it gives " + p.name + " another global shape than the model");
    out.parameters[p.name] = model->full_tensor(p.name);
  }
  if (named.size() != outline.parameters.size())
    throw std::runtime_error("it lists " + std::to_string(named.size()) + " parameters of " +
                             std::to_string(outline.parameters.size()));
  return out;
}

// What differs most from the plain loop; "" when nothing does.
std::string difference(const Curve& found, const Curve& expected) {
  auto off = [](double a, double b) { return !(std::abs(a / b - 1) <= kTolerance); };
  auto numbers = [](const char* what, size_t step, double a, double b) {
    char text[160];
    std::snprintf(text, sizeof text, "%s of step %zu is %.8g, that of a plain loop %.8g", what,
                  step + 1, a, b);
    return std::string(text);
  };
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    if (off(found.losses[i], expected.losses[i]))
      return numbers("the loss", i, found.losses[i], expected.losses[i]);
    if (off(found.norms[i], expected.norms[i]))
      return numbers("the gradient norm", i, found.norms[i], expected.norms[i]);
  }
  for (const auto& [name, tensor] : expected.parameters) {
    auto theirs = found.parameters.find(name);
    if (theirs == found.parameters.end() || theirs->second.sizes() != tensor.sizes())
      return "full_tensor of " + name + " has another shape";
    double distance =
        (theirs->second.to(at::kDouble) - tensor.to(at::kDouble)).abs().max().item<double>();
    if (!(distance <= kTolerance))
      return "parameter " + name + " ends " + std::to_string(distance) +
             " away from that of a plain loop";
  }
  return "";
}

}  // namespace
}  // namespace meshwright::conformance

// Says what it found through the two functions.
extern "C" MESHWRIGHT_API void meshwright_check_training(const meshwright_strategy* about,
                                                         void* context,
                                                         void (*fail)(void*, const char*),
                                                         void (*note)(void*, const char*)) {
  using namespace meshwright;
  using namespace meshwright::conformance;
  Subject subject;
  subject.strategy = about;
  Curve expected = plain_loop();
  std::string looked_at;
  for (int64_t ranks : {1, 2, 3}) {
    Wish wish;
    wish.world = ranks;
    MeshRequest request = make_request(*about, wish);
    request.config.shared.mp = MixedPrecision{DType::float32, DType::float32, DType::float32, true};
    std::string where = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
    Answer<MeshPlan> mesh = ask([&] {
      Instance strategy(subject);
      return strategy->plan_mesh(request);
    });
    if (!mesh.value || !mesh.value->delegate_to.empty())
      continue;  // the case mesh says whether it may
    std::mutex mutex;
    std::vector<std::string> problems;
    try {
      run_ranks(
          ranks,
          [&](const std::shared_ptr<World>& world) {
            std::string problem;
            try {
              problem = difference(parallel_loop(subject, request, world), expected);
            } catch (const Error& error) {
              if (error.code() == ErrorCode::collective_timeout ||
                  error.code() == ErrorCode::collective_failed)
                throw;
              problem = one_line(error);
            }
            std::lock_guard lock(mutex);
            if (!problem.empty())
              problems.push_back("rank " + std::to_string(world->rank()) + ": " + problem);
          },
          std::chrono::seconds(10));
    } catch (const std::exception& error) {
      problems.push_back(error.what());
    }
    for (const std::string& problem : problems) fail(context, (where + ": " + problem).c_str());
    looked_at += (looked_at.empty() ? "" : ", ") + std::to_string(ranks);
  }
  if (looked_at.empty())
    fail(context, "it plans no mesh of 1, 2 or 3 ranks, so nothing could be trained");
  else
    note(context, ("trained on " + looked_at + " ranks as a plain loop").c_str());
}

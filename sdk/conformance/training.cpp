// The case of a strategy that trains: a small net on one, two and three ranks (threads) against a
// plain loop; and, where it takes cp_size, on ranks that share samples. A library of its own, which
// the kit loads when it is needed, because planning needs no LibTorch.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
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
#include <span>

#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/loss.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/testing.h"
#include "sdk/conformance/probe.h"

namespace meshwright::conformance {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 10, kVocabulary = 13, kRows = 6, kLength = 5, kSteps = 4;
constexpr double kRate = 0.2, kTolerance = 1e-5;

// Two heads of queries, keys and values. What it adds depends on the tokens before, which lie on
// other ranks where ranks share samples.
struct AttentionImpl : torch::nn::Module {
  AttentionImpl() {
    in = register_module("in", Linear(torch::nn::LinearOptions(kWidth, 3 * kWidth)));
    core = register_module("core", AttentionCore(AttentionOptions{.scale = 0.5}));
  }
  Tensor forward(const Tensor& x) {
    Tensor parts = in(x).view({x.size(0), x.size(1), 6, kWidth / 2});
    return core(parts.narrow(2, 0, 2), parts.narrow(2, 2, 2), parts.narrow(2, 4, 2)).flatten(2);
  }
  Linear in{nullptr};
  AttentionCore core{nullptr};
};
MESHWRIGHT_MODULE(Attention);

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    norm = register_module("input_layernorm", RMSNorm(kWidth, 1e-6));
    attention = register_module("self_attn", Attention());
    mlp = register_module("mlp", Linear(torch::nn::LinearOptions(kWidth, kWidth)));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = norm(x);
    return x + attention(h) + mlp(h).tanh();
  }
  RMSNorm norm{nullptr};
  Attention attention{nullptr};
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

// The sum over the targets of some samples that this rank has, all of them without `context`.
Tensor loss_sum_of(Net& net, const Tensor& ids, const ContextParallel* context = nullptr) {
  Tensor input = ids.narrow(1, 0, kLength), targets = ids.narrow(1, 1, kLength);
  if (context == nullptr) return cross_entropy_sum(net(input), targets);
  SequenceScope scope = context->scope(kLength, ids.size(0));
  return cross_entropy_sum(net(context->shard(input, 1, 0)), context->shard(targets, 1, -100));
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
    Tensor loss = loss_sum_of(net, at::cat(rows)) / static_cast<double>(kRows * kLength);
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

// Which share of the rows a rank has.
int64_t data_rank(const MeshPlan& mesh, int64_t rank) {
  return mesh.device_mesh ? mesh.device_mesh->coordinate(rank, "dp") : rank;
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
  const std::shared_ptr<ContextParallel> context = model->context_parallel();
  if (shared.sizes.cp > 1 && !context)
    throw std::runtime_error(
        "its mesh has an axis cp, but its model no context_parallel(): no rank would know which "
        "tokens are its own (apply_context_parallel() makes it)");
  // Ranks of cp have the same rows.
  const int64_t share = kRows / mesh.dp, first = data_rank(mesh, world->rank()) * share;
  for (int64_t step = 0; step < kSteps; ++step) {
    model->begin_step();
    double loss_sum = 0;
    for (int64_t micro = 0; micro < 2; ++micro) {
      // Two micro-batches of unequal size: what counts is each one's weight.
      int64_t half = std::max<int64_t>(share / 2, 1), begin = micro == 0 ? 0 : half,
              end = micro == 0 ? half : share;
      model->begin_micro_batch(micro == 1 ? GradientSync::reduce : GradientSync::accumulate);
      std::vector<Tensor> rows;
      for (int64_t r = begin; r < end; ++r) rows.push_back(sample(step, first + r));
      // Gradients are averages over all ranks that have tokens of their own.
      Tensor loss = loss_sum_of(net, at::cat(rows), context.get()) *
                    (static_cast<double>(world->size()) / static_cast<double>(kRows * kLength));
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

using Say = void (*)(void*, const char*);

// Where it says what it finds.
struct Findings {
  void* context;
  Say fail;
};

// Trains on ranks that are threads; what is wrong goes to `findings`, led by `where`.
void train(const Subject& subject, const MeshRequest& request, const Curve& expected,
           const std::string& where, const Findings& findings) {
  std::mutex mutex;
  std::vector<std::string> problems;
  try {
    run_ranks(
        request.world_size,
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
  for (const std::string& problem : problems)
    findings.fail(findings.context, (where + ": " + problem).c_str());
}

// The same float32 job on some ranks.
MeshRequest request_of(const meshwright_strategy& about, int64_t ranks, int64_t cp) {
  Wish wish;
  wish.world = ranks;
  wish.cp = cp;
  MeshRequest request = make_request(about, wish);
  request.config.shared.mp = MixedPrecision{DType::float32, DType::float32, DType::float32, true};
  return request;
}

Answer<MeshPlan> plan_of(const Subject& subject, const MeshRequest& request) {
  return ask([&] {
    Instance strategy(subject);
    Diagnostics diagnostics;
    strategy->validate(request.config, diagnostics);
    diagnostics.throw_if_any();
    return strategy->plan_mesh(request);
  });
}

// Ranks that share samples, five tokens of which are padded to eight. What to note of it; a
// strategy may refuse cp_size.
std::string train_context(const Subject& subject, const Curve& expected, const Findings& findings) {
  struct Row {
    int64_t ranks;
    ContextMethod method;
    const char* name;
  };
  std::string looked_at;
  for (const Row& row : {Row{2, ContextMethod::all_gather, "all_gather"},
                         {2, ContextMethod::ring, "ring"},
                         {2, ContextMethod::ulysses, "ulysses"},
                         {4, ContextMethod::ring, "ring on 4 ranks"}}) {
    MeshRequest request = request_of(*subject.strategy, row.ranks, /*cp=*/2);
    request.config.shared.context.method = row.method;
    const Answer<MeshPlan> mesh = plan_of(subject, request);
    if (mesh.error && looked_at.empty())
      return "; cp_size = 2 is refused (" + code_string(mesh.error->code()) + ")";
    // Of other answers the case mesh says whether they may be.
    if (!mesh.value || !mesh.value->device_mesh || mesh.value->device_mesh->find_size("cp") != 2)
      continue;
    const std::string where = std::to_string(row.ranks) + " ranks, cp_size 2, " + row.name;
    train(subject, request, expected, where, findings);
    looked_at += (looked_at.empty() ? "" : ", ") + std::string(row.name);
  }
  return looked_at.empty() ? "" : "; with cp_size = 2 by " + looked_at;
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
  const Findings findings{context, fail};
  const Curve expected = plain_loop();
  std::string looked_at;
  for (int64_t ranks : {1, 2, 3}) {
    const MeshRequest request = request_of(*about, ranks, /*cp=*/1);
    const Answer<MeshPlan> mesh = plan_of(subject, request);
    if (!mesh.value || !mesh.value->delegate_to.empty())
      continue;  // the case mesh says whether it may
    train(subject, request, expected, std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"),
          findings);
    looked_at += (looked_at.empty() ? "" : ", ") + std::to_string(ranks);
  }
  if (looked_at.empty())
    return fail(context, "it plans no mesh of 1, 2 or 3 ranks, so nothing could be trained");
  const std::string shared = train_context(subject, expected, findings);
  note(context, ("trained on " + looked_at + " ranks as a plain loop" + shared).c_str());
}

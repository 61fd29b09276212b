// Expert parallelism: a model of mixture-of-experts layers trains as on one process however uneven
// the routing is, and sends no more than it has to. That it does on every mesh, beside the other
// axes and with layers recomputed: engine/train/run/tests/expert_parallel_test.cpp.
#include "meshwright/parallel/expert_parallel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <map>
#include <mutex>

#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/unit_rules.h"
#include "sdk/base/check_parts.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/tests/sampled.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace expert_parallel_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kWidth = 8, kInner = 12, kExperts = 4, kLength = 6, kSamples = 8;

Tensor seeded(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

MoeConfig block_config() {
  MoeConfig c;
  c.dim = kWidth;
  c.moe_inter_dim = kInner;
  c.n_routed_experts = kExperts;
  c.n_activated_experts = 2;
  c.norm_topk_prob = true;
  c.softmax_before_topk = true;
  c.expert_bias = true;
  return c;
}

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const MoeConfig& config) : mlp(config) { register_module("mlp", mlp); }
  Tensor forward(const Tensor& x) { return x + mlp(x); }
  Moe mlp{nullptr};
};
MESHWRIGHT_MODULE(Layer);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const MoeConfig& config) {
    register_module("in", in);
    register_module("layers", layers);
    register_module("out", out);
    for (int i = 0; i < 2; ++i) layers->push_back(Layer(config).ptr());
    // Seeded values: each parameter another stream.
    c10::NoGradGuard no_grad;
    uint64_t seed = 1;
    for (Tensor& p : parameters()) p.copy_(seeded(p.sizes(), seed++).mul_(0.4));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = in(x);
    for (auto& layer : *layers) h = layer->as<Layer>()->forward(h);
    return out(h);
  }
  Linear in{Linear(torch::nn::LinearOptions(kWidth, kWidth))},
      out{Linear(torch::nn::LinearOptions(kWidth, 3))};
  torch::nn::ModuleList layers;
};
MESHWRIGHT_MODULE(Stack);

enum class Routes : uint8_t { free, all_to_first, never_last };

// Routing that is not even: the router's logits of one expert are far above or below the others'.
void bend(Stack& model, Routes routes) {
  c10::NoGradGuard no_grad;
  for (auto& [name, block] : find_moe_blocks(*model)) {
    if (routes == Routes::free) continue;
    block->gate()->weight.mul_(0.1);
    // A large constant feature (see samples()) times this column decides.
    block->gate()->weight.select(1, 0).zero_();
    block->gate()
        ->weight.index({routes == Routes::all_to_first ? 0 : kExperts - 1, 0})
        .fill_(routes == Routes::all_to_first ? 50 : -50);
  }
}

Tensor samples() {
  Tensor x = seeded({kSamples, kLength, kWidth}, 99);
  x.select(2, 0).fill_(4);
  return x;
}

struct Job {
  int64_t ranks = 2, ep = 2, accumulate = 1;
  TokenDispatcher dispatcher = TokenDispatcher::all_to_all;
  Routes routes = Routes::free;
  bool ruled = false;  // a unit rule of the model's class gives routers units of their own
  bool idle = false;   // the last data-parallel rank has no samples; the first has its ones too
};

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> parameters;
  std::vector<std::string> units;
};

std::vector<std::string> names_of(const std::vector<UnitSpec>& units) {
  std::vector<std::string> out;
  for (const UnitSpec& unit : units) out.push_back(unit.name);
  return out;
}

// A class whose rule keeps routers in float32.
const std::string& ruled_class() {
  static const std::string name =
      (register_unit_rule("RuledStack", dtype_aware_rule({"*.mlp.gate.*"})), "RuledStack");
  return name;
}

const int kSteps = steps_of(3, 4);

// Plain gradient descent on a sum over all samples, as the training loop does it: the loss is
// multiplied by the data-parallel ranks, whose mean the gradients are.
Result train(const Job& job, const std::shared_ptr<World>& world) {
  Stack model(block_config());
  bend(model, job.routes);
  StrategyConfig config;
  config.shared().sizes.ep = job.ep;
  config.shared().mp = {DType::float32, DType::float32, DType::float32, true};
  config.shared().moe.dispatcher = job.dispatcher;
  ModelOutline outline = outline_of(*model);
  if (job.ruled) outline.architecture = ruled_class();
  MeshPlan mesh = plan_sharded_mesh({world->size(), {}, config});
  TpPlan tp;
  ParallelizeRequest request{model.ptr(), outline, mesh, tp, config, world};
  Result result;
  const LiveShardingRequest live(request);
  const ShardingPlan plan = fully_sharded_plan(live, {});
  ShardGroups shards = shard_groups(request);
  shards.expert_parallel = apply_expert_parallel(request);
  std::vector<UnitSpec> units = bind_units(*model, outline, plan.units);
  for (size_t i = 0; i < units.size(); ++i)
    if (plan.units[i].experts) units[i].sharding = shards.expert_parallel->sharding();
  result.units = names_of(units);
  std::unique_ptr<ParallelModel> parallel =
      shard_model(model.ptr(), std::move(units), plan.sharding, shards, world);

  int64_t dp = world->size(), stream = world->rank();
  Tensor all = samples(), mine = all.narrow(0, stream * (kSamples / dp), kSamples / dp);
  if (job.idle && stream == 0)
    mine = at::cat({mine, all.narrow(0, (dp - 1) * (kSamples / dp), kSamples / dp)});
  if (job.idle && stream == dp - 1) mine = mine.narrow(0, 0, 0);
  for (int step = 0; step < kSteps; ++step) {
    parallel->begin_step();
    double loss = 0;
    for (int64_t i = 0; i < job.accumulate; ++i) {
      parallel->begin_micro_batch(i + 1 == job.accumulate ? GradientSync::reduce
                                                          : GradientSync::accumulate);
      int64_t each = mine.size(0) / job.accumulate;
      Tensor x = mine.narrow(0, i * each, each);
      Tensor y = model(x), part = y.square().sum() / static_cast<double>(kSamples);
      loss += part.item<double>();
      (part * static_cast<double>(dp)).backward();
    }
    parallel->end_step();
    result.norms.push_back(parallel->clip_grad_norm(1.0));
    Tensor sum = at::zeros({1}, at::kDouble).fill_(loss);
    parallel->data_group()->all_reduce(sum, ReduceOp::sum, true).wait();
    result.losses.push_back(sum.item<double>());
    c10::NoGradGuard no_grad;
    for (const FlatParameterGroup& update : parallel->update_groups())
      update.values.add_(update.grads, -0.1);
    parallel->after_optimizer_step();
  }
  for (const ParallelParameter& p : parallel->parameters())
    result.parameters[p.name] = parallel->full_tensor(p.name);
  return result;
}

double apart(double a, double b) { return std::abs(a - b) / std::max(1e-3, std::abs(b)); }

std::string compare(const Job& job) {
  Job alone;
  alone.ranks = alone.ep = 1;
  alone.routes = job.routes;
  Result expected = train(alone, World::single());
  std::string problems;
  for (double loss : expected.losses)
    if (!std::isfinite(loss)) problems += "one process diverges; ";
  std::mutex mutex;
  run_ranks(job.ranks, [&](const std::shared_ptr<World>& world) {
    Result found = train(job, world);
    std::lock_guard lock(mutex);
    auto told = [&](const std::string& what, double far) {
      if (!(far <= 1e-5) && problems.size() < 400)
        problems += "rank " + std::to_string(world->rank()) + ": " + what + " is off by " +
                    std::to_string(far) + "; ";
    };
    for (int i = 0; i < kSteps; ++i) {
      auto at = static_cast<size_t>(i);
      told("loss of step " + std::to_string(i), apart(found.losses[at], expected.losses[at]));
      told("norm of step " + std::to_string(i), apart(found.norms[at], expected.norms[at]));
    }
    if (found.parameters.size() != expected.parameters.size())
      problems += "another number of parameters; ";
    for (const auto& [name, value] : expected.parameters) {
      const Tensor& other = found.parameters.at(name);
      told(name, other.sizes() == value.sizes()
                     ? (other - value).abs().max().item<double>() /
                           std::max(1.0, value.abs().max().item<double>())
                     : HUGE_VAL);
    }
  });
  return problems;
}

std::string text_of(const Job& job) {
  return std::to_string(job.ranks) + " ranks, ep " + std::to_string(job.ep) +
         (job.dispatcher == TokenDispatcher::all_gather ? ", all-gather" : ", all-to-all") +
         ", routes " + std::to_string(static_cast<int>(job.routes)) + ", accumulate " +
         std::to_string(job.accumulate);
}

}  // namespace

TEST_CASE(
    "expert parallelism: a unit rule of the model's class cuts units first, and experts are taken "
    "out of them") {
  Job ruled{.ranks = 2, .ep = 2, .ruled = true};
  CHECK(compare(ruled) == "");
  std::vector<std::string> with, without;
  std::mutex mutex;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Job plain = ruled;
    plain.ruled = false;
    std::vector<std::string> one = train(ruled, world).units, other = train(plain, world).units;
    std::lock_guard lock(mutex);
    with = one;
    without = other;
  });
  CHECK(without == std::vector<std::string>{"layers.0.mlp.experts", "layers.0",
                                            "layers.1.mlp.experts", "layers.1", "root"});
  // Nothing of a layer is left for a unit of its own once its router and its experts have theirs.
  CHECK(with == std::vector<std::string>{"layers.0.mlp.gate", "layers.0.mlp.experts",
                                         "layers.1.mlp.gate", "layers.1.mlp.experts", "root"});
}

TEST_CASE(
    "expert parallelism: all tokens to one expert, and an expert that is never used: nobody waits "
    "in vain, and the result is the same") {
  for (TokenDispatcher dispatcher : {TokenDispatcher::all_to_all, TokenDispatcher::all_gather})
    for (Routes routes : {Routes::all_to_first, Routes::never_last})
      for (auto [ranks, ep] : {std::pair<int64_t, int64_t>{2, 2}, {4, 4}, {4, 2}}) {
        Job job{.ranks = ranks, .ep = ep, .dispatcher = dispatcher, .routes = routes};
        INFO(text_of(job));
        CHECK(compare(job) == "");
      }
}

TEST_CASE("expert parallelism: a rank without tokens takes part in everything") {
  for (TokenDispatcher dispatcher : {TokenDispatcher::all_to_all, TokenDispatcher::all_gather})
    for (auto [ranks, ep] : {std::pair<int64_t, int64_t>{2, 2}, {4, 2}}) {
      Job job{.ranks = ranks, .ep = ep, .accumulate = 2, .dispatcher = dispatcher, .idle = true};
      INFO(text_of(job));
      CHECK(compare(job) == "");
    }
}

TEST_CASE(
    "expert parallelism: only the rows that move are sent, twice each way, once with their "
    "weights") {
  constexpr int64_t kTokens = 10, kRanks = 4;
  std::mutex mutex;
  std::string problems;
  run_ranks(kRanks, [&](const std::shared_ptr<World>& world) {
    Stack model(block_config());
    StrategyConfig config;
    config.shared().sizes.ep = kRanks;
    ModelOutline outline = outline_of(*model);
    MeshPlan mesh = plan_sharded_mesh({kRanks, {}, config});
    TpPlan tp;
    apply_expert_parallel({model.ptr(), outline, mesh, tp, config, world});
    MoeImpl& block = *find_moe_blocks(*model)[0].second;
    // Rank r's experts are chosen by a rule that all ranks know: token t of rank s goes to experts
    // (s + t) % 4 and (s * t) % 4, but once.
    auto choice = [](int64_t s, int64_t t) {
      return std::pair{(s + t) % kExperts, s * t % kExperts};
    };
    Tensor indices = at::zeros({kTokens, 2}, at::kLong),
           x = seeded({kTokens, kWidth}, 5).set_requires_grad(true);
    int64_t out = 0, in = 0;  // rows that leave this rank, and that come from others
    for (int64_t s = 0; s < kRanks; ++s)
      for (int64_t t = 0; t < kTokens; ++t) {
        auto [a, b] = choice(s, t);
        for (int64_t e : {a, b})
          (s == world->rank() ? out : in) +=
              s == world->rank() ? e != world->rank() : e == world->rank();
        if (s != world->rank()) continue;
        indices[t][0] = a;
        indices[t][1] = b;
      }
    world->traffic().clear();
    Tensor weights = at::full({kTokens, 2}, 0.5).set_requires_grad(true);
    block.dispatcher()
        .forward(x, {weights, indices}, block.experts(), [] {})
        .square()
        .sum()
        .backward();
    std::lock_guard lock(mutex);
    int64_t bytes = 0, count = 0;
    for (const TrafficCounter::Row& row : world->traffic().rows())
      if (row.axis == "ep" && row.op == "all_to_all") bytes = row.bytes, count = row.count;
    if (count != 4 || bytes != (out + in) * (2 * kWidth + 1) * 4)
      problems += "rank " + std::to_string(world->rank()) + ": " + std::to_string(count) +
                  " messages of " + std::to_string(bytes) + " bytes for " + std::to_string(out) +
                  " rows out and " + std::to_string(in) + " in; ";
  });
  CHECK(problems == "");
}

TEST_CASE(
    "expert parallelism: ranks tell each other once where rows go, also under recomputation, but "
    "where the router chooses again") {
  struct Row {
    bool checkpoint, masked, in_turns, again;
    int64_t told;  // in a step of two layers
  };
  for (const Row& row : {Row{false, false, false, false, 2}, Row{true, false, false, false, 2},
                         Row{true, true, false, false, 2}, Row{true, false, true, false, 2},
                         Row{true, true, false, true, 4}}) {
    CAPTURE(row.checkpoint);
    CAPTURE(row.masked);
    CAPTURE(row.in_turns);
    CAPTURE(row.again);
    std::mutex mutex;
    std::string problems;
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      Stack model(block_config());
      StrategyConfig config;
      config.shared().sizes.ep = 2;
      ModelOutline outline = outline_of(*model);
      MeshPlan mesh = plan_sharded_mesh({2, {}, config});
      TpPlan tp;
      apply_expert_parallel({model.ptr(), outline, mesh, tp, config, world});
      if (row.checkpoint)
        checkpoint_layers(*model, std::vector<std::string>{"layers.0", "layers.1"},
                          ActivationCheckpointing::full, true);
      for (auto& [name, block] : find_moe_blocks(*model)) {
        block->gate()->route_again = row.again;
        block->gate()->in_turns = row.in_turns;
      }
      Tensor x = samples().narrow(0, world->rank() * 4, 4);
      std::shared_ptr<Sequence> sequence;
      if (row.masked) {
        sequence = std::make_shared<Sequence>();
        sequence->counts = at::zeros({4, kLength}, at::kBool);
        sequence->counts.narrow(1, 0, kLength - 2).fill_(true);
      }
      const SequenceScope scope(sequence);
      for (int pass = 0; pass < 2; ++pass) {  // the first one makes room
        world->traffic().clear();
        model(x).square().sum().backward();
      }
      std::lock_guard lock(mutex);
      int64_t told = 0, moved = 0;
      for (const TrafficCounter::Row& one : world->traffic().rows()) {
        if (one.axis != "ep") continue;
        if (one.op == "all_gather") told += one.count;
        if (one.op == "all_to_all") moved += one.count;
      }
      if (told != row.told || moved != 2 * (row.checkpoint ? 6 : 4))
        problems += "rank " + std::to_string(world->rank()) + ": " + std::to_string(told) +
                    " gathers and " + std::to_string(moved) + " messages; ";
    });
    CHECK(problems == "");
  }
}

namespace {

// One layer that a pass may run twice.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl() { register_module("layer", layer); }
  Tensor forward(const Tensor& x) { return twice ? layer(layer(x)) : layer(x); }
  bool twice = false;
  Layer layer{Layer(block_config())};
};
MESHWRIGHT_MODULE(Twice);

}  // namespace

TEST_CASE(
    "experts write gradients where a unit keeps them: of micro-batches, of layers that run twice, "
    "and not where somebody watches") {
  for (bool twice : {false, true})
    for (bool watched : {false, true})
      for (bool defer : {false, true}) {
        CAPTURE(twice);
        CAPTURE(watched);
        CAPTURE(defer);
        at::manual_seed(5);
        Twice model, plain;
        model->twice = plain->twice = twice;
        {
          c10::NoGradGuard no_grad;
          for (auto& item : model->named_parameters())
            plain->named_parameters()[item.key()].copy_(item.value().normal_(0, 0.4));
        }
        std::vector<Tensor> batches = {seeded({2, kLength, kWidth}, 7),
                                       seeded({2, kLength, kWidth}, 8)};
        for (const Tensor& x : batches) plain(x).square().sum().backward();

        int heard = 0;
        if (watched)
          model->layer->mlp->experts()->down_projs.register_hook(
              [&](const Tensor& g) { heard += g.defined(); });
        std::shared_ptr<World> world = World::single();
        StrategyConfig config;
        config.shared().mp = {DType::float32, DType::float32, DType::float32, true};
        ModelOutline outline = outline_of(*model);
        MeshPlan mesh = plan_sharded_mesh({1, {}, config});
        TpPlan tp;
        ParallelizeRequest request{model.ptr(), outline, mesh, tp, config, world};
        ShardingPolicy policy;
        policy.precision.mp = config.shared().mp;
        std::unique_ptr<ParallelModel> parallel =
            shard_model(model.ptr(), bind_units(*model, outline, plan_units(outline, true)), policy,
                        shard_groups(request), world);
        // Gradients that a caller asks for are the caller's, and leave nothing behind.
        if (!watched) {
          parallel->begin_step();
          parallel->begin_micro_batch(GradientSync::reduce);
          Tensor down = model->layer->mlp->experts()->down_projs;
          Tensor asked = torch::autograd::grad({model(batches[0]).square().sum()}, {down})[0];
          parallel->end_step();
          CHECK(asked.abs().max().item<double>() > 0);
          for (const ParallelParameter& p : parallel->parameters())
            CHECK(p.grad.abs().max().item<double>() == 0);
        }
        for (int step = 0; step < 2; ++step) {  // the second one overwrites what the first has left
          parallel->begin_step();
          for (size_t i = 0; i < batches.size(); ++i) {
            parallel->begin_micro_batch(!defer || i + 1 == batches.size()
                                            ? GradientSync::reduce
                                            : GradientSync::accumulate);
            model(batches[i]).square().sum().backward();
          }
          parallel->end_step();
        }
        CHECK(heard == (watched ? 4 : 0));
        for (const ParallelParameter& p : parallel->parameters()) {
          CAPTURE(p.name);
          Tensor expected = plain->named_parameters()[p.name].grad();
          CHECK((p.grad.view(expected.sizes()) - expected).abs().max().item<double>() <=
                1e-5 * expected.abs().max().item<double>());
        }
      }
}

TEST_CASE(
    "expert parallelism: a model without experts, and experts that do not divide, are refused "
    "before anything is made") {
  auto code = [](int64_t experts, int64_t ranks) {
    ErrorCode found = ErrorCode::internal;
    std::mutex mutex;
    run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
      MoeConfig c = block_config();
      c.n_routed_experts = std::max<int64_t>(experts, 2);
      Stack model(c);
      Linear plain(torch::nn::LinearOptions(2, 2));
      std::shared_ptr<torch::nn::Module> any =
          experts > 0 ? std::shared_ptr<torch::nn::Module>(model.ptr()) : plain.ptr();
      StrategyConfig config;
      config.shared().sizes.ep = ranks;
      ModelOutline outline = outline_of(*any);
      MeshPlan mesh = plan_sharded_mesh({ranks, {}, config});
      TpPlan tp;
      try {
        apply_expert_parallel({any, outline, mesh, tp, config, world});
      } catch (const Error& error) {
        std::lock_guard lock(mutex);
        found = error.code();
      }
    });
    return found;
  };
  CHECK(code(0, 2) == ErrorCode::model_does_not_fit);
  CHECK(code(5, 2) == ErrorCode::model_does_not_fit);
  CHECK(code(4, 2) == ErrorCode::internal);  // nothing was thrown
}

}  // namespace expert_parallel_test

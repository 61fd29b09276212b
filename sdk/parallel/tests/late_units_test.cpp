// Units that take part in an early micro-batch of a step and not in the last one, which reduces:
// their gradients belong to this step, and none of them leaks into the next one.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/modulelist.h>

#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "sdk/comm/tests/sampled.h"
#include "tiny_model.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace late_units_test {

using namespace meshwright;
using at::Tensor;
using enum GradientSync;

namespace {

constexpr int64_t kWidth = 8;
constexpr size_t kLayers = 5;
constexpr int kSteps = 2, kMicroBatches = 3;

using Active = std::array<bool, kLayers>;

struct CellImpl : torch::nn::Module {
  CellImpl() {
    up = register_module("up", Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    down = register_module("down", Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  Tensor forward(const Tensor& x) { return x + down(up(x).tanh()); }
  Linear up{nullptr}, down{nullptr};
};
MESHWRIGHT_MODULE(Cell);

// Some layers run for some inputs only.
struct SkippingImpl : torch::nn::Module {
  SkippingImpl() {
    in = register_module("in", Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    register_module("layers", layers);
    for (size_t i = 0; i < kLayers; ++i) layers->push_back(Cell());
    out = register_module("out", Linear(torch::nn::LinearOptions(kWidth, 3).bias(false)));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = in(x);
    for (size_t i = 0; i < kLayers; ++i)
      if (active[i]) y = layers[i]->as<Cell>()->forward(y);
    return out(y);
  }
  Linear in{nullptr}, out{nullptr};
  torch::nn::ModuleList layers;
  Active active{};
};
MESHWRIGHT_MODULE(Skipping);

template <class Net>
Net seeded() {
  Net net;
  c10::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const Tensor& p : net->parameters())
    p.copy_(at::randn(p.sizes(), at::detail::createCPUGenerator(seed++)) * 0.4);
  return net;
}

enum class Kind : uint8_t { rows, flat, level_2, level_1, level_0, replicas, replicas_apart };
// The units whose gradients are cut over a group of their own, as those of experts.
enum class Own : uint8_t { none, layer_1 };
// Which layers run. In both, the last micro-batch runs other ones than those before it. alike: the
// same ones on all ranks.
enum class Runs : uint8_t { alike, by_rank };

struct Row {
  const char* name;
  Kind kind = Kind::rows;
  int64_t ranks = 2, replicas = 1;
  DType param = DType::float32;
  Runs runs = Runs::alike;
  Own own = Own::none;
  bool every = false, reshard = true, overlap = true;
  bool chains = false, rotating = false;  // gathers far ahead, and buffers that units share
};

// The first layer always runs, the second one first only, the third one in all but the last
// micro-batch, the fourth one in the second step and the middle only, the last one at the end only.
Active active_layers(const Row& row, int64_t rank, int step, int micro) {
  const bool end = micro + 1 == kMicroBatches;
  if (row.runs == Runs::by_rank) {
    Active out{};
    for (size_t i = 0; i < kLayers; ++i)
      out[i] = (static_cast<int64_t>(i) + rank + step + micro) % 3 != 0;
    return out;
  }
  return {true, step == 0 && micro == 0, !end, step == 1 && micro == 1, end};
}

Tensor loss_of(Skipping& net, const Row& row, int64_t rank, int step, int micro) {
  net->active = active_layers(row, rank, step, micro);
  const auto seed = static_cast<uint64_t>((step * 10 + micro) * 10 + rank + 1000);
  return net(at::randn({2, kWidth}, at::detail::createCPUGenerator(seed))).square().mean();
}

std::unique_ptr<ParallelModel> model_of(const Row& row, torch::nn::Module& module,
                                        const std::shared_ptr<torch::nn::Module>& owner,
                                        const std::shared_ptr<World>& world,
                                        bool find_unused = true) {
  const MixedPrecision mp{row.param, DType::float32, DType::float32, true};
  if (row.kind == Kind::replicas || row.kind == Kind::replicas_apart) {
    ReplicatedPolicy policy;
    policy.mp = mp;
    policy.gradient_as_bucket_view = row.kind == Kind::replicas;
    policy.find_unused_parameters = find_unused;
    policy.bucket_bytes = policy.first_bucket_bytes = 500;
    return replicate_model(owner, policy, world->everyone(), world);
  }
  ShardingPolicy policy;
  ShardGroups shards = tiny::groups_of(world, row.replicas);
  policy.precision.mp = mp;
  policy.reduction.every_micro_batch = row.every;
  policy.reduction.overlap = policy.overlap_gather = row.overlap;
  policy.prefetch.chains = row.chains;
  policy.prefetch.forward = policy.prefetch.backward = 3;
  policy.buffers.rotating = row.rotating;
  if (row.kind != Kind::rows) {
    policy.layout = ShardLayout::flat;
    policy.level = row.kind == Kind::flat      ? 3
                   : row.kind == Kind::level_2 ? 2
                   : row.kind == Kind::level_1 ? 1
                                               : 0;
    if (policy.level == 0) {
      shards.replicate = std::exchange(shards.shard, world->group("alone", {world->rank()}));
      shards.replicate_axis = shards.shard_axis;
    }
  }
  const ModelOutline outline = outline_of(module);
  std::vector<UnitSpec> units = bind_units(module, outline, plan_units(outline, row.reshard));
  if (row.own == Own::layer_1)
    units[1].sharding =
        UnitSharding{world->everyone(), "ep_shard", 1, static_cast<double>(row.ranks)};
  return shard_model(owner, std::move(units), policy, shards, world);
}

using Parameters = std::map<std::string, Tensor>;

// One process that sees what all ranks see: after each step.
std::vector<Parameters> expected_of(const Row& row) {
  Skipping net = seeded<Skipping>();
  std::vector<Parameters> out;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < kMicroBatches; ++micro)
      for (int64_t rank = 0; rank < row.ranks; ++rank)
        (loss_of(net, row, rank, step, micro) / row.ranks).backward();
    c10::NoGradGuard no_grad;
    Parameters& after = out.emplace_back();
    for (const auto& item : net->named_parameters()) {
      const Tensor& p = item.value();
      if (p.grad().defined()) p.sub_(p.grad(), 0.1);
      p.mutable_grad() = Tensor();
      after[item.key()] = p.detach().clone();
    }
  }
  return out;
}

std::vector<Parameters> train(const Row& row, const std::shared_ptr<World>& world) {
  Skipping net = seeded<Skipping>();
  std::unique_ptr<ParallelModel> model = model_of(row, *net, net.ptr(), world);
  model->after_optimizer_step();  // whole parameters are gathered from the first step on
  std::vector<Parameters> out;
  for (int step = 0; step < kSteps; ++step) {
    model->begin_step();
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      model->begin_micro_batch(micro + 1 == kMicroBatches ? reduce : accumulate);
      loss_of(net, row, world->rank(), step, micro).backward();
    }
    model->end_step();
    {
      c10::NoGradGuard no_grad;
      for (const FlatParameterGroup& group : model->update_groups())
        group.values.sub_(group.grads, 0.1);
    }
    model->after_optimizer_step();
    Parameters& after = out.emplace_back();
    for (const ParallelParameter& p : model->parameters())
      after[p.name] = model->full_tensor(p.name);
  }
  return out;
}

void compare(const Row& row, double tolerance) {
  const std::string setting = row.name;
  CAPTURE(setting);
  const std::vector<Parameters> expected = expected_of(row);
  std::mutex mutex;
  std::vector<std::vector<Parameters>> found(static_cast<size_t>(row.ranks));
  run_ranks(row.ranks, [&](const std::shared_ptr<World>& world) {
    std::vector<Parameters> mine = train(row, world);
    std::lock_guard lock(mutex);
    found[static_cast<size_t>(world->rank())] = std::move(mine);
  });
  for (const std::vector<Parameters>& rank : found)
    for (size_t step = 0; step < expected.size(); ++step) {
      CAPTURE(step);
      REQUIRE(rank.at(step).size() == expected[step].size());
      for (const auto& [name, tensor] : expected[step]) {
        CAPTURE(name);
        CHECK((rank[step].at(name) - tensor).abs().max().item<double>() < tolerance);
      }
    }
}

// Two branches that recompute and use one weight, with or without a parameter whose gradient comes
// behind theirs.
struct BranchImpl : torch::nn::Module {
  explicit BranchImpl(Linear used) : shared(std::move(used)) {
    own = register_module("own", Linear(torch::nn::LinearOptions(kWidth, kWidth)));
  }
  Tensor forward(const Tensor& x) { return x + own(shared(x).tanh()); }
  Linear own{nullptr}, shared;  // of the module around
};
MESHWRIGHT_MODULE(Branch);

struct SharingImpl : torch::nn::Module {
  explicit SharingImpl(bool tail) : has_tail(tail) {
    shared = register_module("shared", Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    if (tail) first = register_module("first", Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    register_module("branches", branches);
    for (int i = 0; i < 2; ++i) branches->push_back(Branch(shared));
    c10::NoGradGuard no_grad;
    uint64_t seed = 1;
    for (const Tensor& p : parameters())
      p.copy_(at::randn(p.sizes(), at::detail::createCPUGenerator(seed++)) * 0.4);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = has_tail ? first(x) : x;
    for (const auto& branch : *branches) y = branch->as<Branch>()->forward(y);
    return y;
  }
  bool has_tail;
  Linear shared{nullptr}, first{nullptr};
  torch::nn::ModuleList branches;
};
MESHWRIGHT_MODULE(Sharing);

// The sum of all gradients after one step with recomputed branches on `ranks` ranks.
double sharing_step(Kind kind, int64_t ranks, bool tail) {
  std::mutex mutex;
  double out = 0;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    Sharing net(tail);
    for (const auto& branch : *net->branches) checkpoint_activations(*branch);
    std::unique_ptr<ParallelModel> model;
    if (kind == Kind::rows || kind == Kind::level_0) {
      UnitSpec root;
      root.name = "root";
      root.module = net.get();
      for (auto& item : net->named_parameters())
        root.parameters.emplace_back(item.key(), item.value());
      ShardingPolicy policy;
      policy.precision.mp = {DType::float32, DType::float32, DType::float32, true};
      ShardGroups shards = tiny::groups_of(world);
      if (kind == Kind::level_0) {
        policy.layout = ShardLayout::flat;
        policy.level = 0;
        shards.replicate = std::exchange(shards.shard, world->group("alone", {world->rank()}));
      }
      model = shard_model(net.ptr(), {root}, policy, shards, world);
    } else {
      model = model_of({.name = "copies", .kind = kind}, *net, net.ptr(), world);
    }
    model->begin_step();
    model->begin_micro_batch(reduce);
    net(at::randn({2, kWidth}, at::detail::createCPUGenerator(7)).set_requires_grad(true))
        .square()
        .mean()
        .backward();
    model->end_step();
    const double norm = model->clip_grad_norm(0);
    std::lock_guard lock(mutex);
    out = norm;
  });
  return out;
}

}  // namespace

TEST_CASE("units that the last micro-batch leaves out are reduced with what earlier ones left") {
  const std::vector<Row> rows = {
      {.name = "one rank", .ranks = 1},
      {.name = "rows"},
      {.name = "rows, four", .ranks = 4},
      {.name = "rows, kept after forward", .reshard = false},
      {.name = "rows, each micro-batch", .every = true},
      {.name = "rows, gathered far ahead", .chains = true},
      {.name = "rows, two buffers", .rotating = true},
      {.name = "hybrid", .ranks = 4, .replicas = 2},
      {.name = "experts' own group", .own = Own::layer_1},
      {.name = "experts' own group, hybrid", .ranks = 4, .replicas = 2, .own = Own::layer_1},
      {.name = "flat", .kind = Kind::flat},
      {.name = "flat, four", .kind = Kind::flat, .ranks = 4},
      {.name = "flat, hybrid", .kind = Kind::flat, .ranks = 4, .replicas = 2},
      {.name = "flat, each micro-batch", .kind = Kind::flat, .every = true},
      {.name = "flat, gathered far ahead", .kind = Kind::flat, .chains = true},
      {.name = "flat, two buffers", .kind = Kind::flat, .rotating = true},
      {.name = "level 2", .kind = Kind::level_2},
      {.name = "level 2, each micro-batch", .kind = Kind::level_2, .ranks = 4, .every = true},
      {.name = "level 1", .kind = Kind::level_1},
      {.name = "level 1, at the end", .kind = Kind::level_1, .overlap = false},
      {.name = "level 0", .kind = Kind::level_0},
      {.name = "level 0, four", .kind = Kind::level_0, .ranks = 4},
      {.name = "replicas", .kind = Kind::replicas},
      {.name = "replicas, apart", .kind = Kind::replicas_apart},
      {.name = "replicas, apart, four", .kind = Kind::replicas_apart, .ranks = 4},
  };
  size_t turn = 0;
  for (const Row& row : rows)
    if (sampled_over_sockets(turn++, 2)) compare(row, 1e-5);
  for (Row row : {Row{.name = "rows, bfloat16"}, Row{.name = "flat, bfloat16", .kind = Kind::flat},
                  Row{.name = "level 1, bfloat16", .kind = Kind::level_1},
                  Row{.name = "replicas, bfloat16", .kind = Kind::replicas}}) {
    row.param = DType::bfloat16;
    compare(row, 5e-2);
  }
}

TEST_CASE("where nothing is gathered in a step, ranks may run different units") {
  for (Row row : {Row{.name = "level 1", .kind = Kind::level_1, .overlap = false},
                  Row{.name = "level 0", .kind = Kind::level_0},
                  Row{.name = "level 0, four", .kind = Kind::level_0, .ranks = 4},
                  Row{.name = "replicas", .kind = Kind::replicas},
                  Row{.name = "replicas, apart", .kind = Kind::replicas_apart, .ranks = 4}}) {
    row.runs = Runs::by_rank;
    compare(row, 1e-5);
  }
}

TEST_CASE("a gradient of any micro-batch makes a parameter a used one") {
  for (Kind kind : {Kind::replicas, Kind::replicas_apart})
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      Skipping net = seeded<Skipping>();
      const Row row{.name = "used", .kind = kind};
      std::unique_ptr<ParallelModel> model =
          model_of(row, *net, net.ptr(), world, /*find_unused=*/false);
      auto step = [&](const Active& before, const Active& end) {
        model->begin_step();
        for (const Active* active : {&before, &end}) {
          model->begin_micro_batch(active == &end ? reduce : accumulate);
          net->active = *active;
          net(at::randn({2, kWidth}, at::detail::createCPUGenerator(7))).sum().backward();
        }
        model->end_step();
      };
      const Active all{true, true, true, true, true}, some{true, false, true, false, false};
      CHECK_NOTHROW(step(all, some));
      CHECK_NOTHROW(step(some, all));
      CHECK_THROWS_WITH_AS(step(some, some), doctest::Contains("layers.1.down.weight"), Error);
    });
}

TEST_CASE("units that all micro-batches run reduce once, and so does one that none runs") {
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Skipping net = seeded<Skipping>();
    std::unique_ptr<ParallelModel> model = model_of({.name = "counted"}, *net, net.ptr(), world);
    auto reductions = [&](const Active& active) {
      world->traffic().clear();
      model->begin_step();
      for (GradientSync sync : {accumulate, reduce}) {
        model->begin_micro_batch(sync);
        net->active = active;
        net(at::randn({2, kWidth}, at::detail::createCPUGenerator(7))).sum().backward();
      }
      model->end_step();
      int64_t out = 0;
      for (const TrafficCounter::Row& sent : world->traffic().rows())
        if (sent.op == "reduce_scatter") out += sent.count;
      return out;
    };
    CHECK(reductions({true, true, true, true, true}) == kLayers + 1);
    CHECK(reductions({true, false, true, true, true}) == kLayers + 1);
  });
}

TEST_CASE(
    "a parameter that two recomputed modules share: the unit waits for all of its parameters, and "
    "what comes behind the reduction is an error") {
  for (int64_t ranks : {1, 2}) {
    const double whole = sharing_step(Kind::level_0, ranks, /*tail=*/true);
    CHECK(whole > 1e-3);
    CHECK(sharing_step(Kind::rows, ranks, true) == doctest::Approx(whole));
    // Behind the reduction its memory is gone.
    CHECK_THROWS(sharing_step(Kind::rows, ranks, false));
    CHECK_THROWS_WITH_AS(sharing_step(Kind::level_0, ranks, false),
                         doctest::Contains("a second gradient of shared."), Error);
  }
  CHECK_THROWS_WITH_AS(sharing_step(Kind::replicas, 2, false),
                       doctest::Contains("a second gradient of shared."), Error);
}

}  // namespace late_units_test

// ring_zero trains as one process does, sends what it plans, and holds what it says.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <meshwright/nn/layers.h>
#include <meshwright/parallel/testing.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <map>

#include "../buckets.h"
#include "../ring_model.h"
// After LibTorch, which has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

using namespace meshwright;
using at::Tensor;

extern "C" const meshwright_plugin meshwright_plugin_v1;

namespace {

// A module without hooks will do: TORCH_MODULE in place of MESHWRIGHT_MODULE.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    inner = register_module("inner", torch::nn::Linear(width, width));
  }
  Tensor forward(const Tensor& x) { return x + at::tanh(inner(x)); }
  torch::nn::Linear inner{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed", torch::nn::Embedding(11, 7));
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) blocks->push_back(Block(7));
    unused = register_module("unused", torch::nn::Linear(3, 2));
    head = register_module("head", torch::nn::Linear(7, 11));
    at::Generator generator = at::detail::createCPUGenerator(5);
    c10::NoGradGuard no_grad;
    for (Tensor& p : parameters()) p.copy_(at::randn(p.sizes(), generator) * 0.4);
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = embed(ids);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::Linear unused{nullptr}, head{nullptr};
};
MESHWRIGHT_MODULE(Net);

struct Setting {
  std::string name;
  int64_t ranks = 1, ring = 8, accumulation = 1;
  double bucket_mb = 0.0004;  // a few parameters each
  bool every = false;
  DType param = DType::float32;
};

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> parameters;
  std::string sent, planned;
};

std::shared_ptr<Strategy> make_strategy() {
  const meshwright_strategy& about = meshwright_plugin_v1.strategies[0];
  meshwright_status status{sizeof(meshwright_status), 0, {}};
  auto* strategy = static_cast<Strategy*>(about.create(&status));
  REQUIRE_MESSAGE(strategy != nullptr, status.message);
  return {strategy, about.destroy};
}

MeshRequest request_for(const Setting& s) {
  const meshwright_strategy& about = meshwright_plugin_v1.strategies[0];
  MeshRequest request;
  request.world_size = s.ranks;
  request.config.own() = Options(
      make_schema("distributed.ring_zero", about.name, {about.options, about.option_count}));
  request.config.own().set("ring_size", s.ring);
  request.config.own().set("bucket_mb", s.bucket_mb);
  request.config.own().set("reduce_every_micro_batch", s.every);
  request.config.mp_policy() = {s.param, DType::float32, DType::float32, true};
  return request;
}

template <class Rows>
std::string text_of(const Rows& rows) {
  std::map<std::string, std::string> sorted;
  for (const auto& row : rows)
    if (row.axis != "control")
      sorted[row.axis + " " + row.op] =
          std::to_string(row.count) + " x, " + std::to_string(row.bytes) + " bytes; ";
  std::string out;
  for (const auto& [what, amount] : sorted) out += what + " " + amount;
  return out;
}

constexpr int64_t kSteps = 5, kRows = 12;

// What the engine's loop does, by hand: the strategy's hooks, then steps over the ParallelModel
// with AdamW.
Result train(Strategy& strategy, const std::shared_ptr<World>& world, const Setting& s) {
  MeshRequest request = request_for(s);
  MeshPlan mesh = strategy.plan_mesh(request);
  Net net;
  ModelOutline outline = outline_of(*net);
  ParallelizeRequest wanted{net.ptr(), outline, mesh, {}, request.config, world};
  std::unique_ptr<ParallelModel> model = strategy.parallelize(wanted);
  Result out;
  const ShardingRequest cost{
      outline, mesh, {}, request.config, {1, 0, s.accumulation, DType::float32, 2}, world->rank()};
  out.planned = text_of(footprint_of(cost, strategy.plan_sharding(cost)).wire);
  std::vector<Tensor> average, square;
  Tensor count = at::zeros({});
  int64_t rows = kRows / s.ranks / s.accumulation;
  for (int64_t step = 0; step < kSteps; ++step) {
    world->traffic().clear();
    model->begin_step();
    double loss_sum = 0;
    for (int64_t micro = 0; micro < s.accumulation; ++micro) {
      model->begin_micro_batch(micro + 1 == s.accumulation ? GradientSync::reduce
                                                           : GradientSync::accumulate);
      std::vector<Tensor> samples;
      for (int64_t row = 0; row < rows; ++row) {
        auto number =
            static_cast<uint64_t>(step * kRows + (micro * s.ranks + world->rank()) * rows + row);
        samples.push_back(
            at::randint(0, 11, {1, 6}, at::detail::createCPUGenerator(number), at::kLong));
      }
      Tensor ids = at::cat(samples), logits = net(ids.narrow(1, 0, 5));
      Tensor loss = at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1),
                                           ids.narrow(1, 1, 5).flatten());
      (loss / s.accumulation).backward();
      loss_sum += loss.item<double>() / static_cast<double>(s.accumulation * s.ranks);
    }
    model->end_step();
    Tensor total = at::full({1}, loss_sum, at::kDouble);
    model->data_group()->all_reduce(total, ReduceOp::sum, /*control=*/true).wait();
    out.losses.push_back(total.item<double>());
    out.norms.push_back(model->clip_grad_norm(0.5));
    std::vector<Tensor> values, grads;
    for (const FlatParameterGroup& group : model->update_groups()) {
      values.push_back(group.values), grads.push_back(group.grads);
      if (average.size() < values.size())
        average.push_back(at::zeros_like(group.values)),
            square.push_back(at::zeros_like(group.values));
    }
    count.add_(1);
    c10::NoGradGuard no_grad;
    at::_fused_adamw_(values, grads, average, square, {}, std::vector<Tensor>(values.size(), count),
                      1e-2, 0.9, 0.95, 0.1, 1e-4, false, false);
    model->after_optimizer_step();
  }
  out.sent = text_of(world->traffic().rows());
  for (const ParallelParameter& p : model->parameters())
    out.parameters[p.name] = model->full_tensor(p.name);
  return out;
}

std::vector<Result> run(const Setting& s) {
  std::shared_ptr<Strategy> strategy = make_strategy();
  std::vector<Result> results(static_cast<size_t>(s.ranks));
  run_ranks(s.ranks, [&](const std::shared_ptr<World>& world) {
    results[static_cast<size_t>(world->rank())] = train(*strategy, world, s);
  });
  return results;
}

}  // namespace

TEST_CASE("rings of any size train as one process does, and send what the plan says") {
  const Result alone = run({.name = "alone"})[0];
  CHECK(alone.losses.back() < alone.losses.front());
  CHECK(alone.sent.empty());
  for (const Setting& s : std::vector<Setting>{
           {.name = "two", .ranks = 2},
           {.name = "three", .ranks = 3},
           {.name = "three, one bucket", .ranks = 3, .bucket_mb = 1},
           {.name = "three, a bucket each", .ranks = 3, .bucket_mb = 1e-6},
           {.name = "two rings of two", .ranks = 4, .ring = 2},
           {.name = "three rings of two", .ranks = 6, .ring = 2},
           {.name = "accumulation", .ranks = 2, .accumulation = 3},
           {.name = "accumulation, each reduced", .ranks = 2, .accumulation = 3, .every = true},
           {.name = "two rings, each micro-batch reduced",
            .ranks = 4,
            .ring = 2,
            .accumulation = 3,
            .every = true},
       }) {
    CAPTURE(s.name);
    for (const Result& found : run(s)) {
      CHECK(found.sent == found.planned);
      CHECK(found.sent.find("dp_shard all_gather") != std::string::npos);
      CHECK((found.sent.find("dp_replicate all_reduce") != std::string::npos) ==
            (s.ring < s.ranks));
      for (size_t i = 0; i < kSteps; ++i) {
        CHECK(std::abs(found.losses[i] / alone.losses[i] - 1) <= 1e-5);
        CHECK(std::abs(found.norms[i] / alone.norms[i] - 1) <= 1e-5);
      }
      REQUIRE(found.parameters.size() == alone.parameters.size());
      for (const auto& [name, tensor] : found.parameters) {
        CAPTURE(name);
        CHECK((tensor - alone.parameters.at(name)).abs().max().item<double>() <= 1e-5);
      }
    }
  }
}

TEST_CASE("in bfloat16 the ranks agree, and the slices that are updated stay in float32") {
  Setting s{.name = "bfloat16", .ranks = 2, .param = DType::bfloat16};
  const Result single = run({.name = "alone"})[0];
  std::vector<Result> results = run(s);
  for (const Result& found : results) {
    CHECK(found.sent == found.planned);
    CHECK(found.losses == results[0].losses);
    for (size_t i = 0; i < kSteps; ++i)
      CHECK(found.losses[i] == doctest::Approx(single.losses[i]).epsilon(0.02));
    for (const auto& [name, tensor] : found.parameters) {
      CHECK((tensor.scalar_type() == at::kFloat));
      CHECK(tensor.equal(results[0].parameters.at(name)));
    }
  }
}

TEST_CASE("every element has one owner in a ring") {
  for (int64_t ring : {1, 2, 3, 5, 8})
    for (int64_t limit : {1, 6, 1000}) {
      const std::vector<int64_t> counts = {7, 1, 12, 3, 5};
      std::vector<int64_t> owned(counts.size(), 0);
      for (const ring_zero::Bucket& bucket : ring_zero::make_buckets(counts, limit, ring))
        for (int64_t place = 0; place < ring; ++place)
          for (size_t i = 0; i < bucket.members.size(); ++i) {
            size_t p = bucket.members[i];
            ring_zero::Piece piece = ring_zero::piece_of(bucket, i, counts[p], place);
            if (piece.end == piece.begin) continue;
            CHECK(piece.begin == owned[p]);  // slices follow one another
            CHECK(piece.at + piece.end - piece.begin <= bucket.slice);
            owned[p] = piece.end;
          }
      CHECK(owned == counts);
    }
}

TEST_CASE("rings are the largest divisor of dp that fits, and copies follow from it") {
  struct Row {
    int64_t ranks, asked, ring;
  };
  for (const Row& row :
       {Row{16, 8, 8}, Row{12, 8, 6}, Row{8, 3, 2}, Row{7, 3, 7}, Row{4, 1, 4}, Row{1, 8, 1}}) {
    CAPTURE(row.ranks);
    MeshPlan plan = make_strategy()->plan_mesh(
        request_for({.name = "", .ranks = row.ranks, .ring = row.asked}));
    CHECK(plan.device_mesh->size("dp_shard") == row.ring);
    CHECK(plan.device_mesh->size("dp_replicate") == row.ranks / row.ring);
  }
}

TEST_CASE("what cannot be trained is refused by name") {
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    std::shared_ptr<Strategy> strategy = make_strategy();
    MeshRequest request = request_for({.name = "", .ranks = 2});
    MeshPlan mesh = strategy->plan_mesh(request);
    request.config.sizes().tp = 2;
    Net net;
    ModelOutline outline = outline_of(*net);
    ParallelizeRequest wanted{net.ptr(), outline, mesh, {}, request.config, world};
    ErrorCode found = ErrorCode::internal;
    try {
      strategy->parallelize(wanted);
    } catch (const Error& error) {
      found = error.code();
    }
    if (found != ErrorCode::not_in_release)
      throw std::runtime_error("tensor parallelism was not refused");
  });
}

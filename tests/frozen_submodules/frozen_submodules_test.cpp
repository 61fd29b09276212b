// A model with a frozen tower beside a trainable rest, as vision models have: frozen_sharding says
// where the tower lies (semantics 3.6), and changes no loss. And autocast, which recomputed layers
// must find again.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <map>
#include <mutex>

#include "meshwright/nn/layers.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/trainer.h"

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kWidth = 7, kRows = 12, kSteps = 4;

struct CellImpl : torch::nn::Module {
  CellImpl() {
    up = register_module("up", Linear(kWidth, 2 * kWidth));
    down = register_module("down", Linear(2 * kWidth, kWidth));
  }
  Tensor forward(const Tensor& x) {
    Tensor inner = up(x);
    computed_in = inner.scalar_type();
    ++runs;
    return x + down(inner.tanh());
  }
  Linear up{nullptr}, down{nullptr};
  at::ScalarType computed_in = at::kFloat;
  int64_t runs = 0;
};
MESHWRIGHT_MODULE(Cell);

struct TwoTowersImpl : torch::nn::Module {
  TwoTowersImpl() {
    register_module("vision_tower", tower);
    register_module("layers", layers);
    for (int i = 0; i < 2; ++i) {
      tower->push_back(Cell());
      layers->push_back(Cell());
    }
    for (const Tensor& p : tower->parameters()) p.set_requires_grad(false);
  }
  Tensor forward(Tensor x, bool has_image) {
    if (has_image)
      for (const auto& cell : *tower) x = cell->as<Cell>()->forward(x);
    for (const auto& cell : *layers) x = cell->as<Cell>()->forward(x);
    return x;
  }
  torch::nn::ModuleList tower, layers;
};
MESHWRIGHT_MODULE(TwoTowers);

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<int64_t>> local_rows;  // of rank 0
  int64_t gathers = 0;                                     // of one step
  at::ScalarType computed_in = at::kFloat;
  int64_t runs = 0;  // of the first trainable layer
  std::vector<std::string> notices;
};

// `image(sample)`: whether the rank that has it runs the tower; all samples of a rank are of one
// kind.
Result learn(int64_t ranks, const std::vector<std::pair<std::string, std::string>>& keys,
             const std::function<bool(int64_t)>& image,
             std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  std::mutex mutex;
  Result out;
  std::vector<TwoTowers> nets;
  for (int64_t r = 0; r < ranks; ++r) {
    torch::manual_seed(3);
    nets.emplace_back();
  }
  run_ranks(
      ranks,
      [&](const std::shared_ptr<World>& world) {
        Job job = Job::from_text(
            "schema = 1\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = "
            "\"float32\"\n"
            "[step_scheduler]\nglobal_batch_size = 12\nlocal_batch_size = 1\n[optimizer]\nlr = "
            "1e-2\n[lr_scheduler]\nlr_warmup_steps = "
            "0\n");
        for (const auto& [key, value] : keys) job.set(key, value);
        TwoTowers net = nets[static_cast<size_t>(world->rank())];
        Trainer trainer(job, world, net.ptr(), {}, kWidth);
        Result mine;
        for (const ParallelParameter& p : trainer.model().parameters())
          mine.local_rows[p.name] = p.local.sizes().vec();
        for (int64_t step = 0; step < kSteps; ++step) {
          world->traffic().clear();
          StepResult result = trainer.step([&](int64_t micro) {
            int64_t row = micro * ranks + world->rank();
            Tensor x = at::randn({1, kWidth}, at::detail::createCPUGenerator(
                                                  static_cast<uint64_t>(step * kRows + row)));
            return MicroBatchLoss{
                at::mse_loss(net(x, image(row)).to(at::kFloat), x.flip(1), at::Reduction::Sum),
                kWidth};
          });
          mine.losses.push_back(result.loss);
          mine.norms.push_back(result.grad_norm);
        }
        for (const TrafficCounter::Row& row : world->traffic().rows())
          if (row.op == "all_gather" && row.axis != "control") mine.gathers += row.count;
        mine.computed_in = net->layers[0]->as<Cell>()->computed_in;
        mine.runs = net->layers[0]->as<Cell>()->runs;
        mine.notices = world->notices();
        std::lock_guard lock(mutex);
        if (world->rank() == 0) out = std::move(mine);
      },
      timeout);
  return out;
}

void compare(const Result& found, const Result& expected, double tolerance) {
  REQUIRE(found.losses.size() == expected.losses.size());
  for (size_t i = 0; i < found.losses.size(); ++i) {
    CHECK(std::abs(found.losses[i] / expected.losses[i] - 1) <= tolerance);
    CHECK(std::abs(found.norms[i] / expected.norms[i] - 1) <= tolerance);
  }
}

const std::pair<std::string, std::string> kDdp{"distributed.strategy", "\"ddp\""};
std::pair<std::string, std::string> rule(const char* name) {
  return {"distributed.fsdp2.frozen_sharding", '"' + std::string(name) + '"'};
}
const std::pair<std::string, std::string> kFull{"distributed.activation_checkpointing", "\"full\""};

bool always(int64_t) { return true; }

}  // namespace

TEST_CASE(
    "a frozen tower in the root unit, in units of its own, or whole on every rank: the same "
    "losses, other places") {
  Result expected = learn(1, {kDdp}, always);
  CHECK(expected.losses.front() > expected.losses.back());
  const std::string frozen = "vision_tower.0.up.weight", trained = "layers.0.up.weight";
  for (int64_t ranks : {2, 3}) {
    CAPTURE(ranks);
    Result root = learn(ranks, {rule("root")}, always),
           layers = learn(ranks, {rule("per_layer")}, always),
           whole = learn(ranks, {rule("replicate")}, always);
    for (const Result* result : {&root, &layers, &whole}) {
      compare(*result, expected, 1e-5);
      CHECK(result->local_rows.at(trained)[0] == (2 * kWidth + ranks - 1) / ranks);
    }
    CHECK(root.local_rows.at(frozen)[0] == (2 * kWidth + ranks - 1) / ranks);
    CHECK(layers.local_rows.at(frozen)[0] == (2 * kWidth + ranks - 1) / ranks);
    CHECK(whole.local_rows.at(frozen)[0] == 2 * kWidth);
    // Each layer of the tower is a unit more to gather; whole, the tower is never gathered.
    CHECK(layers.gathers > root.gathers);
    CHECK(whole.gathers < layers.gathers);
    compare(learn(ranks, {rule("root"), kFull}, always), expected, 1e-5);
  }
}

TEST_CASE("groups of a configuration reach a module that it does not name, on top of its own") {
  auto groups = [](const char* list) {
    return std::pair<std::string, std::string>{"optimizer.group", list};
  };
  const auto some = groups(
      "[{pattern = \"layers.0.*\", frozen = true}, {pattern = \"*.bias\", lr_factor = 3}, "
      "{pattern = \"vision.*\", lr_factor = 2}]");
  const Result plain = learn(1, {kDdp}, always), expected = learn(1, {kDdp, some}, always);
  // Weights lie elsewhere in memory, by which some processors' products add up in another order.
  CHECK(std::abs(expected.losses[0] / plain.losses[0] - 1) <= 1e-6);
  CHECK(expected.norms[0] < plain.norms[0]);
  for (int64_t ranks : {2, 3}) {
    CAPTURE(ranks);
    compare(learn(ranks, {some}, always), expected, 1e-5);
    compare(learn(ranks, {some, kFull}, always), expected, 1e-5);
  }
  try {
    learn(1, {kDdp, groups("[{pattern = \"layers.*\", frozen = true}]")}, always);
    FAIL("a module of which nothing trains was taken");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::conflict);
    CHECK(error.key() == "optimizer.group.frozen");
  }
}

TEST_CASE(
    "ranks without an image do not hold up the others when the tower lies in the root or is "
    "whole") {
  auto some = [](int64_t row) { return row % 2 == 0; };
  Result expected = learn(1, {kDdp}, some);
  for (const char* where : {"root", "replicate"}) {
    CAPTURE(where);
    compare(learn(2, {rule(where)}, some), expected, 1e-5);
  }
}

TEST_CASE(
    "frozen towers in units of their own are warned of, and a rank that leaves them out is put "
    "down to that") {
  Result apart = learn(2, {rule("per_layer")}, always);
  REQUIRE(apart.notices.size() == 1);
  for (const char* part : {"distributed.fsdp2.frozen_sharding = \"per_layer\"",
                           "vision_tower.0, vision_tower.1", "equally often"})
    CHECK(apart.notices[0].find(part) != std::string::npos);
  CHECK(learn(1, {rule("per_layer")}, always).notices.empty());  // nobody to wait for
  for (const char* where : {"root", "replicate"})
    CHECK(learn(2, {rule(where)}, always).notices.empty());
  try {
    learn(
        2, {rule("per_layer")}, [](int64_t row) { return row % 2 == 0; }, std::chrono::seconds(5));
    FAIL("ranks that do not run the same units trained");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::collective_timeout);
    std::string notes;
    for (const std::string& note : error.notes()) notes += note + "\n";
    INFO(error.what(), "\n", notes);
    CHECK(notes.find(
              "frozen_sharding = \"per_layer\": the frozen units vision_tower.0, vision_tower.1") !=
          std::string::npos);
  }
}

TEST_CASE("recomputed layers find the autocast of their first run, and give the same bits") {
  const std::pair<std::string, std::string> half{"distributed.autocast_dtype", "\"bfloat16\""};
  for (const auto& strategy : {kDdp, rule("root")}) {
    CAPTURE(strategy.second);
    Result kept = learn(2, {strategy, half}, always),
           again = learn(2, {strategy, half, kFull}, always);
    CHECK((kept.computed_in == at::kBFloat16));
    CHECK((again.computed_in == at::kBFloat16));  // of the last run, which is a second one
    CHECK(again.runs == 2 * kept.runs);
    compare(again, kept, 0);
  }
}

TEST_CASE("the scope says which layers recompute, and one that meets none is told") {
  auto scope = [](const char* value) {
    return std::pair<std::string, std::string>("distributed.activation_checkpointing_scope",
                                               '"' + std::string(value) + '"');
  };
  Result none = learn(1, {kDdp}, always), all = learn(1, {kDdp, kFull}, always);
  CHECK(all.runs == 2 * none.runs);
  CHECK(learn(1, {kDdp, kFull, scope("language")}, always).runs == 2 * none.runs);
  for (const char* other : {"vision", "audio", "multimodal"}) {
    CAPTURE(other);
    Result found = learn(1, {kDdp, kFull, scope(other)}, always);
    CHECK(found.runs == none.runs);
    CHECK(found.notices.size() == (std::string(other) == "audio" ? 1 : 0));
    compare(found, none, 0);
  }
  Result shared = learn(2, {rule("per_layer")}, always),
         both = learn(2, {rule("per_layer"), kFull, scope("vision+language")}, always);
  CHECK(both.runs == 2 * shared.runs);
}

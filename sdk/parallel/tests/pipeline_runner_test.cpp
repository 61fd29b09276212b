// Stages of a pipeline train as the model in one place does: losses and gradients to the bit. Long
// because all cases share that model and its stages.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <torch/nn/modules/container/modulelist.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/pipeline_runner.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/tests/faulty_transport.h"
#include "sdk/comm/tests/sampled.h"
#include "sdk/comm/tests/shared_memory_switch.h"
#include "sdk/nn/weight_gradients.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace pipeline_runner_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kWidth = 6, kInner = 70, kVocab = 11, kTokens = 5, kRows = 2, kLayers = 8;

// Begins and ends with a Linear, so that weights' gradients are made of the messages themselves.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    first = register_module("first", Linear(torch::nn::LinearOptions(kWidth, kInner)));
    norm = register_module("norm", RMSNorm(kInner, 1e-6));
    last = register_module("last", Linear(torch::nn::LinearOptions(kInner, kWidth)));
  }
  Tensor forward(const Tensor& x) { return x + last(at::silu(norm(first(x)))); }
  Linear first{nullptr}, last{nullptr};
  RMSNorm norm{nullptr};
};
MESHWRIGHT_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed", Embedding(kVocab, kWidth));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < kLayers; ++i) layers->push_back(Block());
    norm = register_module("norm", RMSNorm(kWidth, 1e-6));
    head = register_module("head", Linear(torch::nn::LinearOptions(kWidth, kVocab).bias(false)));
    at::Generator generator = at::detail::createCPUGenerator(5);
    c10::NoGradGuard no_grad;
    for (Tensor& p : parameters()) p.copy_(at::randn(p.sizes(), generator) * 0.4);
  }
  Tensor forward(const Tensor& x) {
    const StagePart part = current_stage();
    Tensor h = part.first ? embed(x) : x;
    for (int64_t i = part.begin; i < part.end_of(kLayers); ++i)
      h = layers[static_cast<size_t>(i)]->as<Block>()->forward(h);
    return part.last ? head(norm(h)) : h;
  }
  Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  RMSNorm norm{nullptr};
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Net);

struct Row {
  int64_t pp, local, micro_batches;
  PipelineSchedule schedule;
  bool hold = true, reduce_each = false;
  int64_t shards = 1;
  int64_t frozen_layers = -1;  // embedding and so many layers are frozen; -1: nothing is
  // Before the first step others begin that end in the forward, or before the backward, of this
  // number; -1: none.
  int64_t failing_forward = -1, failing_backward = -1;
  int64_t severed = -1;    // a stage that does not look at its input; -1: none
  uint64_t slow_seed = 0;  // forwards and backwards take longer, by chance of their own
};
struct Result {
  std::map<std::string, Tensor> gradients;     // by name and place among the shards
  std::map<int64_t, double> losses;            // by micro-batch, of the first shard
  std::map<int64_t, PipelinePeak> peaks = {};  // by rank of pp
};

Tensor batch(int64_t step, int64_t micro_batch, int64_t shard) {
  const auto seed = static_cast<uint64_t>((step * 100 + micro_batch) * 10 + shard);
  return at::randint(0, kVocab, {kRows, kTokens + 1}, at::detail::createCPUGenerator(seed),
                     at::kLong);
}
Tensor loss_of(const Tensor& logits, const Tensor& ids) {
  return at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, kTokens).flatten());
}

std::unique_ptr<ParallelModel> shard(Net& net, DeviceMesh& mesh, const Row& row,
                                     const std::shared_ptr<World>& world) {
  ShardGroups groups;
  groups.shard = mesh.group("dp_shard");
  groups.shard_axis = "dp_shard";
  groups.data = groups.shard;
  ShardingPolicy policy;
  policy.precision.mp = {DType::float32, DType::float32, DType::float32, true};
  policy.reduction.every_micro_batch = row.reduce_each;
  const ModelOutline outline = outline_of(*net);
  return shard_model(net.ptr(), bind_units(*net, outline, plan_units(outline, !row.hold)), policy,
                     groups, world);
}

void freeze(Net& net, int64_t layers) {
  if (layers < 0) return;
  for (auto& item : net->named_parameters())
    if (item.key().starts_with("embed") ||
        (item.key().starts_with("layers.") && item.key()[7] - '0' < layers))
      item.value().set_requires_grad(false);
}

void collect(Result& into, std::mutex& mutex, const ParallelModel& model, int64_t place) {
  std::lock_guard lock(mutex);
  for (const ParallelParameter& p : model.parameters())
    if (p.grad.defined())
      into.gradients[p.name + " " + std::to_string(place)] = p.grad.detach().clone();
}

constexpr int64_t kSteps = 2;

// One process a shard, micro-batches one after the other.
Result whole(const Row& row) {
  Result out;
  std::mutex mutex;
  run_ranks(row.shards, [&](const std::shared_ptr<World>& world) {
    DeviceMesh mesh(Mesh({{"dp_shard", row.shards}}), world);
    Net net;
    freeze(net, row.frozen_layers);
    std::unique_ptr<ParallelModel> model = shard(net, mesh, row, world);
    for (int64_t step = 0; step < kSteps; ++step) {
      model->begin_step();
      for (int64_t m = 0; m < row.micro_batches; ++m) {
        model->begin_micro_batch(m + 1 == row.micro_batches ? GradientSync::reduce
                                                            : GradientSync::accumulate);
        const Tensor ids = batch(step, m, world->rank());
        Tensor loss = loss_of(net(ids.narrow(1, 0, kTokens)), ids);
        if (world->rank() == 0) out.losses[step * 100 + m] = loss.item<double>();
        loss.backward();
      }
      model->end_step();
    }
    collect(out, mutex, *model, world->rank());
  });
  return out;
}

struct Job {
  explicit Job(const Row& given) : row(given) {
    PipelineOptions options;
    options.schedule = schedule_name(row.schedule);
    options.batch_size = row.micro_batches;
    if (row.local > 1) options.layers_per_stage = kLayers / (row.pp * row.local);
    plan = plan_stages(kLayers, row.pp, options);
    run = simulate_pipeline(make_actions(row.schedule, row.pp, row.local, row.micro_batches));
  }
  Row row;
  PipelinePlan plan;
  PipelineRun run;
  Result result;
  std::mutex mutex;
  std::atomic<int64_t> late_weights = 0;  // actions that were made to wait
  bool last(int64_t stage) const { return stage + 1 == static_cast<int64_t>(plan.stages.size()); }
};

void train_stages(Job& job, const std::shared_ptr<World>& world) {
  const Row& row = job.row;
  DeviceMesh mesh(Mesh({{"pp", row.pp}, {"dp_shard", row.shards}}), world);
  const int64_t me = mesh.group("pp")->rank(), place = mesh.group("dp_shard")->rank();
  PipelineSetup setup;
  setup.group = mesh.group("pp");
  setup.run = job.run;
  setup.stages_of_rank = job.plan.stages_of_rank;
  if (row.micro_batches % 2 == 0) setup.message.sizes = {kRows, kTokens, kWidth};
  setup.modules.resize(job.plan.stages.size());
  std::vector<std::string> kept;
  for (const PipelineStage& stage : job.plan.stages) {
    setup.needs_input_gradient.push_back(
        stage.index > 0 && (row.frozen_layers < 0 || stage.first_layer > row.frozen_layers));
    if (stage.rank != me) continue;
    for (int64_t i = stage.first_layer; i < stage.first_layer + stage.layer_count; ++i) {
      kept.push_back("layers." + std::to_string(i));
      setup.modules[static_cast<size_t>(stage.index)].push_back(kept.back());
    }
    if (stage.index == 0) kept.emplace_back("embed");
    if (job.last(stage.index)) kept.insert(kept.end(), {"norm", "head"});
  }
  Net net;
  keep_modules(*net, kept);
  freeze(net, row.frozen_layers);
  std::unique_ptr<ParallelModel> model = shard(net, mesh, row, world);
  PipelineRunner runner(setup);
  std::mt19937_64 chance(row.slow_seed * 10 + static_cast<uint64_t>(me));
  auto dawdle = [&] {
    if (row.slow_seed > 0 && chance() % 3 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(chance() % 600));
  };
  auto fails = [&](int64_t& left) {
    if (left-- == 0) throw std::runtime_error("fails");
    dawdle();
  };
  // Actions for weights run nothing of the caller but what stands in their queue.
  auto slow_weights = [&](int64_t layer) {
    const auto queue = meshwright::detail::current_weight_gradients();
    if (row.slow_seed == 0 || !queue) return;
    const Tensor weight = net->layers->ptr<BlockImpl>(static_cast<size_t>(layer))->first->weight;
    queue->put_off(weight, [&dawdle, &late = job.late_weights, weight] {
      dawdle();
      ++late;
      return at::zeros_like(weight);
    });
  };
  auto train = [&](int64_t step, int64_t forwards, int64_t backwards) {
    model->begin_step();
    runner.run(
        *model,
        [&](const PipelineAction& action, const Tensor& input) {
          fails(forwards);
          const PipelineStage& stage = job.plan.stages[static_cast<size_t>(action.stage)];
          StageScope scope({.first = action.stage == 0,
                            .last = job.last(action.stage),
                            .begin = stage.first_layer,
                            .end = stage.first_layer + stage.layer_count});
          slow_weights(stage.first_layer);
          const Tensor ids = batch(step, action.micro_batch, place);
          Tensor result = net(action.stage == 0             ? ids.narrow(1, 0, kTokens)
                              : action.stage == row.severed ? at::ones_like(input)
                                                            : input);
          if (!job.last(action.stage)) return result;
          result = loss_of(result, ids);
          std::lock_guard lock(job.mutex);
          if (place == 0)
            job.result.losses[step * 100 + action.micro_batch] = result.item<double>();
          return result;
        },
        [&](const PipelineAction&) { fails(backwards); });
    model->end_step();
  };
  if (row.failing_forward >= 0 || row.failing_backward >= 0)
    CHECK_THROWS_WITH(train(50, row.failing_forward, row.failing_backward), "fails");
  job.result.losses.clear();
  for (int64_t step = 0; step < kSteps; ++step) train(step, -1, -1);
  collect(job.result, job.mutex, *model, place);
  std::lock_guard lock(job.mutex);
  job.result.peaks[me] = runner.peak();
}

Result staged(const Row& row, const testing::Faults& faults = {}) {
  Job job(row);
  run_ranks(row.pp * row.shards, [&](const std::shared_ptr<World>& world) {
    train_stages(job, faults.max_delay_us == 0
                          ? world
                          : testing::faulty_world(world, faults, std::chrono::seconds(30)));
  });
  const bool split = row.schedule == PipelineSchedule::interleaved_zero_bubble ||
                     row.schedule == PipelineSchedule::zbv_zero_bubble ||
                     row.schedule == PipelineSchedule::dual_pipe_v;
  CHECK((job.late_weights > 0) == (split && row.slow_seed > 0));
  return std::move(job.result);
}

}  // namespace

TEST_CASE("a pipeline gives the bits of one place, whatever the schedule") {
  using enum PipelineSchedule;
  // One of each schedule and what no layout of engine/train/run/tests/pipeline_test.cpp has, which
  // holds all schedules on two and four ranks with any number of micro-batches to one process.
  const Row rows[] = {
      {2, 1, 4, gpipe},
      {4, 1, 2, one_f_one_b},
      {2, 4, 4, interleaved_1f1b},
      {2, 2, 4, interleaved_zero_bubble, false, false, 2},
      {2, 2, 5, zbv_zero_bubble, true, false, 2},
      {2, 2, 4, zbv_zero_bubble, true, false, 1, 3},
      {4, 2, 8, dual_pipe_v},
      {2, 1, 3, one_f_one_b, true, true, 2},
      {2, 1, 3, one_f_one_b, true, false, 2, 2},
      {2, 1, 3, one_f_one_b, true, false, 1, 4},
      {4, 1, 3, one_f_one_b, true, false, 1, 5},
      {2, 2, 4, interleaved_1f1b, true, false, 1, 3},
  };
  for (const Row& row : rows) {
    CAPTURE(schedule_name(row.schedule));
    CAPTURE(row.pp);
    CAPTURE(row.local);
    CAPTURE(row.micro_batches);
    CAPTURE(row.shards);
    CAPTURE(row.hold);
    CAPTURE(row.reduce_each);
    CAPTURE(row.frozen_layers);
    const Result one = whole(row), many = staged(row);
    CHECK(one.losses == many.losses);
    CHECK(one.gradients.size() == many.gradients.size());
    for (const auto& [name, gradient] : one.gradients) {
      REQUIRE_MESSAGE(many.gradients.contains(name), name);
      CHECK_MESSAGE(many.gradients.at(name).equal(gradient), name);
    }
  }
}

// Table 2.5 of the plan (pipeline_simulation_test.cpp) is that of the run.
TEST_CASE("a rank of a pipeline holds as many passes as its list says, and no more") {
  using enum PipelineSchedule;
  struct Held {
    Row row;
    std::vector<PipelinePeak> peaks;  // [pp]: passes, of these waiting, logits
  };
  // 1F1B: min(m, p - r). Interleaved: (v-1) g + 2 (p-1-r) + 1. Zero bubble: (v-1) g + p, of which
  // r + 1 wait. ZBV: 2 p and 2 r + 1. DualPipeV: 2 p + 1 and r + 1.
  for (const Held& held : std::vector<Held>{
           {{2, 1, 4, gpipe}, {{4, 0, 0}, {4, 0, 4}}},
           {{2, 2, 4, looped_bfs}, {{8, 0, 0}, {8, 0, 4}}},
           {{4, 1, 8, one_f_one_b}, {{4, 0, 0}, {3, 0, 0}, {2, 0, 0}, {1, 0, 1}}},
           {{4, 1, 2, one_f_one_b}, {{2, 0, 0}, {2, 0, 0}, {2, 0, 0}, {1, 0, 1}}},
           {{2, 2, 4, interleaved_1f1b}, {{5, 0, 0}, {3, 0, 1}}},
           {{4, 2, 8, interleaved_1f1b}, {{11, 0, 0}, {9, 0, 0}, {7, 0, 0}, {5, 0, 1}}},
           {{4, 2, 8, interleaved_zero_bubble}, {{8, 1, 0}, {8, 2, 0}, {8, 3, 0}, {8, 4, 1}}},
           {{4, 2, 8, zbv_zero_bubble}, {{8, 1, 1}, {8, 3, 0}, {8, 5, 0}, {8, 7, 0}}},
           {{4, 2, 8, dual_pipe_v}, {{9, 1, 1}, {9, 2, 0}, {9, 3, 0}, {9, 4, 0}}}}) {
    CAPTURE(schedule_name(held.row.schedule));
    const Result result = staged(held.row);
    for (int64_t rank = 0; rank < held.row.pp; ++rank) {
      CAPTURE(rank);
      const PipelinePeak &counted = result.peaks.at(rank),
                         &wanted = held.peaks[static_cast<size_t>(rank)],
                         listed =
                             simulate_pipeline(make_actions(held.row.schedule, held.row.pp,
                                                            held.row.local, held.row.micro_batches))
                                 .peaks[static_cast<size_t>(rank)];
      CHECK(counted.passes == wanted.passes);
      CHECK(counted.waiting == wanted.waiting);
      CHECK(counted.logits == wanted.logits);
      CHECK(counted.passes == listed.passes);
      CHECK(counted.waiting == listed.waiting);
      CHECK(counted.logits == listed.logits);
    }
  }
}

TEST_CASE("late and reordered messages of a pipeline change no bit, and nobody waits for ever") {
  using enum PipelineSchedule;
  uint64_t seed = 1;  // a hundred in `check --all`; each schedule has run with a hundred once
  for (const Row& row :
       {Row{2, 1, 4, gpipe}, Row{2, 1, 4, one_f_one_b}, Row{2, 2, 4, looped_bfs},
        Row{2, 2, 4, interleaved_1f1b}, Row{2, 2, 4, interleaved_zero_bubble},
        Row{2, 2, 4, zbv_zero_bubble}, Row{2, 2, 4, dual_pipe_v}, Row{4, 1, 6, one_f_one_b},
        Row{4, 2, 8, interleaved_zero_bubble}, Row{4, 2, 6, zbv_zero_bubble}}) {
    CAPTURE(schedule_name(row.schedule));
    const Result one = staged(row);
    const int times = all_layouts() ? (row.pp == 2 ? 15 : 3) : (row.pp == 2 ? 4 : 2);
    for (int i = 0; i < times; ++i, seed += 10) {
      CAPTURE(seed);
      std::vector<Result> found;
      {
        // Messages of a host would go past the faults, which are those of sockets.
        const meshwright::testing::SharedMemory sockets(false);
        found.push_back(staged(row, {.seed = seed, .max_delay_us = 200, .reorder = true}));
      }
      Row slow = row;
      slow.slow_seed = seed;
      found.push_back(staged(slow));
      for (const Result& many : found) {
        CHECK(one.losses == many.losses);
        CHECK(one.gradients.size() == many.gradients.size());
        for (const auto& [name, gradient] : one.gradients)
          CHECK_MESSAGE(many.gradients.at(name).equal(gradient), name);
      }
    }
  }
}

TEST_CASE("a stage whose output does not depend on its input sends zeros back") {
  using enum PipelineSchedule;
  for (Row row : {Row{2, 1, 4, one_f_one_b}, Row{2, 2, 4, interleaved_1f1b},
                  Row{2, 2, 4, interleaved_zero_bubble}, Row{2, 2, 4, zbv_zero_bubble}}) {
    row.severed = row.pp * row.local / 2;
    CAPTURE(schedule_name(row.schedule));
    const Result found = staged(row);
    CHECK(found.gradients.size() == staged(Row{2, row.local, 4, row.schedule}).gradients.size());
    for (const auto& [name, gradient] : found.gradients) {
      const bool before =
          name.starts_with("embed") || (name.starts_with("layers.") && name[7] - '0' < kLayers / 2);
      CHECK_MESSAGE((gradient.abs().max().item<float>() == 0) == before, name);
    }
  }
}

// All stages on one rank: no message is left under way.
TEST_CASE("a step that an exception cut short leaves nothing to the next one") {
  using enum PipelineSchedule;
  for (Row row : {Row{1, 2, 4, interleaved_1f1b}, Row{1, 2, 4, interleaved_zero_bubble},
                  Row{1, 2, 4, zbv_zero_bubble}, Row{1, 2, 4, zbv_zero_bubble, false},
                  Row{1, 2, 4, zbv_zero_bubble, true, true}}) {
    const Result one = whole(row);
    for (int64_t number = 0; number < 8; ++number)
      for (bool backward : {false, true}) {
        (backward ? row.failing_backward : row.failing_forward) = number;
        (backward ? row.failing_forward : row.failing_backward) = -1;
        CAPTURE(schedule_name(row.schedule));
        CAPTURE(number);
        CAPTURE(backward);
        const Result found = staged(row);
        CHECK(one.losses == found.losses);
        CHECK(one.gradients.size() == found.gradients.size());
        for (const auto& [name, gradient] : one.gradients)
          CHECK_MESSAGE(found.gradients.at(name).equal(gradient), name);
      }
  }
}

TEST_CASE("after an error in one stage no rank trains on with what is left of its messages") {
  using enum PipelineSchedule;
  for (const bool shared : {true, false})
    for (const bool first : {true, false}) {
      CAPTURE(shared);
      CAPTURE(first);
      const meshwright::testing::SharedMemory memory(shared);
      Job job({2, 1, 4, one_f_one_b});
      std::array<std::array<std::string, 2>, 2> told;  // by rank: of two runs
      std::barrier both(2);
      run_ranks(
          2,
          [&](const std::shared_ptr<World>& world) {
            PipelineSetup setup;
            setup.group = world->group("pp", {0, 1});
            setup.run = job.run;
            setup.stages_of_rank = job.plan.stages_of_rank;
            setup.message.sizes = {kRows, kWidth};
            setup.modules.resize(2);
            setup.needs_input_gradient = {false, true};
            DeviceMesh mesh(Mesh({{"dp_shard", 1}}), World::single());
            Net net;
            std::unique_ptr<ParallelModel> model = shard(net, mesh, job.row, World::single());
            PipelineRunner runner(setup);
            const bool fails = first == (world->rank() == 0);
            auto train = [&] {
              model->begin_step();
              runner.run(*model, [&](const PipelineAction& action, const Tensor& input) -> Tensor {
                if (fails && action.micro_batch == 2) throw std::runtime_error("fails");
                if (action.stage == 1) return input.sum();
                return at::ones({kRows, kWidth}).requires_grad_();
              });
            };
            for (std::string& text : told[static_cast<size_t>(world->rank())]) try {
                train();
              } catch (const std::exception& error) {
                text = error.what();
              }
            both.arrive_and_wait();  // one of them has waited for the other
          },
          std::chrono::seconds(3));
      for (const size_t rank : {size_t{0}, size_t{1}}) {
        CAPTURE(rank);
        const bool failed = first == (rank == 0);
        CHECK(told[rank][0].starts_with(failed ? "fails" : "error[E060"));
        CHECK(told[rank][1].find("ended in an error: messages between its 2 ranks are lost") !=
              std::string::npos);
      }
    }
}

// Rank 0 sends 0F0 and 0F1, waits for a gradient, and ends before it sends 0F2.
TEST_CASE("a rank that ends in a pipeline is told of by the action that waits for it") {
  Job job({2, 1, 4, PipelineSchedule::one_f_one_b});
  std::string text;
  auto body = [&](const std::shared_ptr<World>& world) {
    try {
      train_stages(job, testing::faulty_world(world, {.stop = world->rank() == 0 ? 4 : -1},
                                              std::chrono::seconds(30)));
    } catch (const Error& error) {
      if (world->rank() == 1) text = error.what();
      throw;
    }
  };
  const meshwright::testing::SharedMemory sockets(false);
  CHECK_THROWS(run_ranks(2, body));
  CAPTURE(text);
  CHECK(text.find("in group pp [0, 1] failed") != std::string::npos);
  // Whichever of its steps meets it first: a socket may tell of it when a receive is posted.
  CHECK(text.find(" of the pipeline, which ") != std::string::npos);
  CHECK(text.find(" the activation from rank 0") != std::string::npos);
}

}  // namespace pipeline_runner_test

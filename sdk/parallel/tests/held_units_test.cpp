// What pipelines ask of a model: units that stay gathered over the passes of several micro-batches,
// and reductions that start when they are told to. Nothing of it may change a bit.
#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/pipeline_runner.h"
#include "sdk/comm/tests/sampled.h"
#include "tiny_model.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace held_units_test {

using namespace meshwright;
using at::Tensor;
using enum GradientSync;

namespace {

constexpr int kSteps = 2, kLayers = 4, kMicroBatches = 3;

enum class Kind : uint8_t { rows, flat, level_2, level_1, level_0, replicas, replicas_apart };
// A micro-batch after the other, the last one reduces; or 1F1B, told to reduce all units after the
// last backward, part by part, beside it, or all of them after each backward.
enum class How : uint8_t { ordinary, together, in_parts, beside, each };

struct Row {
  const char* name;
  Kind kind = Kind::rows;
  int64_t ranks = 2, replicas = 1;
  DType param = DType::float32;
  bool held = true, recompute = false, every = false;
};

struct Result {
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients, parameters;
  std::map<std::string, int64_t> counts;  // of collectives, of the last step
};

std::unique_ptr<ParallelModel> model_of(const Row& row, tiny::Net& net,
                                        const std::shared_ptr<World>& world) {
  const MixedPrecision mp{row.param, DType::float32, DType::float32, true};
  if (row.kind == Kind::replicas || row.kind == Kind::replicas_apart) {
    ReplicatedPolicy policy;
    policy.mp = mp;
    policy.gradient_as_bucket_view = row.kind == Kind::replicas;
    policy.bucket_bytes = policy.first_bucket_bytes = 900;
    return replicate_model(net.ptr(), policy, world->everyone(), world);
  }
  ShardingPolicy policy;
  ShardGroups shards = tiny::groups_of(world, row.replicas);
  policy.precision.mp = mp;
  policy.reduction.every_micro_batch = row.every;
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
  const ModelOutline outline = outline_of(*net);
  // Units that are freed after every forward are not held.
  const std::optional<bool> reshard = row.held ? std::optional(false) : std::nullopt;
  return shard_model(net.ptr(), bind_units(*net, outline, plan_units(outline, reshard)), policy,
                     shards, world);
}

Tensor batch(const World& world, int step, int micro) {
  return tiny::batch(2, static_cast<uint64_t>((int64_t{step} * 10 + micro) * 10 + world.rank()));
}

// One step of three micro-batches; returns their losses.
std::vector<double> ordinary_step(ParallelModel& model, tiny::Net& net, const World& world,
                                  int step) {
  std::vector<double> out;
  for (int micro = 0; micro < kMicroBatches; ++micro) {
    model.begin_micro_batch(micro + 1 == kMicroBatches ? reduce : accumulate);
    Tensor loss = tiny::loss_of(net, batch(world, step, micro));
    out.push_back(loss.item<double>());
    loss.backward();
  }
  return out;
}

std::vector<double> told_step(ParallelModel& model, tiny::Net& net, const World& world, int step,
                              How how) {
  std::array<Tensor, kMicroBatches> losses;
  std::vector<double> out;
  for (auto [forward, micro] : {std::pair{true, 0}, std::pair{true, 1}, std::pair{false, 0},
                                std::pair{true, 2}, std::pair{false, 1}, std::pair{false, 2}}) {
    const bool last = !forward && micro + 1 == kMicroBatches;
    model.begin_micro_batch(last && how == How::beside ? reduce : when_told);
    Tensor& loss = losses[static_cast<size_t>(micro)];
    if (forward) {
      loss = tiny::loss_of(net, batch(world, step, micro));
      out.push_back(loss.item<double>());
    } else {
      loss.backward();
      if (how == How::each) model.pipeline_units()->reduce_units({});
    }
  }
  if (how == How::together) model.pipeline_units()->reduce_units({});
  if (how == How::in_parts) {
    model.pipeline_units()->reduce_units({"layers.3", "layers.2"});
    model.pipeline_units()->reduce_units({"layers.0", "layers.1"});
    model.pipeline_units()->reduce_units({"root"});
  }
  return out;
}

std::map<std::string, int64_t> sent(World& world) {
  std::map<std::string, int64_t> out;
  for (const TrafficCounter::Row& row : world.traffic().rows())
    if (row.axis != "control") out[row.axis + " " + row.op] = row.count;
  return out;
}

Result train(const Row& row, How how, const std::shared_ptr<World>& world) {
  tiny::Net net = tiny::make(kLayers, 3);
  if (row.recompute)
    checkpoint_layers(*net, layer_names(outline_of(*net)), ActivationCheckpointing::full, true);
  std::unique_ptr<ParallelModel> model = model_of(row, net, world);
  Result out;
  for (int step = 0; step < kSteps; ++step) {
    const std::map<std::string, int64_t> before = sent(*world);
    model->begin_step();
    if (row.held && how != How::ordinary) model->pipeline_units()->hold_units({}, true);
    for (double loss : how == How::ordinary ? ordinary_step(*model, net, *world, step)
                                            : told_step(*model, net, *world, step, how))
      out.losses.push_back(loss);
    model->end_step();
    for (const ParallelParameter& p : model->parameters()) out.gradients[p.name] = p.grad.clone();
    {
      c10::NoGradGuard no_grad;
      for (const FlatParameterGroup& group : model->update_groups())
        group.values.add_(group.grads, -0.1);
    }
    model->after_optimizer_step();
    out.counts = sent(*world);
    for (const auto& [what, count] : before) out.counts[what] -= count;
    std::erase_if(out.counts, [](const auto& item) { return item.second == 0; });
  }
  for (const ParallelParameter& p : model->parameters())
    out.parameters[p.name] = model->full_tensor(p.name);
  return out;
}

// By rank.
std::vector<Result> run(const Row& row, How how) {
  std::mutex mutex;
  std::vector<Result> out(static_cast<size_t>(row.ranks));
  run_ranks(row.ranks, [&](const std::shared_ptr<World>& world) {
    Result result = train(row, how, world);
    std::lock_guard lock(mutex);
    out[static_cast<size_t>(world->rank())] = std::move(result);
  });
  return out;
}

void compare(const std::vector<Result>& found, const std::vector<Result>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t rank = 0; rank < found.size(); ++rank) {
    CAPTURE(rank);
    CHECK(found[rank].losses == expected[rank].losses);
    REQUIRE(found[rank].gradients.size() == expected[rank].gradients.size());
    for (const auto& [name, gradient] : found[rank].gradients) {
      CAPTURE(name);
      CHECK(gradient.equal(expected[rank].gradients.at(name)));
      CHECK(found[rank].parameters.at(name).equal(expected[rank].parameters.at(name)));
    }
  }
}

// What the step of a model throws, and that an ordinary step is possible behind it.
std::string broken(ParallelModel& model, tiny::Net& net, const World& world,
                   const std::function<void()>& body) {
  std::string what;
  model.begin_step();
  try {
    body();
  } catch (const std::exception& error) {
    what = error.what();
  }
  model.begin_step();
  ordinary_step(model, net, world, 0);
  model.end_step();
  return what;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The least that a strategy's own model has.
struct Bare final : ParallelModel {
  void begin_step() override {}
  void begin_micro_batch(GradientSync) override {}
  void end_step() override {}
  const std::vector<ParallelParameter>& parameters() const override { return none; }
  const std::vector<FlatParameterGroup>& update_groups() const override { return groups; }
  void after_optimizer_step() override {}
  double clip_grad_norm(double, double) override { return 0; }
  Tensor full_tensor(std::string_view) override { return {}; }
  void summon_full_parameters(const std::function<void()>&) override {}
  std::shared_ptr<Group> data_group() override { return nullptr; }
  std::vector<ParallelParameter> none;
  std::vector<FlatParameterGroup> groups;
};

}  // namespace

TEST_CASE(
    "micro-batches in the order of a pipeline, units held and told to reduce, change no bit of "
    "losses, gradients and parameters") {
  const std::vector<Row> rows = {
      {.name = "rows"},
      {.name = "one rank", .ranks = 1},
      {.name = "rows, four", .ranks = 4},
      {.name = "rows, bfloat16", .param = DType::bfloat16},
      {.name = "rows, gathered for each pass", .held = false},
      {.name = "rows, recomputed", .recompute = true},
      {.name = "rows, recomputed, gathered for each pass", .held = false, .recompute = true},
      {.name = "hybrid", .ranks = 4, .replicas = 2},
      {.name = "hybrid, bfloat16", .ranks = 4, .replicas = 2, .param = DType::bfloat16},
      {.name = "flat", .kind = Kind::flat},
      {.name = "flat, bfloat16", .kind = Kind::flat, .ranks = 4, .param = DType::bfloat16},
      {.name = "flat, gathered for each pass", .kind = Kind::flat, .held = false},
      {.name = "flat hybrid", .kind = Kind::flat, .ranks = 4, .replicas = 2},
      {.name = "level 2", .kind = Kind::level_2, .ranks = 4},
      {.name = "level 1", .kind = Kind::level_1},
      {.name = "level 1, bfloat16", .kind = Kind::level_1, .param = DType::bfloat16},
      {.name = "level 0", .kind = Kind::level_0},
      {.name = "replicas", .kind = Kind::replicas},
      {.name = "replicas, alone", .kind = Kind::replicas, .ranks = 1},
      {.name = "replicas, bfloat16", .kind = Kind::replicas, .param = DType::bfloat16},
      {.name = "replicas, gradients apart", .kind = Kind::replicas_apart, .ranks = 4},
  };
  size_t turn = 0;
  for (const Row& row : rows) {
    if (!sampled_over_sockets(turn++, 3)) continue;
    INFO(row.name);
    const std::vector<Result> expected = run(row, How::ordinary);
    for (How how : {How::together, How::in_parts, How::beside}) compare(run(row, how), expected);
  }
}

TEST_CASE("units reduce when they are told to, whatever the policy says of micro-batches") {
  Row row{.name = "each"};
  const std::vector<Result> once = run(row, How::ordinary);
  row.every = true;
  compare(run(row, How::together), once);
  for (Kind kind : {Kind::rows, Kind::flat, Kind::level_2}) {
    row.kind = kind;
    CAPTURE(static_cast<int>(kind));
    compare(run(row, How::each), run(row, How::ordinary));
  }
}

TEST_CASE("a held unit is gathered once a step, and one that is told once reduces once") {
  constexpr int64_t kUnits = kLayers + 1;
  using Counts = std::map<std::string, int64_t>;
  const Counts once{{"dp_shard all_gather", kUnits}, {"dp_shard reduce_scatter", kUnits}};
  for (How how : {How::together, How::in_parts})
    for (Kind kind : {Kind::rows, Kind::flat, Kind::level_2, Kind::level_1}) {
      CAPTURE(static_cast<int>(kind));
      for (const Result& rank : run({.name = "held", .kind = kind}, how))
        CHECK(rank.counts == once);
      for (const Result& rank : run({.name = "four", .kind = kind, .ranks = 4}, how))
        CHECK(rank.counts == once);
    }
  Counts hybrid = once;
  hybrid["dp_replicate all_reduce"] = kUnits;
  for (const Result& rank : run({.name = "hybrid", .ranks = 4, .replicas = 2}, How::together))
    CHECK(rank.counts == hybrid);
  const Row copies{.name = "replicas", .kind = Kind::replicas};
  CHECK(run(copies, How::in_parts)[0].counts == run(copies, How::ordinary)[0].counts);
  // Not held: the root, whose passes do not follow each other, is gathered for each of them too.
  for (const Result& rank : run({.name = "not held", .held = false}, How::together)) {
    CHECK(rank.counts.at("dp_shard all_gather") == kUnits * kMicroBatches * 2);
    CHECK(rank.counts.at("dp_shard reduce_scatter") == kUnits);
  }
}

TEST_CASE("held units can be used between passes until they are let go") {
  for (Kind kind : {Kind::rows, Kind::flat})
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      tiny::Net net = tiny::make(2, 3);
      std::unique_ptr<ParallelModel> model = model_of({.name = "held", .kind = kind}, net, world);
      std::map<std::string, Tensor> parameters;
      for (const auto& item : net->named_parameters()) parameters[item.key()] = item.value();
      const Tensor first = parameters.at("layers.0.self_attn.weight"),
                   second = parameters.at("layers.1.self_attn.weight");
      model->begin_step();
      model->pipeline_units()->hold_units({"layers.0"}, true);
      model->begin_micro_batch(when_told);
      Tensor loss = tiny::loss_of(net, batch(*world, 0, 0));
      model->begin_micro_batch(when_told);
      CHECK(first.detach().abs().sum().item<double>() > 0);
      CHECK_THROWS((void)second.detach().abs().sum());
      loss.backward();
      model->begin_micro_batch(when_told);
      CHECK_NOTHROW((void)first.detach().abs().sum());
      model->pipeline_units()->hold_units({"layers"}, false);
      CHECK_THROWS((void)first.detach().abs().sum());
      model->pipeline_units()->reduce_units({});
      model->pipeline_units()->hold_units({"layers.0"}, true);
      model->end_step();
      model->after_optimizer_step();
      model->begin_step();
      ordinary_step(*model, net, *world, 0);  // the step before has let it go
      model->end_step();
      CHECK_THROWS((void)first.detach().abs().sum());
    });
}

TEST_CASE("gradients that nobody told to reduce end the step with an error, and are not lost") {
  for (Kind kind :
       {Kind::rows, Kind::flat, Kind::level_1, Kind::level_0, Kind::replicas, Kind::replicas_apart})
    for (int64_t ranks : {1, 2})
      run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
        CAPTURE(static_cast<int>(kind));
        tiny::Net net = tiny::make(kLayers, 3);
        std::unique_ptr<ParallelModel> model =
            model_of({.name = "told", .kind = kind, .ranks = ranks}, net, world);
        auto pass = [&] {
          model->begin_micro_batch(when_told);
          Tensor loss = tiny::loss_of(net, batch(*world, 0, 0));
          model->begin_micro_batch(when_told);
          loss.backward();
        };
        const std::string internal = code_string(ErrorCode::internal);
        std::string what = broken(*model, net, *world, [&] {
          model->pipeline_units()->hold_units({}, true);
          pass();
          model->pipeline_units()->reduce_units({"layers.3", "root"});
          model->end_step();
        });
        CHECK(contains(what, internal));
        CHECK(contains(what, "layers.0, layers.1, layers.2 were not reduced"));
        what = broken(*model, net, *world, [&] {
          pass();
          model->clip_grad_norm(1);
        });
        CHECK(contains(what, "were not reduced"));
        what = broken(*model, net, *world, [&] { model->pipeline_units()->reduce_units({}); });
        CHECK(contains(what, internal));  // no micro-batch said so
        what = broken(*model, net, *world, [&] {
          pass();
          model->pipeline_units()->reduce_units({"layer"});
        });
        CHECK(contains(what, "no unit at or in \"layer\""));
        // A backward behind the reduction: reduced again, or refused where gradients are whole.
        what = broken(*model, net, *world, [&] {
          pass();
          model->pipeline_units()->reduce_units({});
          pass();
          model->end_step();
        });
        const bool copies = kind == Kind::replicas || kind == Kind::replicas_apart;
        if (kind == Kind::rows || kind == Kind::flat)
          CHECK(contains(what, "were not reduced after their last backward"));
        else if (!copies || ranks > 1)
          CHECK(contains(what, "after a reduction"));
      });
}

TEST_CASE("a model that knows nothing of pipelines is refused by them") {
  run_ranks(1, [](const std::shared_ptr<World>& world) {
    Bare bare;
    PipelineSetup setup;
    setup.group = world->everyone();
    setup.run = simulate_pipeline(make_actions(PipelineSchedule::gpipe, 1, 1, 1));
    setup.stages_of_rank = {{0}};
    setup.modules = {{""}};
    PipelineRunner runner(std::move(setup));
    try {
      runner.run_forwards(bare, {});
      FAIL("went on");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::not_in_release);
      CHECK(error.key() == "distributed.pp_size");
    }
  });
}

}  // namespace held_units_test

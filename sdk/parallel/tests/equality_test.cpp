// Sharded and replicated models take the same steps as one process: losses, gradient norms and
// every parameter. Long because all cases share the models and that process.
#include <ATen/Context.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "sdk/comm/tests/sampled.h"
#include "sdk/comm/tests/shared_memory_switch.h"
#include "tiny_model.h"

namespace equality_test {

using namespace meshwright;
using at::Tensor;

namespace {

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> parameters;
};

MixedPrecision float32() { return {DType::float32, DType::float32, DType::float32, true}; }

struct Setting {
  std::string name;
  int64_t ranks = 1, replicas = 1;  // replicas > 1: HSDP
  bool replicated = false;
  ShardLayout layout = ShardLayout::rows;
  int reshard = -1;  // -1: all but the last of the list
  bool explicit_prefetch = false, prefetch = true;
  int64_t forward_depth = 1, backward_depth = 2, accumulation = 1;
  bool every = false;
  ActivationCheckpointing checkpointing = ActivationCheckpointing::none;
  bool tied = false, bucket_view = true;
  std::vector<std::string> frozen = {};  // parts of names
  int64_t bucket_bytes = 25 << 20;
  double dropout = 0;
  int level = -1;  // 0 to 2: what a flat layout keeps whole
  bool double_buffer = false;
  bool parted = false;  // what trains beside frozen parameters is a unit once a step
  // Storage of what is frozen, which has values that bfloat16 holds; nullopt: as made.
  std::optional<at::ScalarType> frozen_type = {};
  MixedPrecision mp = float32();
};

const int kSteps = steps_of(3, 5);
constexpr int kLayers = 4, kRows = 12;  // rows a step, over all ranks and micro-batches

Result train(const std::shared_ptr<World>& world, const Setting& s) {
  tiny::Net net = tiny::make(kLayers, 3, s.dropout, s.tied);
  for (auto& item : net->named_parameters())
    for (const std::string& part : s.frozen)
      if (item.key().find(part) != std::string::npos) {
        item.value().set_requires_grad(false);
        if (s.frozen_type) item.value().set_data(item.value().to(at::kBFloat16).to(*s.frozen_type));
      }
  checkpoint_layers(*net, layer_names(outline_of(*net)), s.checkpointing, true);
  std::unique_ptr<ParallelModel> model;
  if (s.replicated) {
    ReplicatedPolicy policy;
    policy.mp = s.mp;
    policy.gradient_as_bucket_view = s.bucket_view;
    policy.bucket_bytes = policy.first_bucket_bytes = s.bucket_bytes;
    model = replicate_model(net.ptr(), policy, world->everyone(), world);
  } else {
    ShardingPolicy policy;
    ShardGroups shards = tiny::groups_of(world, s.replicas);
    policy.precision.mp = s.mp;
    policy.layout = s.layout;
    policy.prefetch.chains = s.explicit_prefetch;
    policy.prefetch.enabled = s.prefetch;
    policy.prefetch.forward = s.forward_depth;
    policy.prefetch.backward = s.backward_depth;
    policy.reduction.every_micro_batch = s.every;
    policy.buffers.rotating = s.double_buffer;
    if (s.level >= 0) {
      policy.layout = ShardLayout::flat;
      policy.level = s.level;
      policy.reduction.every_micro_batch = s.level == 2;
      policy.reduction.average = ReductionPolicy::Average::before_sum;
      if (s.level == 0) {
        shards.replicate = std::exchange(shards.shard, world->group("alone", {world->rank()}));
        shards.replicate_axis = shards.shard_axis;
      }
    }
    std::optional<bool> reshard;
    if (s.reshard >= 0) reshard = s.reshard == 1;
    const ModelOutline outline = outline_of(*net);
    model = shard_model(
        net.ptr(),
        bind_units(*net, outline,
                   s.parted ? tiny::parted_units(outline, reshard) : plan_units(outline, reshard)),
        policy, shards, world);
  }
  std::vector<Tensor> m, v, t;
  Result out;
  int64_t rows = kRows / s.ranks / s.accumulation;
  for (int step = 0; step < kSteps; ++step) {
    model->begin_step();
    double loss_sum = 0;
    for (int64_t a = 0; a < s.accumulation; ++a) {
      model->begin_micro_batch(a + 1 == s.accumulation ? GradientSync::reduce
                                                       : GradientSync::accumulate);
      std::vector<Tensor> list;
      for (int64_t r = 0; r < rows; ++r)
        list.push_back(tiny::batch(
            1, static_cast<uint64_t>(step * 1000 + (a * s.ranks + world->rank()) * rows + r)));
      Tensor loss = tiny::loss_of(net, at::cat(list));
      (loss / s.accumulation).backward();
      loss_sum += loss.item<double>() / static_cast<double>(s.accumulation * s.ranks);
    }
    model->end_step();
    Tensor box = at::full({1}, loss_sum, at::kDouble);
    model->data_group()->all_reduce(box).wait();
    out.losses.push_back(box.item<double>());
    out.norms.push_back(model->clip_grad_norm(0.5, 1.0));
    c10::NoGradGuard no_grad;
    size_t i = 0;
    for (const FlatParameterGroup& group : model->update_groups()) {
      if (m.size() <= i) {
        m.push_back(at::zeros_like(group.values));
        v.push_back(at::zeros_like(group.values));
        t.push_back(at::zeros({}));
      }
      t[i].add_(1);
      at::_fused_adamw_({group.values}, {group.grads}, {m[i]}, {v[i]}, {}, {t[i]}, 1e-2, 0.9, 0.95,
                        0.1, 1e-4, false, false);
      ++i;
    }
    model->after_optimizer_step();
  }
  for (const ParallelParameter& p : model->parameters())
    out.parameters[p.name] = model->full_tensor(p.name);
  return out;
}

Result run(const Setting& s) {
  std::mutex mutex;
  std::vector<Result> all;
  run_ranks(s.ranks, [&](const std::shared_ptr<World>& world) {
    Result result = train(world, s);
    std::lock_guard lock(mutex);
    all.push_back(std::move(result));
  });
  for (const Result& other : all) {
    CHECK(other.losses == all[0].losses);
    CHECK(other.norms == all[0].norms);
    for (const auto& [name, tensor] : other.parameters)
      CHECK(tensor.equal(all[0].parameters.at(name)));
  }
  return all[0];
}

void compare(const Result& found, const Result& expected, double tolerance) {
  for (int i = 0; i < kSteps; ++i) {
    CHECK(std::abs(found.losses[i] / expected.losses[i] - 1) <= tolerance);
    CHECK(std::abs(found.norms[i] / expected.norms[i] - 1) <= tolerance);
  }
  REQUIRE(found.parameters.size() == expected.parameters.size());
  for (const auto& [name, tensor] : found.parameters) {
    CAPTURE(name);
    // The optimizer's epsilon is 1e-4: with a smaller one Adam magnifies the rounding of gradients
    // that are nearly zero.
    CHECK((tensor - expected.parameters.at(name)).abs().max().item<double>() <= tolerance);
  }
}

Result alone(bool tied = false, const std::vector<std::string>& frozen = {}) {
  return run({.name = "alone", .replicated = true, .tied = tied, .frozen = frozen});
}

}  // namespace

TEST_CASE("sharded and replicated training equals one process") {
  Result expected = alone();
  if (all_layouts()) CHECK(expected.losses.front() > expected.losses.back());  // of five steps
  using AC = ActivationCheckpointing;
  std::vector<Setting> settings = {
      {.name = "one rank", .ranks = 1},
      {.name = "two", .ranks = 2},
      {.name = "three", .ranks = 3},
      {.name = "four", .ranks = 4},
      {.name = "six: some ranks hold nothing of a parameter", .ranks = 6},
      {.name = "hybrid 2 x 2", .ranks = 4, .replicas = 2},
      {.name = "hybrid 3 x 2, every micro-batch",
       .ranks = 6,
       .replicas = 3,
       .accumulation = 2,
       .every = true},
      {.name = "flat", .ranks = 3, .layout = ShardLayout::flat},
      {.name = "flat hybrid",
       .ranks = 4,
       .replicas = 2,
       .layout = ShardLayout::flat,
       .accumulation = 3},
      {.name = "flat, level 0", .ranks = 3, .accumulation = 2, .level = 0},
      {.name = "flat, level 1", .ranks = 3, .accumulation = 4, .level = 1},
      {.name = "flat, level 2", .ranks = 4, .accumulation = 3, .level = 2},
      {.name = "flat, level 1, checkpointing", .ranks = 2, .checkpointing = AC::full, .level = 1},
      {.name = "flat, chains of two and three",
       .ranks = 2,
       .layout = ShardLayout::flat,
       .reshard = 1,
       .explicit_prefetch = true,
       .forward_depth = 2,
       .backward_depth = 3},
      {.name = "flat, two buffers",
       .ranks = 3,
       .layout = ShardLayout::flat,
       .reshard = 1,
       .double_buffer = true},
      {.name = "reshard always", .ranks = 2, .reshard = 1},
      {.name = "reshard never", .ranks = 2, .reshard = 0},
      {.name = "accumulation deferred", .ranks = 3, .accumulation = 4},
      {.name = "accumulation, each reduced", .ranks = 3, .accumulation = 4, .every = true},
      {.name = "no prefetch", .ranks = 2, .prefetch = false},
      {.name = "prefetch 1 and 2", .ranks = 2, .explicit_prefetch = true},
      {.name = "prefetch 3 and 3",
       .ranks = 2,
       .explicit_prefetch = true,
       .forward_depth = 3,
       .backward_depth = 3},
      {.name = "prefetch backward only",
       .ranks = 2,
       .explicit_prefetch = true,
       .forward_depth = 0,
       .backward_depth = 9},
      {.name = "checkpointing full", .ranks = 2, .checkpointing = AC::full},
      {.name = "checkpointing selective", .ranks = 2, .reshard = 1, .checkpointing = AC::selective},
      {.name = "ddp 2", .ranks = 2, .replicated = true},
      {.name = "ddp 3, small buckets",
       .ranks = 3,
       .replicated = true,
       .accumulation = 2,
       .bucket_bytes = 300},
      {.name = "ddp 4, gradients apart",
       .ranks = 4,
       .replicated = true,
       .accumulation = 3,
       .bucket_view = false,
       .bucket_bytes = 900},
      {.name = "ddp, checkpointing", .ranks = 2, .replicated = true, .checkpointing = AC::full},
  };
  size_t turn = 0;
  for (const Setting& s : settings) {
    if (!sampled_over_sockets(turn++, 2)) continue;
    INFO(s.name);
    compare(run(s), expected, 1e-5);
  }
}

TEST_CASE("training over several hosts equals one process") {
  Result expected = alone();
  for (const char* where : {"0,0,1,1", "0,1,0,1"}) {
    CAPTURE(where);
    const meshwright::testing::PretendedHosts hosts(where);
    for (const Setting& s :
         std::vector<Setting>{{.name = "four", .ranks = 4},
                              {.name = "reshard always, every micro-batch",
                               .ranks = 4,
                               .reshard = 1,
                               .accumulation = 3,
                               .every = true},
                              {.name = "hybrid 2 x 2", .ranks = 4, .replicas = 2},
                              {.name = "flat", .ranks = 4, .layout = ShardLayout::flat},
                              {.name = "flat, level 0", .ranks = 4, .accumulation = 3, .level = 0},
                              {.name = "flat, level 1", .ranks = 4, .accumulation = 3, .level = 1},
                              {.name = "flat, level 2", .ranks = 4, .accumulation = 3, .level = 2},
                              {.name = "ddp", .ranks = 4, .replicated = true}}) {
      INFO(s.name);
      compare(run(s), expected, 1e-5);
    }
  }
}

TEST_CASE("tied embeddings and frozen parameters train as in one process") {
  const std::vector<std::string> none, some = {"up.", "embed"};
  for (const auto& [tied, frozen] : {std::pair(false, none), {true, none}, {false, some}}) {
    Result expected = alone(tied, frozen);
    INFO("tied ", tied, " frozen ", frozen.size());
    compare(run({.name = "sharded", .ranks = 3, .accumulation = 2, .tied = tied, .frozen = frozen}),
            expected, 1e-5);
    compare(run({.name = "flat",
                 .ranks = 2,
                 .layout = ShardLayout::flat,
                 .tied = tied,
                 .frozen = frozen}),
            expected, 1e-5);
    for (int level = 0; level <= 2; ++level)
      compare(run({.name = "level",
                   .ranks = 3,
                   .accumulation = 2,
                   .tied = tied,
                   .frozen = frozen,
                   .level = level}),
              expected, 1e-5);
    compare(run({.name = "ddp", .ranks = 2, .replicated = true, .tied = tied, .frozen = frozen}),
            expected, 1e-5);
  }
}

// Gradients pass through what is frozen after all that trains in a unit has its own.
TEST_CASE("a unit that trains in part is there until gradients have passed through it") {
  const std::vector<std::vector<std::string>> sets = {
      {"norm"},                             // the first of a unit, and the root's
      {"input_layernorm", "self_attn"},     // MLPs train
      {"layernorm", "self_attn", "up."},    // the last linear of each trains
      {"layers.1.", "layers.3."},           // whole units, with others before them
      {"embed", "layers.0.", "layers.1."},  // no backward of the first ones
      {"layers.", "norm", "head"},          // the embedding alone trains
      {"layers.", "embed"},                 // the root's last parts alone train
  };
  using AC = ActivationCheckpointing;
  size_t number = 0;  // half: every setting with each of these, whole or parted
  for (const std::vector<std::string>& frozen : sets) {
    size_t turn = number++;
    Result expected = alone(false, frozen);
    std::vector<Setting> settings = {
        {.name = "two", .ranks = 2},
        {.name = "hybrid, no sum of micro-batches", .ranks = 4, .replicas = 2, .accumulation = 3},
        {.name = "hybrid, every micro-batch",
         .ranks = 4,
         .replicas = 2,
         .accumulation = 3,
         .every = true},
        {.name = "flat", .ranks = 3, .layout = ShardLayout::flat, .accumulation = 2},
        {.name = "flat, two buffers",
         .ranks = 2,
         .layout = ShardLayout::flat,
         .double_buffer = true},
        {.name = "no prefetch", .ranks = 2, .prefetch = false},
        {.name = "chained prefetch", .ranks = 3, .explicit_prefetch = true},
        {.name = "kept after forward", .ranks = 2, .reshard = 0},
        {.name = "recomputed", .ranks = 2, .checkpointing = AC::full},
        {.name = "recomputed in part", .ranks = 2, .checkpointing = AC::selective}};
    for (size_t i = 0, plain = settings.size(); i < plain; ++i) {
      settings.push_back(settings[i]);
      settings.back().parted = true;
    }
    for (Setting& setting : settings) {
      if (!sampled(turn++ + (setting.parted ? 1 : 0), 2)) continue;
      setting.frozen = frozen;
      INFO(setting.name, setting.parted ? ", parted" : "", ", frozen: ", frozen.front());
      compare(run(setting), expected, 1e-5);
    }
  }
}

// A base beside adapters: layers that train in part, and a frozen embedding and head.
TEST_CASE("what is frozen may be stored in what it computes in, and no bit of training changes") {
  const MixedPrecision half{DType::bfloat16, DType::float32, DType::float32, true};
  const std::vector<std::string> frozen = {"embed", "head", "self_attn", "mlp.down", "layers.2."};
  std::vector<Setting> settings;
  for (int64_t ranks : {1, 2, 3}) {
    settings.push_back({.name = "rows", .ranks = ranks, .accumulation = 2});
    settings.push_back({.name = "flat", .ranks = ranks, .layout = ShardLayout::flat});
  }
  settings.push_back({.name = "rows, parted", .ranks = 2, .accumulation = 2, .parted = true});
  settings.push_back(
      {.name = "flat, parted", .ranks = 3, .layout = ShardLayout::flat, .parted = true});
  settings.push_back({.name = "replicas of rows", .ranks = 4, .replicas = 2});
  settings.push_back(
      {.name = "recomputed", .ranks = 2, .checkpointing = ActivationCheckpointing::full});
  for (int level : {0, 1, 2}) settings.push_back({.name = "level", .ranks = 2, .level = level});
  for (int64_t ranks : {1, 2}) {
    settings.push_back({.name = "ddp", .ranks = ranks, .replicated = true});
    settings.push_back({.name = "ddp, float32 computation", .ranks = ranks, .replicated = true});
  }
  for (Setting setting : settings) {
    INFO(setting.name, " ", setting.level, ", ranks ", setting.ranks);
    setting.frozen = frozen;
    if (setting.name.find("float32") == std::string::npos) setting.mp = half;
    setting.frozen_type = at::kFloat;
    const Result wide = run(setting);
    setting.frozen_type = at::kBFloat16;
    const Result narrow = run(setting);
    CHECK(narrow.losses == wide.losses);
    CHECK(narrow.norms == wide.norms);
    for (const auto& [name, tensor] : narrow.parameters) {
      CAPTURE(name);
      const bool stays = std::any_of(frozen.begin(), frozen.end(), [&](const std::string& part) {
        return name.find(part) != std::string::npos;
      });
      CHECK((tensor.scalar_type() == at::kBFloat16) == stays);
      CHECK(tensor.to(at::kDouble).equal(wide.parameters.at(name).to(at::kDouble)));
    }
  }
}

TEST_CASE("what is frozen as a whole is freed when gradients have passed through it") {
  for (const bool embed : {true, false})
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      tiny::Net net = tiny::make(kLayers, 3);
      for (auto& item : net->named_parameters())
        if (item.key().starts_with("layers.") || (!embed && item.key().starts_with("embed")))
          item.value().set_requires_grad(false);
      ShardingPolicy policy;
      policy.precision.mp = float32();
      const auto model =
          shard_model(net.ptr(), bind_units(*net, outline_of(*net), plan_units(outline_of(*net))),
                      policy, tiny::groups_of(world), world);
      const auto freed = [&] {
        int64_t out = 0;
        for (auto& item : net->named_parameters())
          if (item.key().ends_with("self_attn.weight")) try {
              (void)item.value().detach().sum();
            } catch (const std::exception&) {
              ++out;
            }
        return out;
      };
      int64_t behind = -1;
      HookHost::of(*net->embed)
          ->after_forward.push_back([&](torch::nn::Module&, TensorRefs& outputs) {
            if (outputs[0]->requires_grad())
              outputs[0]->register_hook([&](const Tensor&) { behind = freed(); });
          });
      model->begin_step();
      model->begin_micro_batch(GradientSync::reduce);
      const Tensor loss = tiny::loss_of(net, tiny::batch(2, 7));
      CHECK(freed() == kLayers - 1);  // the last one stays for its backward
      loss.backward();
      // Nothing goes through the layers where the embedding does not train.
      CHECK(behind == (embed ? kLayers : -1));
      model->end_step();
      CHECK(freed() == kLayers);
    });
}

TEST_CASE("prefetch and activation checkpointing change no bit") {
  Setting base{.name = "base", .ranks = 2, .dropout = 0.3};
  Result expected = run(base);
  for (auto checkpointing : {ActivationCheckpointing::full, ActivationCheckpointing::selective})
    for (bool explicit_prefetch : {false, true}) {
      Setting s = base;
      s.checkpointing = checkpointing;
      s.explicit_prefetch = explicit_prefetch;
      // Threads share one random generator, so dropout is compared on one rank below.
      s.dropout = 0;
      Setting plain = base;
      plain.dropout = 0;
      compare(run(s), run(plain), 0);
    }
  Setting one{.name = "one", .ranks = 1, .dropout = 0.3};
  at::manual_seed(5);
  Result first = run(one);
  one.checkpointing = ActivationCheckpointing::full;
  at::manual_seed(5);
  compare(run(one), first, 0);
}

}  // namespace equality_test

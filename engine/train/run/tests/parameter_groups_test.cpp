// Groups of parameters: rates and decays as torch.optim's param_groups, and what is frozen, alike
// on every layout. Long since all cases share these layouts. Before doctest: LibTorch has a CHECK
// of its own.
#include "engine/train/run/tests/megatron_fsdp.h"
#include "engine/train/run/tests/pipeline_layouts.h"
#include "engine/train/run/tests/saved.h"
#include "sdk/comm/tests/sampled.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <doctest/doctest.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <set>

#include "engine/checkpoint/export.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/job/plan.h"

namespace parameter_groups_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

// What a parameter gets, said here a second time, by hand.
struct Rule {
  double factor = 1, decay = 0.1;
  bool frozen = false;
};
using RuleOf = std::function<Rule(const std::string& name, int64_t dims)>;

bool holds(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

struct Case {
  std::string name;
  SmallModel model;
  std::vector<std::string> sets;
  RuleOf rule;
};

// Frozen beginnings and middles, groups that overlap, a rate of zero; and biases without decay.
std::vector<Case> cases() {
  SmallModel biases = kStaged;
  biases.name = "staged_biases";
  biases.more =
      R"(, "num_hidden_layers": 4, "tie_word_embeddings": true, "attention_bias": true, "mlp_bias": true)";
  return {
      {"factors, decays and frozen layers",
       kStaged,
       {R"(optimizer.group=[{pattern = "model.layers.1.mlp.*", frozen = true},
            {pattern = "*.0.self_attn.*", frozen = true}, {pattern = "*.2.input_layernorm.*", frozen = true},
            {pattern = "*norm.weight", weight_decay = 0}, {pattern = "*.2.*", lr_factor = 2},
            {pattern = "lm_head.*", lr_factor = 0.25, weight_decay = 0.4},
            {pattern = "model.layers.*", lr_factor = 0.5}])"},
       [](const std::string& name, int64_t) -> Rule {
         if (holds(name, "layers.1.mlp") || holds(name, ".0.self_attn") ||
             holds(name, ".2.input_layernorm"))
           return {.frozen = true};
         if (holds(name, "norm.weight")) return {1, 0};
         if (holds(name, ".2.")) return {2, 0.1};
         if (holds(name, "lm_head")) return {0.25, 0.4};
         return {holds(name, "layers") ? 0.5 : 1, 0.1};
       }},
      {"a frozen beginning",
       kStaged,
       {R"(optimizer.group=[{pattern = "*embed*", frozen = true}, {pattern = "*.0.*", frozen = true},
            {pattern = "*.1.input_layernorm.*", lr_factor = 0}])"},
       [](const std::string& name, int64_t) -> Rule {
         if (holds(name, "embed") || holds(name, ".0.")) return {.frozen = true};
         return {holds(name, ".1.input_layernorm.") ? 0.0 : 1.0, 0.1};
       }},
      {"all layers frozen",
       kStaged,
       {R"(optimizer.group=[{pattern = "model.layers.*", frozen = true}])"},
       [](const std::string& name, int64_t) -> Rule { return {.frozen = holds(name, "layers")}; }},
      {"no decay of norms and biases, tied embeddings",
       biases,
       {"optimizer.no_decay=norms_and_biases", "optimizer.weight_decay=0.5",
        R"(optimizer.group=[{pattern = "*.3.*layernorm.weight", weight_decay = 0.2},
            {pattern = "model.embed_tokens.weight", lr_factor = 0.5}])"},
       [](const std::string& name, int64_t dims) -> Rule {
         if (holds(name, ".3.") && holds(name, "layernorm")) return {1, 0.2};
         return {holds(name, "embed") ? 0.5 : 1, dims == 1 ? 0 : 0.5};
       }}};
}

constexpr int kSteps = 5;

struct Came {
  Curve curve;
  std::vector<double> rates;
  std::map<std::string, at::Tensor> first;  // parameters before the first step
  std::vector<int64_t> state, gradients;    // elements a rank
  std::vector<std::string> warnings;
};

// Of a run that is saved and goes on.
struct Leg {
  fs::path from = {};  // a folder of checkpoints; empty: fresh weights
  int steps = kSteps;
  fs::path save_to = {};  // at its end
};

Came came_of(const Layout& layout, const Leg& leg = {}) {
  Came out;
  out.state.resize(static_cast<size_t>(layout.ranks));
  out.gradients.resize(out.state.size());
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    if (leg.from.empty())
      rank.initialize();
    else
      rank.trainer.load(leg.from.string());
    ParallelModel& model = rank.trainer.model();
    Came mine;
    auto all = [&] {
      std::map<std::string, at::Tensor> parameters;
      for (const ParallelParameter& p : model.parameters()) {
        // A tied weight's copy on another stage goes by that one's name.
        const train::Stages* stages = rank.trainer.stages();
        const std::string name =
            stages != nullptr ? train::stored_name(stages->outline(), p.name) : p.name;
        parameters[name] = model.full_tensor(p.name).clone();
      }
      return parameters;
    };
    mine.first = all();
    for (int step = 0; step < leg.steps; ++step) {
      const StepResult result = rank.step();
      mine.curve.losses.push_back(result.loss);
      mine.curve.norms.push_back(result.grad_norm);
      mine.rates.push_back(result.lr);
    }
    mine.curve.parameters = all();
    if (!leg.save_to.empty()) rank.trainer.save(leg.save_to.string());
    int64_t state = 0, gradients = 0;
    for (const train::Optimizer::State& each : train::optimizer_of(rank.trainer).state())
      for (const at::Tensor& tensor : each.tensors) state += tensor.numel();
    for (const FlatParameterGroup& group : model.update_groups()) gradients += group.grads.numel();
    std::lock_guard lock(mutex);
    out.state[static_cast<size_t>(world->rank())] = state;
    out.gradients[static_cast<size_t>(world->rank())] = gradients;
    if (world->rank() == 0) {
      out.curve.losses = mine.curve.losses;
      out.curve.norms = mine.curve.norms;
      out.rates = mine.rates;
      out.warnings = rank.trainer.plan().warnings;
    }
    out.first.merge(mine.first);
    out.curve.parameters.merge(mine.curve.parameters);  // stages of a pipeline have others each
  });
  return out;
}

// The same steps by LibTorch alone: torch.optim's AdamW with its param_groups, in one process.
// `thaw_at`: the step from which on what was frozen trains, too.
Curve by_torch(const Case& one, const std::string& model, const Came& ours, size_t thaw_at = 99) {
  modules::CausalLM net = modules::build_model(model, DType::float32, at::kCPU);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  std::vector<double> factors;
  std::vector<at::Tensor> frozen;
  std::set<const void*> seen;
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (auto& item : net->named_parameters()) {
    at::Tensor p = item.value();
    if (!seen.insert(p.unsafeGetTensorImpl()).second) continue;
    {
      c10::NoGradGuard no_grad;
      p.copy_(ours.first.at(item.key()));
    }
    all.emplace_back(item.key(), p);
    const Rule rule = one.rule(item.key(), p.dim());
    p.set_requires_grad(!rule.frozen);
    if (rule.frozen) frozen.push_back(p);
    auto options = std::make_unique<torch::optim::AdamWOptions>(1e-3);
    options->betas({0.9, 0.95}).eps(1e-5).weight_decay(rule.decay);
    groups.emplace_back(std::vector<at::Tensor>{p}, std::move(options));
    factors.push_back(rule.factor);
  }
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(1e-3));
  Curve out;
  for (size_t step = 0; step < ours.rates.size(); ++step) {
    if (step == thaw_at)
      for (at::Tensor& p : frozen) p.set_requires_grad(true);
    at::Tensor ids = at::empty({kBatch, kLength + 1}, at::kLong);
    for (int64_t row = 0; row < kBatch; ++row)
      fill_sample(static_cast<int64_t>(step) * kBatch + row, net->outline().vocab_size,
                  ids.mutable_data_ptr<int64_t>() + row * (kLength + 1));
    optimizer.zero_grad();
    const at::Tensor logits = net(ids.narrow(1, 0, kLength)),
                     loss = at::cross_entropy_loss(logits.flatten(0, 1),
                                                   ids.narrow(1, 1, kLength).flatten());
    loss.backward();
    c10::NoGradGuard no_grad;
    std::vector<at::Tensor> norms;
    for (const auto& [name, p] : all)
      if (p.grad().defined()) norms.push_back(p.grad().to(at::kDouble).norm());
    const double norm = at::stack(norms).norm().item<double>();
    for (const auto& [name, p] : all)
      if (p.grad().defined()) p.grad().mul_(std::min(1.0, 1.0 / (norm + 1e-6)));
    for (size_t g = 0; g < factors.size(); ++g)
      static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[g].options())
          .lr(factors[g] * ours.rates[step]);
    c10::AutoGradMode grad(true);
    optimizer.step();
    out.losses.push_back(loss.item<double>());
    out.norms.push_back(norm);
  }
  for (const auto& [name, p] : all) out.parameters[name] = p.detach().clone();
  return out;
}

Layout layout_of(const std::string& model, const Case& one, const char* strategy,
                 const OnMesh& mesh, const std::vector<std::string>& more = {}) {
  int64_t dp = mesh.ranks;
  for (const std::string& set : mesh.sets)
    if (set == kTp2 || set == kPp2) dp /= 2;
  Layout out = calm_layout(model, {mesh.ranks, {}}, one.sets);
  out.strategy = strategy;
  // Two micro-batches a step; a pipeline cuts its own.
  out.sets.push_back("step_scheduler.local_batch_size=" + std::to_string(kBatch / dp / 2));
  for (const auto* sets : {&mesh.sets, &more})
    out.sets.insert(out.sets.end(), sets->begin(), sets->end());
  return out;
}

struct Where {
  const char* strategy;
  OnMesh mesh;
  std::vector<std::string> more = {};
  bool pads = true;  // shards are rounded up
};

std::vector<Where> everywhere() {
  std::vector<Where> out = {{"ddp", {1, {}}, {}, false},
                            {"ddp", {2, {}}, {}, false},
                            {"ddp", {4, {}}, {}, false},
                            {"fsdp2", {1, {}}, {}, false},
                            {"fsdp2", {2, {}}},
                            {"fsdp2", {4, {}}},
                            {"fsdp2", {4, {kReplicate2}}},
                            {"fsdp2", {4, {kTp2}}},
                            {"fsdp2", {2, {kPp2}}},
                            {"fsdp2", {2, {}}, {"distributed.activation_checkpointing=\"full\""}}};
  for (int level : {0, 1, 2, 3})
    for (int64_t ranks : {2, 4}) out.push_back({"megatron_fsdp", {ranks, {}}, {flat_level(level)}});
  out.push_back({"megatron_fsdp", {1, {}}, {flat_level(3)}});
  return out;
}

int64_t trained_elements(const Case& one, const Came& came) {
  int64_t out = 0;
  for (const auto& [name, tensor] : came.first)
    if (!one.rule(name, tensor.dim()).frozen) out += tensor.numel();
  return out;
}

std::string refusal(const Layout& layout) {
  std::string out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    try {
      Rank rank(layout, world);
    } catch (const Error& error) {
      if (world->rank() == 0) {
        out = code_string(error.code()) + " " + error.key() + ": " + error.message();
        for (const std::string& help : error.helps()) out += "; " + help;
      }
    }
  });
  return out;
}

}  // namespace

TEST_CASE("groups are torch.optim's param_groups on every layout, and what is frozen stays") {
  TestFolder folder("parameter_groups");
  size_t turn = 0;
  for (const Case& one : cases()) {
    const std::string model = write_model(folder.path, one.model);
    const Came alone = came_of(layout_of(model, one, "ddp", kAlone));
    const Curve truth = by_torch(one, model, alone);
    INFO(one.name);
    CHECK(strays(alone.curve, truth) == "");
    const int64_t trained = trained_elements(one, alone);
    for (const Where& where : everywhere()) {
      if (!sampled(turn++, 3)) continue;
      const Layout layout = layout_of(model, one, where.strategy, where.mesh, where.more);
      INFO(layout.text());
      const Came came = came_of(layout);
      CHECK(strays(came.curve, truth) == "");
      CHECK(came.warnings.empty());
      int64_t moved = 0;
      for (const auto& [name, tensor] : came.first) {
        CAPTURE(name);
        const Rule rule = one.rule(name, tensor.dim());
        const bool same = came.curve.parameters.at(name).equal(tensor);
        CHECK(same == (rule.frozen || rule.factor == 0));
        moved += same ? 0 : 1;
      }
      CHECK(moved > 0);
      // AdamW has two tensors of state. Neither they nor gradients have room for what is frozen.
      for (size_t r = 0; r < came.state.size(); ++r) {
        CHECK(came.state[r] <= 2 * trained * 21 / 20);  // and padding
        CHECK(came.gradients[r] <= trained * 21 / 20);
      }
      if (!where.pads) {
        CHECK(came.state[0] == 2 * trained);
        CHECK(came.gradients[0] == trained);
      }
    }
  }
}

TEST_CASE(
    "a frozen layer is recomputed where gradients pass through it, and the first ones are not") {
  TestFolder folder("frozen_recomputed");
  const std::string model = write_model(folder.path, kStaged);
  const Case one{"",
                 kStaged,
                 {R"(optimizer.group=[{pattern = "*embed*", frozen = true},
                      {pattern = "*.0.*", frozen = true}, {pattern = "*.2.*", frozen = true}])"},
                 {}};
  const std::string full = "distributed.activation_checkpointing=\"full\"",
                    selective = "distributed.activation_checkpointing=\"selective\"";
  for (const Where& where : std::vector<Where>{{"fsdp2", {2, {}}, {full}},
                                               {"fsdp2", {2, {}}, {selective}},
                                               {"fsdp2", {1, {}}, {full}},
                                               {"ddp", {2, {}}, {full}},
                                               {"megatron_fsdp", {2, {}}, {flat_level(3), full}}}) {
    std::vector<std::string> kept = where.more;
    kept.pop_back();
    const Layout layout = layout_of(model, one, where.strategy, where.mesh, where.more);
    INFO(layout.text());
    // To the last bit.
    const Curve with = came_of(layout).curve,
                without = came_of(layout_of(model, one, where.strategy, where.mesh, kept)).curve;
    CHECK(unlike(with, without) == "");
    std::vector<int> runs(4);
    std::mutex mutex;
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      std::vector<int> mine(4);
      Rank rank(layout, world, [&](torch::nn::Module& net) {
        const auto modules = net.named_modules();
        for (size_t i = 0; i < mine.size(); ++i)
          HookHost::of(*modules["model.layers." + std::to_string(i) + ".mlp.down_proj"])
              ->before_forward.emplace_back([&mine, i](auto&, auto&) { ++mine[i]; });
      });
      rank.initialize();
      rank.step();
      std::lock_guard lock(mutex);
      if (world->rank() == 0) runs = mine;
    });
    const int once = runs[0];
    CHECK(once > 0);
    CHECK(runs == std::vector<int>{once, 2 * once, 2 * once, 2 * once});
  }
}

TEST_CASE("groups of experts are the same under moe_ep as in one process") {
  TestFolder folder("groups_of_experts");
  const std::string model = write_model(folder.path, kMixtral);
  const Case one{"experts",
                 kMixtral,
                 {R"(optimizer.group=[{pattern = "*.0.*experts*", frozen = true},
                      {pattern = "*experts*", lr_factor = 0.5, weight_decay = 0},
                      {pattern = "*gate*", lr_factor = 2}])"},
                 {}};
  const Came alone = came_of(layout_of(model, one, "ddp", kAlone));
  Case plain = one;
  plain.sets.clear();
  CHECK(strays(came_of(layout_of(model, plain, "ddp", kAlone)).curve, alone.curve) != "");
  for (const Where& where : std::vector<Where>{{"moe_ep", {2, {kEp2}}},
                                               {"moe_ep", {4, {kEp2}}},
                                               {"moe_ep", {4, {"distributed.ep_size=4"}}},
                                               {"fsdp2", {2, {}}},
                                               {"fsdp2", {4, {kEp2}}},
                                               {"megatron_fsdp", {2, {}}, {flat_level(3)}}}) {
    const Layout layout = layout_of(model, one, where.strategy, where.mesh, where.more);
    INFO(layout.text());
    const Came came = came_of(layout);
    CHECK(strays(came.curve, alone.curve) == "");
    int64_t frozen = 0;
    for (const auto& [name, tensor] : came.first) {
      CAPTURE(name);
      const bool stays = holds(name, "layers.0.") && holds(name, "experts");
      frozen += stays ? 1 : 0;
      CHECK(came.curve.parameters.at(name).equal(tensor) == stays);
    }
    CHECK(frozen > 0);
  }
}

TEST_CASE("checkpoints of groups go on on every other layout, with the frozen weights") {
  TestFolder folder("group_checkpoints");
  const Case one = cases()[0];
  const std::string model = write_model(folder.path, one.model);
  std::vector<Layout> all;
  for (const Where& where : std::vector<Where>{{"fsdp2", {2, {}}},
                                               {"ddp", {1, {}}},
                                               {"ddp", {4, {}}},
                                               {"fsdp2", {4, {kTp2}}},
                                               {"fsdp2", {2, {kPp2}}},
                                               {"megatron_fsdp", {2, {}}, {flat_level(1)}},
                                               {"megatron_fsdp", {4, {}}, {flat_level(3)}}})
    all.push_back(layout_of(model, one, where.strategy, where.mesh, where.more));
  CHECK(carried_over(all, folder.path / "runs") == "");

  // No state of a frozen parameter, and an export of the whole model.
  const fs::path saved = folder.path / "runs" / "from 0" / "step_00000003";
  const std::map<std::string, std::string> kept = contents(saved);
  const Came came = came_of(all[0]);
  fs::copy_file(model, saved / "config.json");
  checkpoint::Source source(saved);
  checkpoint::export_folder(source, folder.path / "hf", {});
  const weights::WeightFolder files(folder.path / "hf");
  CHECK(files.names().size() == came.first.size());
  for (const auto& [name, tensor] : came.first) {
    CAPTURE(name);
    const bool frozen = one.rule(name, tensor.dim()).frozen;
    CHECK(kept.contains("exp_avg/" + name) == !frozen);
    CHECK(kept.contains("exp_avg_sq/" + name) == !frozen);
    const weights::TensorEntry* entry = files.find(name);
    REQUIRE(entry != nullptr);
    at::Tensor read = at::empty(tensor.sizes(), at::kFloat);
    weights::read_slice(*entry, std::vector<int64_t>(tensor.sizes().size(), 0),
                        tensor.sizes().vec(), DType::float32, read.mutable_data_ptr());
    CHECK(read.equal(tensor) == frozen);
  }
}

TEST_CASE("what was frozen may train when a run goes on, and the other way round") {
  TestFolder folder("groups_that_change");
  const Case one = cases()[1];
  const std::string model = write_model(folder.path, one.model);
  Case plain = one;
  plain.sets.clear();
  const fs::path frozen = folder.path / "frozen", free = folder.path / "free";
  losses_of(layout_of(model, one, "fsdp2", {2, {}}), {}, 3, frozen, 3);
  losses_of(layout_of(model, plain, "fsdp2", {2, {}}), {}, 3, free, 3);
  std::vector<double> thawed;
  for (const Where& where : std::vector<Where>{{"ddp", {1, {}}}, {"fsdp2", {2, {}}}}) {
    const Layout now = layout_of(model, plain, where.strategy, where.mesh);
    std::vector<double> losses;
    bool told = false, moved = false;
    run_ranks(now.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(now, world);
      rank.trainer.load(frozen.string());
      const std::string name = "model.embed_tokens.weight";
      const at::Tensor before = rank.trainer.model().full_tensor(name).clone();
      std::vector<double> mine;
      for (int step = 0; step < 3; ++step) mine.push_back(rank.step().loss);
      const bool other = !rank.trainer.model().full_tensor(name).equal(before);
      if (world->rank() != 0) return;
      losses = mine;
      moved = other;
      for (const std::string& notice : world->notices())
        told = told || holds(notice, "were frozen in the checkpoint train in this job");
    });
    CHECK(told);
    CHECK(moved);
    if (thawed.empty()) thawed = losses;
    CHECK(farthest(losses, thawed) < 1e-6);
  }
  CHECK(losses_of(layout_of(model, one, "ddp", kAlone), free, 3).size() == 3);
}

TEST_CASE("what is thawed has its own count of updates, as in torch.optim, and keeps it") {
  TestFolder folder("thawed");
  const Case frozen{"a frozen beginning",
                    kStaged,
                    {R"(optimizer.group=[{pattern = "*embed*", frozen = true},
                         {pattern = "*.0.*", frozen = true}, {pattern = "*norm*", lr_factor = 2}])"},
                    [](const std::string& name, int64_t) -> Rule {
                      return {.factor = holds(name, "norm") ? 2.0 : 1.0,
                              .frozen = holds(name, "embed") || holds(name, ".0.")};
                    }};
  Case thawed = frozen;
  thawed.sets = {R"(optimizer.group=[{pattern = "*norm*", lr_factor = 2}])"};
  const std::string model = write_model(folder.path, kStaged);
  const std::vector<Where> layouts = {{"fsdp2", {2, {}}},
                                      {"ddp", {2, {}}},
                                      {"fsdp2", {4, {kTp2}}},
                                      {"fsdp2", {2, {kPp2}}},
                                      {"megatron_fsdp", {2, {}}, {flat_level(3)}}};
  auto layout = [&](const Case& one, size_t i) {
    const Where& where = layouts[i % layouts.size()];
    return layout_of(model, one, where.strategy, where.mesh, where.more);
  };
  const Came first = came_of(layout(frozen, 0), {.steps = 3, .save_to = folder.path / "first"});
  for (size_t i = 0; i < layouts.size(); ++i) {
    const fs::path saved = folder.path / std::to_string(i);
    Came all = first;
    // Saved between, and gone on with on another layout.
    for (const Came& leg : {came_of(layout(thawed, i), {folder.path / "first", 2, saved}),
                            came_of(layout(thawed, i + 1), {.from = saved, .steps = 3})}) {
      all.rates.insert(all.rates.end(), leg.rates.begin(), leg.rates.end());
      for (std::vector<double> Curve::* row : {&Curve::losses, &Curve::norms})
        (all.curve.*row)
            .insert((all.curve.*row).end(), (leg.curve.*row).begin(), (leg.curve.*row).end());
      all.curve.parameters = leg.curve.parameters;
    }
    INFO(layout(thawed, i).text());
    REQUIRE(all.rates.size() == 8);
    CHECK(strays(all.curve, by_torch(frozen, model, all, 3)) == "");
    const checkpoint::Meta meta = checkpoint::read_meta(saved / "step_00000005");
    CHECK(meta.find("exp_avg", "model.embed_tokens.weight")->steps == 2);
    CHECK(meta.find("exp_avg_sq", "model.layers.0.mlp.up_proj.weight")->steps == 2);
    CHECK_FALSE(meta.find("exp_avg", "model.norm.weight")->steps.has_value());
    CHECK_FALSE(meta.find("", "model.embed_tokens.weight")->steps.has_value());
  }
}

TEST_CASE("groups that match nothing are warned of; a model that is frozen as a whole is refused") {
  TestFolder folder("wrong_groups");
  const std::string model = write_model(folder.path, kStaged);
  Case one{"", kStaged, {}, {}};
  one.sets = {R"(optimizer.group=[{pattern = "model.embed_token", lr_factor = 2},
                  {pattern = "*.0.*", lr_factor = 2}, {pattern = "model.layers.0.*", lr_factor = 3}])"};
  const Came came = came_of(layout_of(model, one, "fsdp2", {2, {}}));
  REQUIRE(came.warnings.size() == 2);
  CHECK(holds(came.warnings[0], "no parameter of LlamaForCausalLM has such a name"));
  CHECK(holds(came.warnings[1], "groups before it match all of its 9 parameters"));
  one.sets = {
      R"(optimizer.group=[{pattern = "lm_head.*", frozen = true}, {pattern = "*", frozen = true}])"};
  const std::string refused = refusal(layout_of(model, one, "ddp", kAlone));
  CHECK(holds(refused, "E0208 optimizer.group.frozen: [[optimizer.group]] freezes all parameters"));
  CHECK(holds(refused, "; set frozen = false in the group with pattern = \"*\""));
}

}  // namespace parameter_groups_test
